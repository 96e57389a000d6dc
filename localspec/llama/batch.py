"""Batches for llama.cpp, of tokens or of embeddings, backed by numpy."""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from localspec.errors import BackendFailure
from localspec.gguf.trimmed import TokenTable
from localspec.llama.library import lib, symbol
from localspec.llama.rows import FullRows, TopRows
from localspec.sampler.passes import Candidates


class Stretch(NamedTuple):
    """The tokens of one sequence in a batch, at the positions from `start` on, with rows for some of them."""

    sequence: int
    start: int
    tokens: Sequence[int]
    outputs: Sequence[int]  # of each token: 1 with a row, else 0


class Batch:
    """Reused for every decode of a context."""

    def __init__(
        self,
        size: int,
        *,
        columns: int = 0,
        tokens: bool = True,
        position_rows: int = 1,
        sequences: int = 1,
    ) -> None:
        """`columns`: of the embedding that comes with each token, or without `tokens` in its place; 0: none do.

        position_rows: that an embedding has, 4 where images have several; the last of them stays 0.
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

    def fill(
        self, tokens: Sequence[int], position: int, rows: int, embeddings: np.ndarray | None = None
    ) -> Any:  # noqa: ANN401  a C struct
        """The C struct for these tokens of the first sequence from a position on, with rows for the last `rows`."""
        count = len(tokens) if embeddings is None else len(embeddings)
        outputs = [0] * (count - rows) + [1] * rows
        return self.fill_all([Stretch(0, position, tokens or [0] * count, outputs)], embeddings)

    def fill_all(self, stretches: Sequence[Stretch], embeddings: np.ndarray | None = None) -> Any:  # noqa: ANN401
        """The C struct for tokens of several sequences, each in one stretch."""
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

    def __init__(self, size: int, table: TokenTable, sequences: int = 1) -> None:
        self._batch = Batch(size, columns=table.width, tokens=False, sequences=sequences)
        self._table = table

    def fill_all(self, stretches: Sequence[Stretch]) -> Any:  # noqa: ANN401  a C struct
        """As `Batch.fill_all`."""
        tokens = [token for stretch in stretches for token in stretch.tokens]
        return self._batch.fill_all(stretches, self._read(tokens))

    def _read(self, tokens: Sequence[int]) -> np.ndarray:
        table = self._table
        read: np.ndarray = as_floats(table.embeddings[np.asarray(tokens)], table.type, table.width)
        return read * np.float32(table.scale)


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
