"""Reads what a decode left in llama.cpp's output buffers, without copying it."""

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from localspec.errors import BackendFailure
from localspec.llama.library import symbol
from localspec.passes import Candidates

_get_logits = symbol("llama_get_logits", ctypes.c_void_p, [ctypes.c_void_p])
_ith = [ctypes.c_void_p, ctypes.c_int32]
_get_top_ids = symbol("llama_get_sampled_candidates_ith", ctypes.c_void_p, _ith)
_get_top_ids_count = symbol("llama_get_sampled_candidates_count_ith", ctypes.c_uint32, _ith)
_get_top_logits = symbol("llama_get_sampled_logits_ith", ctypes.c_void_p, _ith)


class FullRows:
    """Rows over the whole vocabulary, or its beginning: read-only views that are valid until the next decode."""

    def __init__(self, vocab_size: int, shared: int) -> None:
        """`shared`: tokens that a row holds, counted from the first."""
        self._vocab_size = vocab_size
        self._shared = shared
        self._known: dict[tuple[int, int], tuple[np.ndarray, tuple[np.ndarray, ...]]] = {}

    def read(self, context: Any, count: int) -> tuple[np.ndarray, ...]:  # noqa: ANN401  a C pointer
        """Wait for the computation and view its last `count` rows."""
        address = _get_logits(context)
        if (found := self._known.get((address, count))) is None:
            found = self._view(address, count)
        whole, rows = found
        _check_finite(whole[-1])
        return rows

    def _view(self, address: int, count: int) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        if len(self._known) > 64:  # the buffer moved often: forget where it was
            self._known.clear()
        whole = _array(address, ctypes.c_float, (count, self._shared), self._vocab_size)
        return self._known.setdefault((address, count), (whole, tuple(whole)))


class TopRows:
    """Only the k largest logits of every row, chosen on the device: 8 k bytes a row instead of 4 a token."""

    def __init__(self, vocab_size: int, shared: int) -> None:
        """`shared`: tokens that a row may hold, counted from the first."""
        self._vocab_size = vocab_size
        self._shared = shared

    def read(self, context: Any, count: int) -> Sequence[Candidates]:  # noqa: ANN401  a C pointer
        """Wait for the computation and view its rows; llama_get_logits would now return something else."""
        k = _get_top_ids_count(context, -count)
        if not k:
            raise BackendFailure("llama.cpp returned no candidates", hint="run it on the CPU: --gpu-layers 0")
        ids = _array(_get_top_ids(context, -count), ctypes.c_int32, (count, k), self._vocab_size)
        logits = _array(_get_top_logits(context, -count), ctypes.c_float, (count, k), self._vocab_size)
        _check_finite(logits[-1])
        return [self._row(ids[i], logits[i]) for i in range(count)]

    def _row(self, ids: np.ndarray, logits: np.ndarray) -> Candidates:
        if self._shared < self._vocab_size:
            known = ids < self._shared
            ids, logits = ids[known], logits[known]
        return Candidates(ids, logits)


def _array(address: int, kind: Any, shape: tuple[int, int], stride: int) -> np.ndarray:  # noqa: ANN401  ctypes types
    """A read-only view of C memory: rows of `shape`, `stride` elements apart."""
    count, width = shape
    flat = np.ctypeslib.as_array((kind * ((count - 1) * stride + width)).from_address(address))
    size = flat.itemsize
    view = np.lib.stride_tricks.as_strided(flat, shape, (stride * size, size), writeable=False)
    return view


def _check_finite(row: np.ndarray) -> None:
    """A broken row has a maximum that is NaN or infinite; -inf for single tokens is legal (masked ones).

    The last row stands for its batch: what is broken before it reaches it through the cache. The sampler chain
    looks at every row that it uses.
    """
    if not math.isfinite(row.max()):
        raise BackendFailure(
            "the model produced numbers that are not finite",
            hint="the file may be damaged, or this quantisation overflows on this device: try another one",
        )
