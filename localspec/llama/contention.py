"""Fewer threads while other programs keep the cores busy.

ggml's threads wait for each other at every matrix, spinning: where they share a core with another program, all wait for
the one that is not running. Two threads were 2 to 25 times slower than one on two cores, beside one to eight busy
processes. How much processor time a pass was given tells at once whether its threads had their cores.
"""

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

from localspec.llama.library import lib
from localspec.llama.threads import usable_cores

CROWDED = (
    0.75  # of the processor time that its threads could use: a pass that was given less shared its cores
)
ALONE = 0.9  # a pass that was given so much did not
NOTICED_PASSES, NOTICED_SECONDS = 3, 0.25  # crowded ones in a row, whichever comes first
# Windows counts processor time in steps of 16 ms.
LEAST_SECONDS = 0.1 if sys.platform == "win32" else 0.0
NARROW = 8  # tokens: no wider pass is a try
WAIT_SECONDS, WAIT_FACTOR = 1.0, 25.0  # until the next try, and at least so many times what the last one took
TRIES = 3  # passes in a row that were alone, before more threads stay
COMPARED = 3  # passes after which fewer threads have to be the faster ones
USELESS_SECONDS = 60.0  # without another attempt, where they were not
STALE_SECONDS = 2.0  # without a pass: other programs may have begun or ended since


@dataclass(slots=True)
class Contention:
    """How many threads the next pass should use, judged by the passes of all contexts of a pair."""

    cores: int  # that the process may use
    clock: Callable[[], float] = perf_counter
    limit: int | None = None  # threads, while the cores are busy
    _crowded: list[tuple[int, float]] = field(
        default_factory=list
    )  # width and seconds of the passes in a row
    _before: dict[int, float] = field(default_factory=dict)  # those that led to the limit
    _ratios: list[float] = field(
        default_factory=list
    )  # seconds of a pass within the limit / of one of `_before`
    _alone: int = 0  # tries in a row
    _try_at: float = 0.0
    _deaf_until: float = 0.0
    _latest: float = -math.inf

    def threads(self, usual: int, width: int) -> int:
        """For a pass over `width` tokens of a context that decodes with `usual` ones on idle cores."""
        if self.limit is None or usual <= self.limit:
            return usual
        trying = width <= NARROW and (self._stale or self.clock() >= self._try_at)
        return (self.limit + usual + 1) // 2 if trying else self.limit

    @property
    def unsure(self) -> bool:
        """Whether the next pass should be a narrow one: a wide one with too many threads can take a minute."""
        return self._stale or bool(self._crowded) or self._alone > 0

    def learn(self, threads: int, usual: int, width: int, seconds: float, processor_seconds: float) -> None:
        """A pass with so many threads, and the processor time that they were given."""
        self._latest = self.clock()
        share = processor_seconds / max(threads * seconds, 1e-9)
        if self.limit is None:
            self._learn_unlimited(threads, width, seconds, share)
        elif threads > self.limit:
            self._learn_try(threads, usual, seconds, share)
        else:
            self._learn_limited(width, seconds, share)

    def _learn_unlimited(self, threads: int, width: int, seconds: float, share: float) -> None:
        if share >= CROWDED or self._latest < self._deaf_until:
            self._crowded.clear()
            return
        self._crowded.append((width, seconds))
        spent = sum(seconds for _, seconds in self._crowded)
        if spent >= LEAST_SECONDS and (len(self._crowded) >= NOTICED_PASSES or spent >= NOTICED_SECONDS):
            others = self.cores / max(share, 0.01) - threads  # where all that run share the cores equally
            self.limit = min(max(round(self.cores - others), 1), threads - 1)
            self._before = dict(self._crowded)
            self._ratios.clear()
            self._crowded.clear()
            self._wait(WAIT_SECONDS)

    def _learn_try(self, threads: int, usual: int, seconds: float, share: float) -> None:
        self._alone = self._alone + 1 if share >= ALONE else 0
        if not self._alone:
            self._wait(max(WAIT_SECONDS, WAIT_FACTOR * seconds))
        elif self._alone == TRIES:
            self._lift()
            self.limit = None if threads == usual else threads

    def _learn_limited(self, width: int, seconds: float, share: float) -> None:
        if share < CROWDED:
            self._wait(WAIT_SECONDS)  # more threads would have even less
        if width in self._before and len(self._ratios) < COMPARED:
            self._ratios.append(seconds / self._before[width])
            if len(self._ratios) == COMPARED and median(self._ratios) > 1.0:
                self._lift()
                self._deaf_until = self._latest + USELESS_SECONDS

    @property
    def _stale(self) -> bool:
        return self.clock() - self._latest > STALE_SECONDS

    def _wait(self, seconds: float) -> None:
        self._alone = 0
        self._try_at = self._latest + seconds

    def _lift(self) -> None:
        self.limit = None
        self._alone = 0
        self._crowded.clear()


class Threads:
    """The threads that one context decodes with: as many as usual, or fewer after `give_way`."""

    def __init__(self, usual: int) -> None:
        self.usual = usual
        self.now = usual  # in the latest pass
        self.fixed = False  # as many in every pass: their number can change the last bits of a row
        self.contention: Contention | None = None

    @property
    def unsure(self) -> bool:
        """Whether the next pass should be a narrow one."""
        return self.contention is not None and self.contention.unsure

    def choose(self, context: Any, width: int) -> None:  # noqa: ANN401  a C pointer
        """Set them for a pass over `width` tokens."""
        wanted = self.usual
        if self.contention and not self.fixed:
            wanted = self.contention.threads(self.usual, width)
        if wanted != self.now:
            lib.llama_set_n_threads(context, wanted, wanted)
            self.now = wanted

    def learn(self, width: int, seconds: float, processor_seconds: float) -> None:
        """What the pass took."""
        if self.contention:
            self.contention.learn(self.now, self.usual, width, seconds, processor_seconds)


def give_way(contexts: Iterable[Threads]) -> None:
    """From now on they use fewer threads while other programs keep the cores busy; what one meets, all know."""
    contention = Contention(usable_cores())
    for threads in contexts:
        threads.contention = contention if threads.usual > 1 else None
