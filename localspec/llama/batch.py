"""One batch of tokens whose arrays are reused, so that filling it costs a microsecond and no C calls."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from localspec.llama.library import lib


class Batch:
    """Reused for every decode of a context; all tokens belong to sequence 0."""

    def __init__(self, size: int, *, columns: int = 0, tokens: bool = True, position_rows: int = 1) -> None:
        """`columns`: of the embedding that comes with each token, or without `tokens` in its place; 0: none do.

        position_rows: that an embedding has, 4 where images have several; the last of them stays 0.
        """
        self._position_rows = position_rows
        self._tokens: Any = (ctypes.c_int32 * size)()
        self._positions: Any = (ctypes.c_int32 * (size * position_rows))()
        self._outputs: Any = (ctypes.c_int8 * size)()
        self._sequence_counts = (ctypes.c_int32 * size)(*[1] * size)
        self._sequence = ctypes.c_int32(0)
        self._sequences = (ctypes.POINTER(ctypes.c_int32) * size)(*[ctypes.pointer(self._sequence)] * size)
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
        """The C struct for these tokens from a position on, with rows for the last `rows` of them."""
        count = len(tokens) if embeddings is None else len(embeddings)
        self._tokens[: len(tokens)] = tokens
        along = range(position, position + count)
        for row in range(self._position_rows):
            here = [0] * count if row == 3 else along
            self._positions[row * count : (row + 1) * count] = here
        self._outputs[:count] = [0] * (count - rows) + [1] * rows
        if embeddings is not None:
            self._embeddings[:count] = embeddings
        self._struct.n_tokens = count
        return self._struct
