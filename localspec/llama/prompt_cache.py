"""Copies of a sequence's state: checkpoints to step back to, and prompt caches in memory and on disk."""

import ctypes
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median_low
from threading import RLock
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from localspec.caches.store import Facts, Store, Stored, later, packed, unpacked
from localspec.llama.library import lib
from localspec.sampler.passes import begins_alike, common_prefix_length

log = logging.getLogger(__name__)

_PARTIAL = lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY  # copy only the part that llama.cpp cannot roll back
_BYTES = ctypes.POINTER(ctypes.c_uint8)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a sequence after its first `length` tokens."""

    length: int
    state: np.ndarray  # uint8
    lasting: bool  # whether it stays when the next checkpoint is taken


class Checkpoints:
    """The checkpoints of one sequence, together at most `budget` bytes."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._kept: list[Checkpoint] = []  # the shortest first

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
        while size <= self._budget < self.bytes + size:  # first make room in the budget for the new copy
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

    busy: RLock  # locked while the head runs; lock it before `Cache.calling`, to avoid a deadlock

    def saved(self) -> Any: ...  # returns a copy of the state, or None if llama.cpp cannot copy it

    def restore(self, saved: Any) -> None: ...  # accepts a copy from `saved`, or its bytes from the disk


@dataclass(frozen=True, slots=True)
class PromptState:
    tokens: list[int]
    state: np.ndarray  # uint8
    checkpoints: list[Checkpoint]
    head_state: Any
    padding: int = 0  # number of padding tokens in `state` after `tokens`
    conversation: str = ""  # name of the stored conversation with these tokens; "": none

    @property
    def bytes(self) -> int:
        beside = self.head_state.bytes if self.head_state else 0
        return len(self.state) + sum(len(each.state) for each in self.checkpoints) + int(beside)


WORTH_A_COPY = 256  # a copy must save the prefill of this many tokens; prefill of fewer is as fast as a copy
LEAST = 512  # minimum tokens of a state on disk, to write it or to read it
_FEW = 64  # minimum tokens of a measured prefill; a write must also add this many tokens to those on disk
LEAST_SECONDS = 0.25  # a state on disk must save this much prefill time; a smaller gain is not noticeable
SHARE = 0.01  # copies and writes may take at most this share of the time since the load
_ASSUMED = 5e8  # assumed bytes per second of a disk that is not measured yet
_LATEST = 9  # number of newest measurements whose median is used
FORGOTTEN_SECONDS = 600.0  # age from which a measured disk speed or a failed write is ignored


class DiskPromptCache:
    def __init__(self, store: Store, facts: Facts, *, capacity: int, everything: bool = False) -> None:
        """`everything`: whether to also write states that belong to no stored conversation."""
        self._store, self._facts, self._capacity, self._everything = store, facts, capacity, everything
        self._clock, self._began = perf_counter, perf_counter()
        self._spent = 0.0  # total seconds of copies and writes
        self._prefill: deque[float] = deque(maxlen=_LATEST)  # seconds of prefill per token
        self._disk: deque[tuple[float, float]] = deque(maxlen=_LATEST)  # (clock time, seconds per byte)
        self._given: dict[int, PromptState] = {}  # states that wait to be written, by id()
        self._failed: float | None = None  # time of the last failed write
        later(partial(self._reported, store.clean))

    def measured(self, tokens: int, seconds: float) -> None:
        if tokens >= _FEW:
            self._prefill.append(seconds / tokens)

    @property
    def given(self) -> Sequence[PromptState]:
        return tuple(self._given.values())

    def find(self, tokens: Sequence[int], cached: int, most_bytes: int) -> PromptState | None:
        """Return the state on disk that saves the most time, or None. `cached`: number of tokens in memory."""
        if len(tokens) - cached < LEAST:
            return None
        # The last token of a prompt is decoded in any case, because its row is needed.
        near = self._store.nearest(self._facts.key, packed(tokens[:-1]))
        near = [each for each in near if each[0].bytes <= most_bytes]
        saves = {id(stored): self._saves(stored, stored.usable(shared) - cached) for stored, shared in near}
        for stored, _ in sorted(near, key=lambda each: -saves[id(each[0])]):
            if saves[id(stored)] <= 0:
                return None
            began = self._clock()
            if parts := self._store.read(stored):
                self._disk.append((began, (self._clock() - began) / stored.bytes))
                state, *others = parts
                marks = stored.facts.marks
                kept = [Checkpoint(*pair, lasting=True) for pair in zip(marks, others, strict=False)]
                beside = others[len(marks)] if len(others) > len(marks) else None
                return PromptState(unpacked(stored.tokens), state, kept, beside)
        return None

    def wants(self, tokens: Sequence[int], size: int, conversation: str, *, resting: bool = True) -> bool:
        """Return whether to write a state (`size` bytes) of `tokens`. `resting`: whether SHARE limits writes."""
        if not (conversation or self._everything):
            return False
        failed = self._failed is not None and self._clock() - self._failed < FORGOTTEN_SECONDS
        if failed or len(tokens) < LEAST or any(given.tokens == tokens for given in self.given):
            return False
        near = self._store.nearest(self._facts.key, packed(tokens))
        new = len(tokens) - max((stored.usable(shared) for stored, shared in near), default=0)
        saved, cost = new * self._token_seconds(0.0), size * self._byte_seconds
        due = not resting or self._spent + cost <= SHARE * (self._clock() - self._began)
        return new >= _FEW and due and saved >= LEAST_SECONDS and saved > 2 * cost

    def add(self, text: PromptState, copying_seconds: float = 0.0) -> None:
        self._spent += copying_seconds
        self._given[id(text)] = text
        later(partial(self._reported, partial(self._write, text)))

    def _reported(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:  # noqa: BLE001 - the thread that writes would swallow it
            if self._failed is None:
                bug = f"localspec made a mistake, please report it ({type(error).__name__}: {error})"
                log.warning("prompt caches are not stored: %s", error if isinstance(error, OSError) else bug)
            self._failed = self._clock()

    def _write(self, text: PromptState) -> None:
        parts = [text.state, *(mark.state for mark in text.checkpoints)]
        if text.head_state:
            parts.append(text.head_state.packed())
        marks, sizes = tuple(mark.length for mark in text.checkpoints), tuple(map(len, parts))
        facts = replace(self._facts, marks=marks, parts=sizes, conversation=text.conversation)
        facts = replace(facts, token_seconds=self._token_seconds(0.0))
        began = self._clock()
        try:
            if self._store.write(packed(text.tokens), facts, parts):
                self._disk.append((began, (self._clock() - began) / sum(facts.parts)))
        finally:
            self._spent += self._clock() - began
            self._given.pop(id(text), None)

    def _saves(self, stored: Stored, tokens: int) -> float:
        saved = tokens * self._token_seconds(stored.facts.token_seconds)
        cost = stored.bytes * self._byte_seconds
        if tokens < LEAST or stored.length > self._capacity or saved <= 2 * cost:
            return 0.0
        return saved - cost if saved - cost >= LEAST_SECONDS else 0.0

    def _token_seconds(self, otherwise: float) -> float:
        return median_low(known) if (known := tuple(self._prefill)) else otherwise

    @property
    def _byte_seconds(self) -> float:
        # Ignore old measurements: a disk that seemed slow is not used, so no newer measurement could correct them.
        now = self._clock()
        known = (seconds for when, seconds in tuple(self._disk) if now - when < FORGOTTEN_SECONDS)
        return median_low([1 / _ASSUMED, *known])


_Copied = Callable[[], PromptState | None]


class PromptCache:
    """Saved states in memory. Together with states that wait to be written, they have at most `budget` bytes."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.disk: DiskPromptCache | None = None
        self._saved: list[PromptState] = []

    def save(self, text: PromptState) -> None:
        """Save a state. Drop states whose tokens are a prefix of its tokens, and others to meet the budget."""
        kept = (s for s in self._saved if not begins_alike(s.tokens, text.tokens, len(s.tokens)))
        self._saved = [*kept, text]
        while self._saved and self._bytes > self.budget:
            dropped = self._saved.pop(self._least_useful())
            waiting = sum(given.bytes for given in self.disk.given) if self.disk else 0
            # The dropped state is written to the disk only if the queue of writes fits into the budget.
            if self.disk and waiting + dropped.bytes + text.bytes <= self.budget and self._wants(dropped):
                self.disk.add(dropped)

    def take(self, tokens: Sequence[int], at_least: int) -> PromptState | None:
        """Remove and return the state with the longest common prefix, if the prefix has `at_least` tokens."""
        shared = self._shared(tokens, at_least)
        most = max(shared, default=0)
        return self._saved.pop(shared.index(most)) if most >= max(at_least, 1) else None

    def from_disk(self, tokens: Sequence[int], cached: int) -> PromptState | None:
        """Return a state on disk if it saves time, else None. `cached`: how many of `tokens` a slot has."""
        if not self.disk or len(tokens) - cached < LEAST:
            return None
        return self.disk.find(tokens, max([cached, *self._shared(tokens, cached)]), self.budget)

    def _shared(self, tokens: Sequence[int], at_least: int) -> list[int]:
        """Return the common prefix length of each saved state, or 0 for one that is less than `at_least`."""
        alike = (begins_alike(saved.tokens, tokens, at_least) for saved in self._saved)
        return [
            common_prefix_length(saved.tokens, at_least, tokens[at_least:]) if same else 0
            for saved, same in zip(self._saved, alike, strict=True)
        ]

    def wants(self, tokens: Sequence[int], size: int, conversation: str) -> bool:
        """Return whether a slot's state of `size` bytes, or any saved state, should be written to the disk."""
        if not (self.disk and self.budget):
            return False
        wanted = self.disk.wants(tokens, size, conversation, resting=False)
        return wanted or any(self._wants(saved, resting=False) for saved in self._saved)

    def _wants(self, text: PromptState, *, resting: bool = True) -> bool:
        disk = self.disk
        return disk is not None and disk.wants(text.tokens, text.bytes, text.conversation, resting=resting)

    @property
    def _bytes(self) -> int:
        given = self.disk.given if self.disk else ()
        return sum({id(text): text.bytes for text in (*self._saved, *given)}.values())

    def store(
        self, tokens: Sequence[int], size: int, conversation: str, copied: _Copied, *, resting: bool
    ) -> None:
        """Queue writes of the saved states and of a slot's, if `disk.wants` them. `copied` copies the slot's state."""
        if not (self.disk and self.budget):
            return
        for saved in self._saved:
            if self._wants(saved, resting=resting):
                self.disk.add(saved)
        if self.disk.wants(tokens, size, conversation, resting=resting):
            while self._saved and not resting and self._bytes + size > self.budget:
                self._saved.pop(self._least_useful())
            if self._bytes + size > self.budget:
                return
            began = perf_counter()
            if copy := copied():
                self.disk.add(copy, perf_counter() - began)

    def _least_useful(self) -> int:
        for index, saved in enumerate(self._saved):
            half = -(-len(saved.tokens) // 2)
            if any(begins_alike(saved.tokens, newer.tokens, half) for newer in self._saved[index + 1 :]):
                return index
        return 0
