"""Copies of the state of a sequence in llama.cpp, and the checkpoints to step back to."""

import ctypes
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from localspec.caches.prompt_cache import Checkpoint
from localspec.llama.library import lib

_PARTIAL = lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY  # copies only what llama.cpp cannot roll back
_BYTES = ctypes.POINTER(ctypes.c_uint8)


class Checkpoints:
    """The checkpoints of one sequence, together at most `budget` bytes."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._kept: list[Checkpoint] = []  # checkpoints, the shortest first

    @property
    def bytes(self) -> int:
        return sum(len(checkpoint.state) for checkpoint in self._kept)

    def restore_newest(self, context: Any, sequence: int = 0) -> int:
        """Restore the newest checkpoint and return its length. Return 0 after a failure."""
        newest = self._kept[-1] if self._kept else None
        restored = newest and restore_state(context, newest.state, sequence, flags=_PARTIAL)
        return newest.length if newest and restored else 0

    def take(self, context: Any, length: int, sequence: int = 0, *, lasting: bool) -> None:
        """Add a checkpoint of the state after `length` tokens, and drop all checkpoints that are not lasting."""
        self._kept = [kept for kept in self._kept if kept.lasting and kept.length < length]
        size = state_bytes(context, sequence, _PARTIAL)
        while size <= self._budget < self.bytes + size:  # make room in the budget for the new copy
            del self._kept[1 if len(self._kept) > 2 else 0]
        state = state_of(context, sequence, most_bytes=self._budget, flags=_PARTIAL)
        if state is not None:
            self._kept.append(Checkpoint(length, state, lasting))

    @property
    def lasting(self) -> list[Checkpoint]:
        return [kept for kept in self._kept if kept.lasting]

    def become(self, kept: Iterable[Checkpoint]) -> None:
        self._kept = list(kept)

    def forget_after(self, length: int) -> None:
        self._kept = [kept for kept in self._kept if kept.length <= length]


def state_bytes(context: Any, sequence: int, flags: int = 0) -> int:
    return int(lib.llama_state_seq_get_size_ext(context, sequence, flags))


def state_of(
    context: Any, sequence: int = 0, *, most_bytes: int | None = None, flags: int = 0
) -> np.ndarray | None:
    """Return a copy of a sequence's state; None if it exceeds `most_bytes` or llama.cpp cannot copy it."""
    size = state_bytes(context, sequence, flags)
    if not size or (most_bytes is not None and size > most_bytes):
        return None
    state = np.empty(size, dtype=np.uint8)
    copied = lib.llama_state_seq_get_data_ext(context, state.ctypes.data_as(_BYTES), size, sequence, flags)
    return state if copied == size else None


def restore_state(context: Any, state: np.ndarray, sequence: int = 0, *, flags: int = 0) -> bool:
    data = state.ctypes.data_as(_BYTES)
    return bool(lib.llama_state_seq_set_data_ext(context, data, len(state), sequence, flags))


class HeadState(Protocol):
    """The state of a prediction head after the tokens in the target's KV cache."""

    works: bool  # whether the head reads or drafts now

    def saved(self) -> Any: ...  # returns a copy of the state, or None if llama.cpp cannot copy it

    def restore(self, saved: Any) -> None: ...  # accepts a copy from `saved`, or its bytes from the disk
