"""Writes GGUF files, and reads trimmed drafts: a model file with fewer output rows, and a table of all embeddings.

llama.cpp wants as many output rows as tokens, but takes embeddings in place of tokens. So a trimmed model has no
tokenizer. A second file has every token's embedding and the token of each output row. A hash ties both.
"""

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from localspec.errors import BadModelFile
from localspec.gguf.facts import is_trimmed, table_path
from localspec.gguf.header import (
    ARRAY,
    SCALARS,
    STRING,
    TOKENS,
    Entry,
    Header,
    HeaderVocabulary,
    TensorInfo,
    header_at,
    padded,
)
from localspec.gguf.tensor_types import BLOCKS

UINT32 = 4
ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class TensorBytes:
    """A tensor to be written."""

    name: str
    shape: tuple[int, ...]  # innermost dimension first, as in the file
    type: int  # see tensor_types.BLOCKS
    data: np.ndarray  # whose bytes lie in order, in the memory or in another file


def write_gguf(
    path: Path,
    entries: Mapping[str, Entry],
    tensors: Sequence[TensorBytes],
    vocabulary: HeaderVocabulary | None = None,
) -> Path:
    """Write a model file, under another name until it is whole. Raises OSError."""
    infos = laid_out((tensor.name, tensor.shape, tensor.type) for tensor in tensors)
    return write_streamed(path, entries, infos, (tensor.data for tensor in tensors), vocabulary)


def laid_out(tensors: Iterable[tuple[str, tuple[int, ...], int]]) -> list[TensorInfo]:
    """The places of tensors, given by name, shape and type, one behind the other."""
    infos, offset = list[TensorInfo](), 0
    for name, shape, kind in tensors:
        _, elements, block_bytes = BLOCKS[kind]
        infos.append(TensorInfo(name, shape, kind, offset, math.prod(shape) // elements * block_bytes))
        offset += padded(infos[-1].bytes, ALIGNMENT)
    return infos


def write_streamed(
    path: Path,
    entries: Mapping[str, Entry],
    infos: Sequence[TensorInfo],
    arrays: Iterable[np.ndarray],
    vocabulary: HeaderVocabulary | None = None,
) -> Path:
    """The same, with the tensors' bytes made one after the other. Raises OSError."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            head = header_bytes(entries, infos, vocabulary)
            file.write(head + bytes(padded(len(head), ALIGNMENT) - len(head)))
            for info, array in zip(infos, arrays, strict=True):
                assert array.nbytes == info.bytes, info.name
                file.write(np.ascontiguousarray(array).data)
                file.write(bytes(padded(info.bytes, ALIGNMENT) - info.bytes))
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    return path


def header_bytes(
    entries: Mapping[str, Entry], tensors: Iterable[TensorInfo], vocabulary: HeaderVocabulary | None = None
) -> bytes:
    """All in front of the tensors but the padding; entries with only a known length are left out."""
    infos = list(tensors)
    known = {key: entry for key, entry in entries.items() if entry.value is not None}
    written = [_string(key) + _entry(entry) for key, entry in known.items()]
    if vocabulary is not None:
        head = struct.pack("<IIQ", ARRAY, STRING, vocabulary.count)
        written.append(_string(TOKENS) + head + vocabulary.raw)
    return (
        b"GGUF"
        + struct.pack("<IQQ", 3, len(infos), len(written))
        + b"".join(written)
        + b"".join(map(_tensor, infos))
    )


def text_entry(value: str) -> Entry:
    return Entry(STRING, value)


def tensor_at(path: Path, tensor: TensorInfo, data_offset: int) -> np.ndarray:
    """The bytes of a tensor in its file, uint8 [rows, bytes of a row], read when they are used. Raises OSError."""
    _, elements, block_bytes = BLOCKS[tensor.type]
    row_bytes = tensor.shape[0] // elements * block_bytes
    return np.memmap(path, np.uint8, "r", data_offset + tensor.offset, (tensor.bytes // row_bytes, row_bytes))


def stored(path: Path, tensor: TensorInfo, data_offset: int) -> TensorBytes:
    """A tensor as its file has it. Raises OSError."""
    return TensorBytes(tensor.name, tensor.shape, tensor.type, tensor_at(path, tensor, data_offset))


def _entry(entry: Entry) -> bytes:
    if entry.type != ARRAY:
        return struct.pack("<I", entry.type) + _value(entry.type, entry.value)
    assert entry.element_type is not None
    assert isinstance(entry.value, tuple)
    head = struct.pack("<IIQ", ARRAY, entry.element_type, len(entry.value))
    return head + b"".join(_value(entry.element_type, element) for element in entry.value)


def _value(kind: int, value: Any) -> bytes:  # noqa: ANN401  what the type says
    return _string(str(value)) if kind == STRING else struct.pack("<" + SCALARS[kind], value)


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


TABLE_HASH = "localspec.trimmed.table"  # sha256 of the table's tensors, in both files
PROVENANCE = "localspec.fitted"  # texts: the source of a draft and its training
EMBEDDINGS, TOKEN_IDS = "token_embd.weight", "token_ids"
# Architectures whose graphs take embeddings, and the factor by which each multiplies those of tokens.
SCALES = {
    "llama": lambda width: 1.0,
    "qwen2": lambda width: 1.0,
    "qwen3": lambda width: 1.0,
    "gemma3": lambda width: float(np.sqrt(width)),
}


@dataclass(frozen=True, slots=True)
class TokenTable:
    """The table of a trimmed model: embeddings, and the token of each output row."""

    embeddings: np.ndarray  # uint8 [tokens, bytes of a row], quantised, in the file
    type: int  # of its elements, see tensor_types.BLOCKS
    width: int  # elements of a row
    scale: float
    token_ids: np.ndarray  # int32 [output rows], ascending: the token that each row stands for

    @property
    def count(self) -> int:
        """Tokens that it can read."""
        return len(self.embeddings)

    def output_tokens(self, count: int) -> int:
        """Number of output rows for the first `count` tokens."""
        return int(self.token_ids.searchsorted(count))


def token_table(model: Path, header: Header) -> TokenTable | None:
    """The table of a trimmed model; None for another model. Raises BadModelFile if it is missing, damaged or of another
    draft.
    """
    if not is_trimmed(header):
        return None
    path = table_path(model)
    hint = f"make the draft again: localspec fit; or put {path.name} of the same draft beside it"
    if not path.exists():
        raise BadModelFile(f"{model.name} is trimmed and needs {path.name}, which is not there", hint=hint)
    table = header_at(path)
    tensors = {tensor.name: tensor for tensor in table.tensors}
    architecture = header.architecture
    if (
        table.text(TABLE_HASH) != header.text(TABLE_HASH)
        or tensors.keys() != {EMBEDDINGS, TOKEN_IDS}
        or architecture not in SCALES
    ):
        raise BadModelFile(f"{path.name} does not belong to {model.name}", hint=hint)
    embeddings, ids = tensors[EMBEDDINGS], tensors[TOKEN_IDS]
    found = TokenTable(
        tensor_at(path, embeddings, table.data_offset),
        embeddings.type,
        embeddings.shape[0],
        SCALES[architecture](embeddings.shape[0]),
        tensor_at(path, ids, table.data_offset).view(np.int32).ravel(),
    )
    if not _fits(found, header):
        raise BadModelFile(f"{path.name} is damaged", hint=hint)
    return found


def _fits(table: TokenTable, header: Header) -> bool:
    """Whether the sizes in both files agree, so that no read goes beyond the end."""
    ids, rows = table.token_ids, output_tensor(header)
    return (
        rows.shape == (table.width, len(ids))
        and bool((np.diff(ids) > 0).all())
        and int(ids[0]) >= 0
        and int(ids[-1]) < table.count
    )


def output_tensor(header: Header) -> TensorInfo:
    """A model's output matrix: its own, or its embeddings. Raises BadModelFile."""
    tensors = {tensor.name: tensor for tensor in header.tensors}
    found = tensors.get("output.weight") or tensors.get(EMBEDDINGS)
    if found is None:
        raise BadModelFile("the file has no output matrix", hint="use a whole model")
    return found
