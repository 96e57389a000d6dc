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

CROWDED = 0.75  # of the time that its threads could use: a pass that was given less shared its cores
JUDGED_PASSES, JUDGED_SECONDS = 3, 0.25  # with all threads, whichever comes first
# Windows counts processor time in steps of 16 ms.
LEAST_SECONDS = 0.1 if sys.platform == "win32" else 0.0
NARROW = 8  # tokens: no wider pass is a try
WAIT_SECONDS, WAIT_FACTOR = 1.0, 25.0  # until the next try, and at least so many times what the last one took
COMPARED = 3  # passes after which fewer threads have to be the faster ones
USELESS_SECONDS = 60.0  # without another attempt, where they were not


@dataclass(slots=True)
class Contention:
    """How many threads the next pass should use, judged by the passes of all contexts of a pair."""

    cores: int  # that the process may use
    clock: Callable[[], float] = perf_counter
    limit: int | None = None  # threads, while the cores are busy
    _judged: list[tuple[int, float]] = field(default_factory=list)  # width and seconds, with all threads
    _usable: float = 0.0  # processor seconds in those
    _given: float = 0.0  # of them
    _before: dict[int, float] = field(default_factory=dict)  # seconds by width, when the limit was set
    _ratios: list[float] = field(default_factory=list)  # seconds within the limit / before
    _deaf_until: float = -math.inf  # no try and no judgement

    def threads(self, usual: int, width: int) -> int:
        """For a pass over `width` tokens of a context that decodes with `usual` ones on idle cores."""
        if self.limit is None or (width <= NARROW and self.clock() >= self._deaf_until):
            return usual
        return min(usual, self.limit)

    def learn(self, threads: int, width: int, seconds: float, processor_seconds: float) -> None:
        """A pass with so many threads, and the processor time that they were given."""
        if self.limit is not None and threads <= self.limit:
            self._compare(width, seconds)
        elif self.clock() >= self._deaf_until:
            self._judged.append((width, seconds))
            self._usable += threads * seconds
            self._given += processor_seconds
            spent = sum(seconds for _, seconds in self._judged)
            if spent >= LEAST_SECONDS and (len(self._judged) >= JUDGED_PASSES or spent >= JUDGED_SECONDS):
                self._judge(threads, spent)

    def _judge(self, threads: int, spent: float) -> None:
        share = max(self._given / max(self._usable, 1e-9), 0.01)
        before = dict(self._judged)
        self._lift()
        if share < CROWDED:
            others = self.cores / share - threads  # where all that run share the cores equally
            self.limit = min(max(round(self.cores - others), 1), threads - 1)
            self._before = before
            self._deaf_until = self.clock() + max(WAIT_SECONDS, WAIT_FACTOR * spent)

    def _compare(self, width: int, seconds: float) -> None:
        if width in self._before and len(self._ratios) < COMPARED:
            self._ratios.append(seconds / self._before[width])
            if len(self._ratios) == COMPARED and median(self._ratios) > 1.0:
                self._lift()
                self._deaf_until = self.clock() + USELESS_SECONDS

    def _lift(self) -> None:
        self.limit = None
        self._usable = self._given = 0.0
        self._judged.clear()
        self._ratios.clear()


class Threads:
    """The threads that one context decodes with: as many as usual, or fewer after `give_way`."""

    def __init__(self, usual: int) -> None:
        self.usual = usual
        self.now = usual  # in the latest pass
        self.fixed = False  # as many in every pass: their number can change the last bits of a row
        self.contention: Contention | None = None

    @property
    def crowded(self) -> bool:
        """Whether other programs keep the cores busy."""
        return self.contention is not None and self.contention.limit is not None

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
            self.contention.learn(self.now, width, seconds, processor_seconds)


def give_way(contexts: Iterable[Threads]) -> None:
    """From now on they use fewer threads while other programs keep the cores busy; what one meets, all know."""
    contention = Contention(usable_cores())
    for threads in contexts:
        threads.contention = contention if threads.usual > 1 else None
