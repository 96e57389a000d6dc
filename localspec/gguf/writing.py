"""Writes GGUF files: a header made of entries, then tensors whose bytes may come from other files."""

import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from localspec.gguf.header import BLOCKS, SCALARS, Entry, HeaderVocabulary, TensorInfo, padded

STRING, ARRAY, UINT32 = 8, 9, 4
TOKENS = "tokenizer.ggml.tokens"
ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class TensorBytes:
    """A tensor to be written."""

    name: str
    shape: tuple[int, ...]  # innermost dimension first, as in the file
    type: int  # see header.BLOCKS
    data: np.ndarray  # whose bytes lie in order, in the memory or in another file


def write_gguf(
    path: Path,
    entries: Mapping[str, Entry],
    tensors: Sequence[TensorBytes],
    vocabulary: HeaderVocabulary | None = None,
) -> Path:
    """Write a model file, under another name until it is whole. Raises OSError."""
    part = path.with_name(path.name + ".part")
    infos, offset = [], 0
    for tensor in tensors:
        infos.append(TensorInfo(tensor.name, tensor.shape, tensor.type, offset, tensor.data.nbytes))
        offset += padded(tensor.data.nbytes, ALIGNMENT)
    try:
        with part.open("wb") as file:
            head = header_bytes(entries, infos, vocabulary)
            file.write(head + bytes(padded(len(head), ALIGNMENT) - len(head)))
            for tensor in tensors:
                tensor.data.tofile(file)
                file.write(bytes(padded(tensor.data.nbytes, ALIGNMENT) - tensor.data.nbytes))
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
