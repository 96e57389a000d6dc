"""A stand-in for a model file that has all of its header but the vocabulary, and none of its weights.

llama.cpp plans the same buffers for it as for the file itself, in milliseconds and before the file is here.
"""

import struct
import subprocess
import sys
from pathlib import Path

from localspec.gguf.header import Entry, Header, TensorInfo

_STRING, _ARRAY, _UINT32 = 8, 9, 4
_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_NO_VOCABULARY = "no_vocab"  # llama-vocab.cpp: as many dummy tokens as ARCHITECTURE.vocab_size says


def write_weightless(header: Header, path: Path) -> Path:
    """Write it as a sparse file of the model's length. Raises OSError."""
    data = b"GGUF" + struct.pack("<IQ", 3, len(header.tensors))
    entries = _entries(header)
    data += struct.pack("<Q", len(entries))
    data += b"".join(_string(key) + _entry(entry) for key, entry in entries.items())
    data += b"".join(_tensor(tensor) for tensor in header.tensors)
    start = (len(data) + header.alignment - 1) // header.alignment * header.alignment
    end = max((tensor.offset + tensor.bytes for tensor in header.tensors), default=0)
    with path.open("wb") as file:
        file.write(data)
        if sys.platform == "win32":
            subprocess.run(["fsutil", "sparse", "setflag", str(path)], check=False, capture_output=True)
        file.truncate(start + (end + header.alignment - 1) // header.alignment * header.alignment)
    return path


def _entries(header: Header) -> dict[str, Entry]:
    kept = {
        key: entry
        for key, entry in header.entries.items()
        if entry.value is not None and not key.startswith("tokenizer.")
    }
    kept["tokenizer.ggml.model"] = Entry(_STRING, _NO_VOCABULARY)
    if header.vocabulary is not None:
        size = header.vocabulary.count
        kept[f"{header.text('general.architecture')}.vocab_size"] = Entry(_UINT32, size)
    return kept


def _entry(entry: Entry) -> bytes:
    if entry.type != _ARRAY:
        return struct.pack("<I", entry.type) + _value(entry.type, entry.value)
    assert entry.element_type is not None
    assert isinstance(entry.value, tuple)
    head = struct.pack("<IIQ", _ARRAY, entry.element_type, len(entry.value))
    return head + b"".join(_value(entry.element_type, element) for element in entry.value)


def _value(kind: int, value: object) -> bytes:
    return _string(str(value)) if kind == _STRING else struct.pack("<" + _CODES[kind], value)


def _string(text: str) -> bytes:
    raw = text.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def _tensor(tensor: TensorInfo) -> bytes:
    head = _string(tensor.name) + struct.pack("<I", len(tensor.shape))
    return (
        head
        + struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape)
        + struct.pack("<IQ", tensor.type, tensor.offset)
    )
