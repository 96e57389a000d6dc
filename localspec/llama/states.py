"""Copied states of a sequence: checkpoints to step back to, and whole earlier texts."""

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from threading import RLock
from typing import Any, Protocol

import numpy as np

from localspec.llama.library import lib

_PARTIAL = lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY  # the lasting part stays in the attention cache
_BYTES = ctypes.POINTER(ctypes.c_uint8)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a sequence after its first `length` tokens."""

    length: int
    state: np.ndarray  # uint8
    lasting: bool


class Checkpoints:
    """The checkpoints of one sequence: at most `budget` bytes.

    The oldest are dropped, the first only if no other but the newest is left: other conversations may begin with it.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._kept: list[Checkpoint] = []  # by length

    @property
    def bytes(self) -> int:
        """Their bytes now."""
        return sum(len(checkpoint.state) for checkpoint in self._kept)

    def restore_newest(self, context: Any, sequence: int = 0) -> int:  # noqa: ANN401  a C pointer
        """Restore the newest state; returns its length. After a failure this is 0, and the sequence is unusable."""
        newest = self._kept[-1] if self._kept else None
        restored = newest and restore_state(context, newest.state, sequence, flags=_PARTIAL)
        return newest.length if newest and restored else 0

    def take(self, context: Any, length: int, sequence: int = 0, *, lasting: bool) -> None:  # noqa: ANN401
        """Add the present state, of `length` tokens; it replaces one that is not lasting."""
        replaced = next((kept.state for kept in self._kept if not kept.lasting), None)
        self._kept = [kept for kept in self._kept if kept.lasting and kept.length < length]
        state = state_of(context, sequence, most_bytes=self._budget, flags=_PARTIAL, into=replaced)
        if state is None:
            return
        while self.bytes + len(state) > self._budget:
            del self._kept[1 if len(self._kept) > 2 else 0]
        self._kept.append(Checkpoint(length, state, lasting))

    @property
    def lasting(self) -> list[Checkpoint]:
        """Those that a saved text takes along."""
        return [kept for kept in self._kept if kept.lasting]

    def become(self, kept: Iterable[Checkpoint]) -> None:
        """Hold those of another text."""
        self._kept = list(kept)

    def forget_after(self, length: int) -> None:
        """Drop those of more tokens: the text differs there."""
        self._kept = [kept for kept in self._kept if kept.length <= length]


def state_bytes(context: Any, sequence: int, flags: int = 0) -> int:  # noqa: ANN401  a C pointer
    """Bytes of the sequence's state."""
    return int(lib.llama_state_seq_get_size_ext(context, sequence, flags))


def state_of(
    context: Any,  # noqa: ANN401  a C pointer
    sequence: int = 0,
    *,
    most_bytes: int | None = None,
    flags: int = 0,
    into: np.ndarray | None = None,
) -> np.ndarray | None:
    """Copy the sequence's state; None if it is larger than `most` or llama.cpp cannot copy it.

    An `into` of the right size is reused: fresh memory costs more than the copy.
    """
    size = state_bytes(context, sequence, flags)
    if not size or (most_bytes is not None and size > most_bytes):
        return None
    state = into if into is not None and len(into) == size else np.empty(size, dtype=np.uint8)
    copied = lib.llama_state_seq_get_data_ext(context, _address(state), size, sequence, flags)
    return state if copied == size else None


def restore_state(context: Any, state: np.ndarray, sequence: int = 0, *, flags: int = 0) -> bool:  # noqa: ANN401
    return bool(lib.llama_state_seq_set_data_ext(context, _address(state), len(state), sequence, flags))


def _address(state: np.ndarray) -> Any:  # noqa: ANN401  a C pointer
    return state.ctypes.data_as(_BYTES)


LEAST = 256  # tokens: fewer are read again about as fast as a state is copied


class Companion(Protocol):
    """A reader of the same text with its own state: a prediction head."""

    busy: RLock  # held while it reads or guesses, and taken before locks around llama.cpp

    def saved(self) -> Any:  # noqa: ANN401  a copy that knows its `bytes`
        """A copy of its state; None without one worth keeping."""

    def restore(self, saved: Any) -> None:  # noqa: ANN401  what `saved` returned, or its `packed` bytes
        """Bring a copy back."""


@dataclass(frozen=True, slots=True)
class SavedText:
    """A cache's content: its tokens, whole state, checkpoints, and its companion's state."""

    tokens: list[int]
    state: np.ndarray  # uint8
    checkpoints: list[Checkpoint]
    companion: Any
    padding: int = 0  # tokens behind the text, in the state only

    @property
    def bytes(self) -> int:
        beside = self.companion.bytes if self.companion else 0
        return len(self.state) + sum(len(each.state) for each in self.checkpoints) + int(beside)
