"""Earlier texts: copies in memory, and on disk where that saves time, written while nobody waits."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from statistics import median_low
from time import perf_counter

import numpy as np

from localspec.caches.state_file import Facts, Stored, packed, unpacked
from localspec.caches.store import Store
from localspec.caches.writer import later
from localspec.llama.states import Checkpoint, SavedText
from localspec.sampler.passes import standing

log = logging.getLogger(__name__)

LEAST = 512  # tokens
_FEW = 64  # tokens: too few to measure, and to write a text again for
LEAST_SECONDS = 0.25  # a shorter wait is no nuisance
SHARE = 0.01  # of the time, for copies and writes while the pair is loaded
_ASSUMED = 5e8  # bytes per second of a disk, until it is measured
_LOOKED_AT = 64  # texts: others begin less alike
_LATEST = 9  # measurements: their middle counts
FORGOTTEN_SECONDS = 600.0  # older measurements, and failed writes


class StoredTexts:
    """The stored texts of one model, as it is loaded."""

    def __init__(
        self, store: Store, facts: Facts, *, capacity: int, clock: Callable[[], float] = perf_counter
    ) -> None:
        """`facts`: key, model and kind of the cache. `capacity`: its tokens. Holds the store's budget at once."""
        self._store, self._facts, self._capacity = store, facts, capacity
        self._clock, self._began = clock, clock()
        self._spent = 0.0  # seconds of copies and writes
        self._prefill: deque[float] = deque(maxlen=_LATEST)  # seconds a token
        self._disk: deque[tuple[float, float]] = deque(maxlen=_LATEST)  # when, and seconds a byte
        self._given: list[list[int]] = []  # texts on their way to the disk
        self._failed: float | None = None  # when a write did, last
        later(partial(self._reported, store.clean))

    def measured(self, tokens: int, seconds: float) -> None:
        """So long the model took to read some tokens of a prompt."""
        if tokens >= _FEW:
            self._prefill.append(seconds / tokens)

    def find(self, tokens: Sequence[int], held: int) -> SavedText | None:
        """The text that saves most time for these tokens, some of them held by a cache; None where none does."""
        if len(tokens) - held < LEAST:
            return None
        # The last token is read in any case, for its row.
        near = list(islice(self._store.nearest(self._facts.key, packed(tokens[:-1])), _LOOKED_AT))
        saves = {id(stored): self._saves(stored, stored.usable(shared) - held) for stored, shared in near}
        for stored, _ in sorted(near, key=lambda each: -saves[id(each[0])]):
            if saves[id(stored)] <= 0:
                return None
            began = self._clock()
            if parts := self._store.read(stored):
                self._disk.append((began, (self._clock() - began) / stored.bytes))
                return self._text(stored, parts)
        return None

    def wants(self, tokens: Sequence[int], size: int, *, resting: bool = True) -> bool:
        """Whether a text of this size in bytes is worth writing; `resting`: as long as writing took little time."""
        failed = self._failed is not None and self._clock() - self._failed < FORGOTTEN_SECONDS
        if failed or len(tokens) < LEAST or any(given == tokens for given in self._given):
            return False
        near = islice(self._store.nearest(self._facts.key, packed(tokens)), _LOOKED_AT)
        new = len(tokens) - max((stored.usable(shared) for stored, shared in near), default=0)
        saved, cost = new * self._token_seconds(0.0), size * self._byte_seconds
        due = not resting or self._spent + cost <= SHARE * (self._clock() - self._began)
        return new >= _FEW and due and saved >= LEAST_SECONDS and saved > 2 * cost

    def add(self, text: SavedText, copying_seconds: float = 0.0) -> None:
        """Write a text, beside everything else."""
        self._spent += copying_seconds
        self._given.append(text.tokens)
        later(partial(self._reported, partial(self._write, text)))

    def _reported(self, write: Callable[[], None]) -> None:
        """Perform it; the first one that fails says so: nobody reads the results of writes."""
        try:
            write()
        except Exception as error:  # noqa: BLE001 - the thread that writes would swallow it
            if self._failed is None:
                mistake = f"localspec made a mistake, please report it ({type(error).__name__}: {error})"
                log.warning("caches cannot be stored: %s", error if isinstance(error, OSError) else mistake)
            self._failed = self._clock()

    def _write(self, text: SavedText) -> None:
        marks = text.checkpoints
        parts = [text.state, *(mark.state for mark in marks)]
        if text.companion:
            parts.append(text.companion.packed())
        facts = replace(
            self._facts,
            marks=tuple(mark.length for mark in marks),
            parts=tuple(map(len, parts)),
            token_seconds=self._token_seconds(0.0),
        )
        began = self._clock()
        try:
            if self._store.write(packed(text.tokens), facts, parts):
                self._disk.append((began, (self._clock() - began) / sum(facts.parts)))
        finally:
            self._spent += self._clock() - began
            self._given.remove(text.tokens)

    def _text(self, stored: Stored, parts: list[np.ndarray]) -> SavedText:
        state, *others = parts
        marks = stored.facts.marks
        kept = [Checkpoint(length, part, lasting=True) for length, part in zip(marks, others, strict=False)]
        beside = others[len(marks)] if len(others) > len(marks) else None
        return SavedText(unpacked(stored.tokens), state, kept, beside)

    def _saves(self, stored: Stored, tokens: int) -> float:
        """Seconds saved by this number of tokens of a stored text; 0 where they are too few."""
        saved, cost = (
            tokens * self._token_seconds(stored.facts.token_seconds),
            stored.bytes * self._byte_seconds,
        )
        if tokens < LEAST or stored.length > self._capacity or saved <= 2 * cost:
            return 0.0
        return saved - cost if saved - cost >= LEAST_SECONDS else 0.0

    def _token_seconds(self, otherwise: float) -> float:
        return median_low(known) if (known := tuple(self._prefill)) else otherwise

    @property
    def _byte_seconds(self) -> float:
        """One measurement may be wild, and old ones are forgotten: a disk that seems slow is not asked."""
        now = self._clock()
        known = (seconds for when, seconds in tuple(self._disk) if now - when < FORGOTTEN_SECONDS)
        return median_low([1 / _ASSUMED, *known])


class SavedTexts:
    """At most `budget` bytes of texts. Branches of other texts are dropped first, then the oldest text.

    A disk takes what it finds worth it, and brings back texts of earlier processes.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.disk: StoredTexts | None = None
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
