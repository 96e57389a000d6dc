"""Prompt caches: copies of the states of slots, in memory and on disk."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from localspec.caches.store import Facts, Store, later, packed, unpacked
from localspec.sampler.passes import begins_alike, common_prefix_length

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a sequence after its first `length` tokens."""

    length: int
    state: np.ndarray  # uint8
    lasting: bool  # whether the next checkpoint leaves this one in place


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


WORTH_A_COPY = 256  # a copy of a state must save the prefill of this many tokens to be faster
LEAST = 512  # a state is written to the disk, or read from it, for at least this many new tokens
_PART = 8  # at least 1 / _PART of a state's tokens must be new, because a write stores the whole state


class DiskPromptCache:
    def __init__(self, store: Store, facts: Facts, *, capacity: int, everything: bool = False) -> None:
        """`everything`: whether to also write states that belong to no stored conversation."""
        self._store, self._facts, self._capacity, self._everything = store, facts, capacity, everything
        self._given: dict[int, PromptState] = {}  # states that wait to be written to the disk, by their id()
        self._failed = False  # whether a write failed; after that, no state is written
        later(partial(self._reported, store.clean))

    def has_states(self) -> bool:
        """Return whether a state of this model is stored."""
        return bool(self._given) or self._store.has_model(self._facts.model)

    @property
    def given(self) -> Sequence[PromptState]:
        return tuple(self._given.values())

    def find(self, tokens: Sequence[int], cached: int, most_bytes: int) -> PromptState | None:
        """Return the state on disk that saves the most tokens, or None. `cached`: number of tokens in memory."""
        # Search without the last token, which is decoded in any case, because its row is needed.
        near = self._store.nearest(self._facts.key, packed(tokens[:-1]))
        fitting = [each for each in near if each[0].bytes <= most_bytes and each[0].length <= self._capacity]
        for stored, shared in sorted(fitting, key=lambda each: -each[0].usable(each[1])):
            if stored.usable(shared) - cached < LEAST:
                return None
            if parts := self._store.read(stored):
                state, *others = parts
                marks = stored.facts.marks
                kept = [Checkpoint(*pair, lasting=True) for pair in zip(marks, others, strict=False)]
                beside = others[len(marks)] if len(others) > len(marks) else None
                return PromptState(unpacked(stored.tokens), state, kept, beside)
        return None

    def wants(self, tokens: Sequence[int], conversation: str) -> bool:
        """Return whether a state of these tokens is worth a write to the disk."""
        least = max(LEAST, len(tokens) // _PART)
        if self._failed or len(tokens) < least or not (conversation or self._everything):
            return False
        if any(given.tokens == tokens for given in self.given):
            return False
        near = self._store.nearest(self._facts.key, packed(tokens))
        return len(tokens) - max((stored.usable(shared) for stored, shared in near), default=0) >= least

    def add(self, text: PromptState) -> None:
        self._given[id(text)] = text
        later(partial(self._reported, partial(self._write, text)))

    def _reported(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:  # noqa: BLE001 - the writing thread would drop the error without a report
            if not self._failed:
                bug = f"localspec made a mistake, please report it ({type(error).__name__}: {error})"
                log.warning("prompt caches are not stored: %s", error if isinstance(error, OSError) else bug)
            self._failed = True

    def _write(self, text: PromptState) -> None:
        parts = [text.state, *(mark.state for mark in text.checkpoints)]
        if text.head_state:
            parts.append(text.head_state.packed())
        marks, sizes = tuple(mark.length for mark in text.checkpoints), tuple(map(len, parts))
        facts = replace(self._facts, marks=marks, parts=sizes, conversation=text.conversation)
        try:
            self._store.write(packed(text.tokens), facts, parts)
        finally:
            self._given.pop(id(text), None)


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
            # Write the dropped state to the disk only if all waiting writes fit into the budget.
            if self.disk and waiting + dropped.bytes + text.bytes <= self.budget and self._wants(dropped):
                self.disk.add(dropped)

    def take(self, tokens: Sequence[int], at_least: int) -> PromptState | None:
        """Remove and return the state with the longest common prefix, if the prefix has `at_least` tokens."""
        shared = self._shared(tokens, at_least)
        most = max(shared, default=0)
        return self._saved.pop(shared.index(most)) if most >= max(at_least, 1) else None

    def from_disk(self, tokens: Sequence[int], cached: int) -> PromptState | None:
        """Return a state on disk if this state saves time, else None. `cached`: how many of `tokens` a slot has."""
        if not self.disk or len(tokens) - cached < LEAST:
            return None
        return self.disk.find(tokens, max([cached, *self._shared(tokens, cached)]), self.budget)

    def _shared(self, tokens: Sequence[int], at_least: int) -> list[int]:
        """Return the common prefix length of each saved state, or 0 where it is shorter than `at_least`."""
        alike = (begins_alike(saved.tokens, tokens, at_least) for saved in self._saved)
        return [
            common_prefix_length(saved.tokens, at_least, tokens[at_least:]) if same else 0
            for saved, same in zip(self._saved, alike, strict=True)
        ]

    def wants(self, tokens: Sequence[int], conversation: str) -> bool:
        """Return whether a slot's state, or any saved state, should be written to the disk."""
        if not (self.disk and self.budget):
            return False
        return self.disk.wants(tokens, conversation) or any(map(self._wants, self._saved))

    def _wants(self, text: PromptState) -> bool:
        return self.disk is not None and self.disk.wants(text.tokens, text.conversation)

    @property
    def _bytes(self) -> int:
        given = self.disk.given if self.disk else ()
        return sum({id(text): text.bytes for text in (*self._saved, *given)}.values())

    def store(self, tokens: Sequence[int], size: int, conversation: str, copied: _Copied) -> None:
        """Queue writes of the saved states and of a slot's, if `disk.wants` them. `copied`: copies the slot's state."""
        if not (self.disk and self.budget):
            return
        for saved in filter(self._wants, self._saved):
            self.disk.add(saved)
        if self.disk.wants(tokens, conversation):
            while self._saved and self._bytes + size > self.budget:
                self._saved.pop(self._least_useful())
            if self._bytes + size <= self.budget and (copy := copied()):
                self.disk.add(copy)

    def _least_useful(self) -> int:
        for index, saved in enumerate(self._saved):
            half = -(-len(saved.tokens) // 2)
            if any(begins_alike(saved.tokens, newer.tokens, half) for newer in self._saved[index + 1 :]):
                return index
        return 0
