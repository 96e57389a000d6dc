"""Batches of tokens or embeddings for llama.cpp, in reusable buffers."""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from localspec.errors import BackendFailure
from localspec.gguf.trimmed import TokenTable
from localspec.llama.library import lib, symbol
from localspec.llama.rows import FullRows
from localspec.sampler.passes import Candidates, Row


class Stretch(NamedTuple):
    """Consecutive tokens of one sequence in a batch; `start` is the position of the first one."""

    sequence: int
    start: int
    tokens: Sequence[int]
    outputs: Sequence[int]  # for each token: 1 if its row of logits is computed, else 0


class Batch:
    def __init__(
        self, size: int, *, columns: int = 0, tokens: bool = True, position_rows: int = 1, sequences: int = 1
    ) -> None:
        """`columns`: width of each embedding, 0 for a batch without them. `tokens`: whether the batch has tokens.

        `position_rows`: number of positions of each embedding; 4 for M-RoPE, else 1.
        """
        self._position_rows = position_rows
        self._tokens: Any = (ctypes.c_int32 * size)()
        self._positions: Any = (ctypes.c_int32 * (size * position_rows))()
        self._outputs: Any = (ctypes.c_int8 * size)()
        self._sequence_counts = (ctypes.c_int32 * size)(*[1] * size)
        self._numbers = [ctypes.pointer(ctypes.c_int32(number)) for number in range(sequences)]
        self._sequences = (ctypes.POINTER(ctypes.c_int32) * size)(*self._numbers[:1] * size)
        self._embeddings = np.zeros((size if columns else 0, columns), dtype=np.float32)
        self._struct = lib.llama_batch(
            n_tokens=0,
            token=self._tokens if tokens else None,
            embd=self._embeddings.ctypes.data_as(ctypes.POINTER(ctypes.c_float)) if columns else None,
            pos=self._positions,
            n_seq_id=self._sequence_counts,
            seq_id=self._sequences,
            logits=self._outputs,
        )

    def fill(self, tokens: Sequence[int], position: int, rows: int) -> Any:
        """Return a llama_batch for sequence 0 from `position` on, with logits for the last `rows` tokens."""
        return self.fill_all([Stretch(0, position, tokens, [0] * (len(tokens) - rows) + [1] * rows)])

    def fill_all(self, stretches: Sequence[Stretch], embeddings: np.ndarray | None = None) -> Any:
        end = 0
        for sequence, start, tokens, outputs in stretches:
            begin, end = end, end + len(tokens)
            self._tokens[begin:end] = tokens
            self._positions[begin:end] = range(start, start + len(tokens))
            self._sequences[begin:end] = self._numbers[sequence : sequence + 1] * len(tokens)
            self._outputs[begin:end] = outputs
        for row in range(1, self._position_rows):
            self._positions[row * end : (row + 1) * end] = [0] * end if row == 3 else self._positions[:end]
        if embeddings is not None:
            self._embeddings[:end] = embeddings
        self._struct.n_tokens = end
        return self._struct


_TO_FLOAT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


class _Traits(ctypes.Structure):  # the first fields of C's ggml_type_traits, of which only `to_float` is used
    _fields_ = (("before", ctypes.c_int64 * 5), ("to_float", _TO_FLOAT))


_traits = symbol("ggml_get_type_traits", ctypes.POINTER(_Traits), [ctypes.c_int])


def as_floats(rows: np.ndarray, type_: int, width: int) -> np.ndarray:
    """Dequantise uint8 [rows, row bytes] to float32 [rows, width]. Raises BackendFailure."""
    floats = np.empty((len(rows), width), np.float32)
    if type_ == 0:
        floats[:] = rows.view(np.float32)
        return floats
    to_float = _traits(type_).contents.to_float
    if not to_float:
        what = f"llama.cpp cannot read tensors of type {type_}"
        raise BackendFailure(what, hint="use a file of another quantisation")
    rows = np.ascontiguousarray(rows)
    to_float(rows.ctypes.data, floats.ctypes.data, floats.size)
    return floats


class EmbeddingBatch(Batch):
    def __init__(self, size: int, table: TokenTable, sequences: int) -> None:
        super().__init__(size, columns=table.width, tokens=False, sequences=sequences)
        self._table = table

    def fill_all(self, stretches: Sequence[Stretch], embeddings: np.ndarray | None = None) -> Any:
        table, tokens = self._table, [token for stretch in stretches for token in stretch.tokens]
        read = as_floats(table.embeddings[np.asarray(tokens)], table.type, table.width)
        return super().fill_all(stretches, read * np.float32(table.scale))


class TrimmedRows:
    """A reader of the `k` largest logits in each row of a model with a trimmed vocabulary."""

    def __init__(self, rows: FullRows, token_ids: np.ndarray, k: int) -> None:
        """`token_ids`: for each index of a row, its token id in the full vocabulary."""
        self._rows, self._ids, self._k = rows, token_ids, k

    def read(self, context: Any, count: int) -> Sequence[Row]:
        return [self._read(row) for row in self._rows.read(context, count)]

    def _read(self, row: Row) -> Candidates:
        if isinstance(row, Candidates):
            return Candidates(self._ids[row.ids], row.logits)
        k = min(self._k, len(row))
        kept = np.argpartition(row, -k)[-k:] if k < len(row) else np.arange(len(row))
        return Candidates(self._ids[kept], row[kept])
