"""A draft whose output vocabulary is cut to the tokens that are needed: no training, and cheaper steps."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from localspec.errors import BadModelFile, BadSetting
from localspec.gguf.facts import TOKENIZER, is_trimmed
from localspec.gguf.header import Entry, Header, header_at, parts_of
from localspec.gguf.trimmed import EMBEDDINGS, SCALES, TABLE_HASH, TOKEN_IDS, output_tensor, table_path
from localspec.gguf.writing import TOKENS, UINT32, TensorBytes, stored, tensor_at, text_entry, write_gguf

I32 = 26
LEAST = 256  # tokens: with fewer nothing is spared, and hardly anything could be said


def trim(source: Path, path: Path, token_ids: Sequence[int] | np.ndarray) -> Path:
    """Write the draft `source` with output rows for these tokens alone, and its table beside it.

    Raises BadModelFile for a model that cannot be trimmed, BadSetting for too many or too few tokens, OSError.
    """
    ids = np.unique(np.asarray(token_ids, np.int32))
    header = trimmable(source, len(ids))
    tensors = {tensor.name: tensor for tensor in header.tensors}
    embeddings = stored(source, tensors[EMBEDDINGS], header.data_offset)
    assert 0 <= ids[0] <= ids[-1] < len(embeddings.data), "a token that the draft does not have"
    output = output_tensor(header)
    rows = tensor_at(source, output, header.data_offset)[ids]
    kept = [
        stored(source, t, header.data_offset)
        for t in header.tensors
        if t.name not in (EMBEDDINGS, "output.weight")
    ]
    return write_trimmed(
        path,
        header,
        embeddings,
        ids,
        TensorBytes(EMBEDDINGS, (output.shape[0], len(ids)), output.type, rows),
        kept,
    )


def write_trimmed(
    path: Path,
    header: Header,
    embeddings: TensorBytes,
    ids: np.ndarray,
    output_tokens: TensorBytes,
    others: Sequence[TensorBytes],
) -> Path:
    """Write both files of a trimmed model: `embeddings` of all tokens, output rows for `ids`, and the other tensors.

    Raises OSError.
    """
    digest = hashlib.sha256(embeddings.data.data)
    digest.update(ids.tobytes())
    tie = {TABLE_HASH: text_entry(digest.hexdigest())}
    table = [embeddings, TensorBytes(TOKEN_IDS, (len(ids),), I32, ids)]
    write_gguf(table_path(path), {"general.architecture": text_entry("token-table"), **tie}, table)
    return write_gguf(
        path, {**_entries(header, len(ids)), **tie}, [output_tokens, *others], header.vocabulary
    )


def trimmable(source: Path, count: int) -> Header:
    """The header of a model that can be trimmed to `count` tokens. Raises BadModelFile, BadSetting."""
    header = header_at(source)
    architecture = header.text("general.architecture")
    why = ""
    if is_trimmed(header):
        why = "is trimmed already"
    elif architecture not in SCALES:
        why = f"is of the architecture {architecture}, which localspec cannot trim"
    elif len(parts_of(source)) > 1:
        why = "is in several files"
    elif header.vocabulary is None:
        why = "has no vocabulary"
    if why:
        raise BadModelFile(
            f"{source.name} {why}", hint=f"a draft of {', '.join(SCALES)} in one file can be trimmed"
        )
    whole = header.vocabulary.count if header.vocabulary else 0
    if not LEAST <= count < whole:
        raise BadSetting(
            f"{source.name} cannot be trimmed to {count:,} of its {whole:,} tokens",
            hint=f"choose {LEAST} or more, and fewer than it has",
        )
    return header


def _entries(header: Header, output_tokens: int) -> dict[str, Entry]:
    """The file's metadata: the source's, without the tokenizer."""
    kept = {key: entry for key, entry in header.entries.items() if key != TOKENS}
    return kept | {
        TOKENIZER: kept["tokenizer.ggml.model"],
        "tokenizer.ggml.model": text_entry("none"),
        f"{header.text('general.architecture')}.vocab_size": Entry(UINT32, output_tokens),
    }
