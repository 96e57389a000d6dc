"""Reads with embeddings in place of tokens, and speaks in the tokens that a trimmed model's rows stand for."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from localspec.errors import BackendFailure
from localspec.gguf.trimmed import TokenTable
from localspec.llama.batch import Batch
from localspec.llama.library import symbol
from localspec.llama.rows import FullRows, TopRows
from localspec.passes import Candidates

_TO_FLOAT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


class _Traits(ctypes.Structure):
    """struct ggml_type_traits."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", _TO_FLOAT),
    )


_traits = symbol("ggml_get_type_traits", ctypes.POINTER(_Traits), [ctypes.c_int])


def as_floats(rows: np.ndarray, type_: int, width: int) -> np.ndarray:
    """Quantised rows, uint8 [n, bytes of a row], as float32 [n, width]. Raises BackendFailure."""
    found = np.empty((len(rows), width), np.float32)
    if type_ == 0:
        found[:] = rows.view(np.float32)
        return found
    to_float = _traits(type_).contents.to_float
    if not to_float:
        raise BackendFailure(
            f"llama.cpp cannot read tensors of type {type_}", hint="use another quantisation"
        )
    rows = np.ascontiguousarray(rows)
    to_float(rows.ctypes.data, found.ctypes.data, found.size)
    return found


class EmbeddingBatch:
    """A batch that holds the embeddings of its tokens."""

    def __init__(self, size: int, table: TokenTable) -> None:
        self._batch = Batch(size, columns=table.width, tokens=False)
        self._table = table

    def fill(self, tokens: Sequence[int], position: int, rows: int) -> Any:  # noqa: ANN401  a C struct
        """As `Batch.fill`."""
        table = self._table
        read = as_floats(table.embeddings[np.asarray(tokens)], table.type, table.width)
        return self._batch.fill((), position, rows, read * np.float32(table.scale))


class TrimmedRows:
    """The largest logits of every row, as tokens of the whole vocabulary."""

    def __init__(self, rows: FullRows | TopRows, token_ids: np.ndarray, most: int) -> None:
        """`token_ids`: what each element of a row stands for; `most`: logits of a row that are kept."""
        self._rows = rows
        self._ids = token_ids
        self._most = most

    def read(self, context: Any, count: int) -> list[Candidates]:  # noqa: ANN401  a C pointer
        return [self._read(row) for row in self._rows.read(context, count)]

    def _read(self, row: np.ndarray | Candidates) -> Candidates:
        if isinstance(row, Candidates):
            return Candidates(self._ids[row.ids], row.logits)
        most = min(self._most, len(row))
        kept = np.argpartition(row, -most)[-most:] if most < len(row) else np.arange(len(row))
        return Candidates(self._ids[kept], row[kept])
