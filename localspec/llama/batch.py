"""One batch of tokens whose arrays belong to numpy, so that filling it costs microseconds and no C calls."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from localspec.llama.library import lib


class Batch:
    """Reused for every decode of a context; all tokens belong to sequence 0."""

    def __init__(self, size: int) -> None:
        self._tokens = np.zeros(size, np.int32)
        self._positions = np.zeros(size, np.int32)
        self._outputs = np.zeros(size, np.int8)
        self._sequence_counts = np.ones(size, np.int32)
        self._sequence = ctypes.c_int32(0)
        self._sequences = (ctypes.POINTER(ctypes.c_int32) * size)(*[ctypes.pointer(self._sequence)] * size)
        self._offsets = np.arange(size, dtype=np.int32)
        self._struct = lib.llama_batch(
            n_tokens=0,
            token=_pointer(self._tokens, ctypes.c_int32),
            embd=None,
            pos=_pointer(self._positions, ctypes.c_int32),
            n_seq_id=_pointer(self._sequence_counts, ctypes.c_int32),
            seq_id=self._sequences,
            logits=_pointer(self._outputs, ctypes.c_int8),
        )

    def fill(self, tokens: Sequence[int], position: int, rows: int) -> Any:  # noqa: ANN401  a C struct
        """The C struct for these tokens from a position on, with rows for the last `rows` of them."""
        count = len(tokens)
        self._tokens[:count] = tokens
        np.add(self._offsets[:count], position, out=self._positions[:count])
        self._outputs[:count] = 0
        self._outputs[count - rows : count] = 1
        self._struct.n_tokens = count
        return self._struct


def _pointer(array: np.ndarray, kind: Any) -> Any:  # noqa: ANN401  ctypes types
    return array.ctypes.data_as(ctypes.POINTER(kind))
