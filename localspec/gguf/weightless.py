"""A stand-in for a model file that has all of its header but the vocabulary, and none of its weights.

llama.cpp plans the same buffers for it as for the file itself, in milliseconds and before the file is here.
"""

import subprocess
import sys
from pathlib import Path

from localspec.files import program
from localspec.gguf.header import Entry, Header, padded
from localspec.gguf.trimmed import is_trimmed
from localspec.gguf.writing import UINT32, header_bytes, text_entry

_NO_VOCABULARY = "no_vocab"  # llama-vocab.cpp: as many dummy tokens as ARCHITECTURE.vocab_size says


def write_weightless(header: Header, path: Path) -> Path:
    """Write it as a sparse file of the model's length. Raises OSError."""
    data = header_bytes(_entries(header), header.tensors)
    end = max((tensor.offset + tensor.bytes for tensor in header.tensors), default=0)
    with path.open("wb") as file:
        file.write(data)
        if sys.platform == "win32" and (fsutil := program("fsutil")):
            subprocess.run([fsutil, "sparse", "setflag", str(path)], check=False, capture_output=True)
        file.truncate(padded(len(data), header.alignment) + padded(end, header.alignment))
    return path


def _entries(header: Header) -> dict[str, Entry]:
    kept = {key: entry for key, entry in header.entries.items() if not key.startswith("tokenizer.")}
    kept["tokenizer.ggml.model"] = text_entry(_NO_VOCABULARY)
    if header.vocabulary is not None and not is_trimmed(header):
        size = header.vocabulary.count
        kept[f"{header.text('general.architecture')}.vocab_size"] = Entry(UINT32, size)
    return kept
