"""Copied states of a sequence: checkpoints to step back to, and whole earlier texts."""

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import RLock
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from localspec.llama.library import lib
from localspec.sampler.passes import standing

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


class Disk(Protocol):
    """Texts that outlive the process."""

    def measured(self, tokens: int, seconds: float) -> None:
        """So long the model took to read some tokens of a prompt."""

    def find(self, tokens: Sequence[int], held: int) -> SavedText | None:
        """The text that saves most time for these tokens, some of them held by a cache; None where none does."""

    def wants(self, tokens: Sequence[int], size: int, *, resting: bool = True) -> bool:
        """Whether a text of this size in bytes is worth writing; `resting`: as long as writing took little time."""

    def add(self, text: SavedText, copying_seconds: float = 0.0) -> None:
        """Write a text, beside everything else."""


class SavedTexts:
    """At most `budget` bytes of texts. Branches of other texts are dropped first, then the oldest text.

    A disk takes what it finds worth it, and brings back texts of earlier processes.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.disk: Disk | None = None
        self._saved: list[SavedText] = []

    def save(self, text: SavedText) -> None:
        """Keep a text, in place of its own beginnings."""
        self._saved = [
            saved for saved in self._saved if standing(saved.tokens, 0, text.tokens) < len(saved.tokens)
        ]
        self._saved.append(text)
        while sum(saved.bytes for saved in self._saved) > self.budget:
            dropped = self._saved.pop(self._least_useful())
            if self.disk and self.disk.wants(dropped.tokens, dropped.bytes):
                self.disk.add(dropped)

    def take(self, tokens: Sequence[int], at_least: int) -> SavedText | None:
        """Take out the text with the longest prefix of these tokens, `at_least` of them or more."""
        shared = [standing(saved.tokens, 0, tokens) for saved in self._saved]
        most = max(shared, default=0)
        return self._saved.pop(shared.index(most)) if most >= at_least else None

    def from_disk(self, tokens: Sequence[int], held: int) -> SavedText | None:
        """A text that saves more time than those here, where the cache holds some of these tokens."""
        if not self.disk:
            return None
        return self.disk.find(
            tokens, max([held, *(standing(saved.tokens, 0, tokens) for saved in self._saved)])
        )

    def measured(self, tokens: int, seconds: float) -> None:
        """So long the model took to read some tokens of a prompt."""
        if self.disk:
            self.disk.measured(tokens, seconds)

    def wants(self, tokens: Sequence[int], size: int) -> bool:
        """Whether the disk wants the text that the cache holds, of this size in bytes, or one of those saved."""
        if not (self.disk and self.budget):
            return False
        wants = partial(self.disk.wants, resting=False)
        return wants(tokens, size) or any(wants(saved.tokens, saved.bytes) for saved in self._saved)

    def store(
        self, tokens: Sequence[int], size: int, copied: Callable[[], SavedText | None], *, resting: bool
    ) -> None:
        """Give the disk the text that the cache holds, which `copied` copies, and those saved, where it wants them."""
        if not (self.disk and self.budget):
            return
        for saved in self._saved:
            if self.disk.wants(saved.tokens, saved.bytes, resting=resting):
                self.disk.add(saved)
        if self.disk.wants(tokens, size, resting=resting):
            began = perf_counter()
            if copy := copied():
                self.disk.add(copy, perf_counter() - began)

    def _least_useful(self) -> int:
        """The index of the oldest text that shares half of its tokens with a newer one, or of the oldest of all."""
        for index, saved in enumerate(self._saved):
            newer = self._saved[index + 1 :]
            if any(2 * standing(saved.tokens, 0, other.tokens) >= len(saved.tokens) for other in newer):
                return index
        return 0
