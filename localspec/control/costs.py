"""The cost of a cycle, from a stored table that every later pass corrects."""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil, inf, isfinite, log2

from localspec.control.timing import MEMORY, SEVERAL, middle

# Smaller estimated costs, in plain steps, are not compared with measured ones, because the ratio would be mostly noise.
LEAST_ESTIMATE = 1e-3
SLACK = 1.25  # a pass was disturbed if it took this many times as long as a wider one
STALE_CYCLES = 400  # a cost not measured for this many cycles is dropped, because clock speeds change
# Until measured, a draft step is assumed to take this part of a plain step, and a prefill token this part of that.
UNTIMED = 0.1
# Passes of this width or more use kernels for blocks of rows, so the cost of narrower passes says little about theirs.
WIDE = 16
# A token of a verify batch costs about this many times a token of a prompt, because it has a row of logits.
WITH_LOGITS = 1.25
UNSURE = 0.2  # after n measurements, the cost of a width for copies is divided by 1 + UNSURE / n
TARGET = "target"  # the key of the target among the sources of prefill
CAUTIOUS_DEPTH = 3  # largest depth of a drafter until two of the drafter's tokens are accepted


@dataclass(frozen=True, slots=True)
class CostTable:
    """The seconds of a target pass by batch width, and the seconds of one run of each drafter's model."""

    widths: tuple[int, ...]  # batch widths, ascending from 1
    verify_seconds: tuple[float, ...]  # seconds of a target pass, one for each width
    run_seconds: dict[str, float] = field(default_factory=dict)  # seconds of a run, by `Drafter.source`
    measured: bool = True  # whether the costs were measured on this machine, not estimated
    context_tokens: int = 0  # number of tokens in the cache during the measurement
    prefill_seconds: dict[str, float] = field(default_factory=dict)  # seconds per token, by `Drafter.source`

    def __post_init__(self) -> None:
        """Raise ValueError for an invalid table, for example from a damaged file."""
        ascending = all(one < other for one, other in pairwise((0, *self.widths)))
        if self.widths[:1] != (1,) or not ascending or len(self.widths) != len(self.verify_seconds):
            raise ValueError(f"the widths do not ascend from 1, or are not as many as the seconds: {self}")
        drafters = (*self.run_seconds.values(), *self.prefill_seconds.values())
        if min(self.verify_seconds) <= 0 or min(*drafters, self.context_tokens, 0) < 0:
            raise ValueError(f"the seconds of a pass are not positive, or a drafter's are negative: {self}")
        if not all(map(isfinite, (*self.verify_seconds, *drafters))):
            raise ValueError(f"the costs are not all finite: {self}")

    def verify(self, width: float) -> float:
        """Return the interpolated seconds of a target pass; after the last width, the last slope continues."""
        return interpolate(width, self.widths, self.verify_seconds, extend=True)


def interpolate(x: float, xs: Sequence[float], ys: Sequence[float], *, extend: bool) -> float:
    """Return y at x by linear interpolation between points; `xs` ascend.

    `extend`: whether the last slope continues after the last point. If not, y is constant there.
    """
    if extend and x > xs[-1] and len(xs) > 1:
        return ys[-1] + max((ys[-1] - ys[-2]) / (xs[-1] - xs[-2]), 0.0) * (x - xs[-1])
    at = bisect_right(xs, x)
    if at in (0, len(xs)):
        return ys[max(at - 1, 0)]
    return (ys[at] - ys[at - 1]) / (xs[at] - xs[at - 1]) * (x - xs[at - 1]) + ys[at - 1]


class Recent:
    """The mean of the middle half of the latest measurements, which a few outliers hardly change."""

    def __init__(self, prior: float | None = None) -> None:
        self._samples = deque([] if prior is None else [prior], maxlen=MEMORY)
        self.value = self.lowest = 0.0
        self.last_cycle = 0
        self.measurements = 0  # number of all measurements

    def add(self, measured: float, cycle: int) -> None:
        self._samples.append(measured)
        self.measurements += 1
        self.last_cycle = cycle
        self.value, self.lowest = middle(self._samples), min(self._samples)


class Costs:
    """The present costs: the costs of a table, times ratios that every cycle corrects.

    The ratio of a width that was never run is interpolated between measured widths. Only plain steps correct the cost
    of a plain step, because every reported speed-up depends on it; wider passes only give an upper bound.
    Strategies learn under the lock of `ConcurrentReplies`. Readers need no lock: a measurement replaces whole values,
    and each `Recent` has a value before readers see it.
    """

    def __init__(self, table: CostTable) -> None:
        self._table = table
        self._ratios: dict[int, Recent] = {}  # by width: measured / table seconds of a pass
        self._runs: dict[str, Recent] = {}  # by drafter: measured / table seconds of a model run
        self._reading: dict[str, Recent] = {}  # by drafter: seconds to prefill a token
        # The ratio of plain steps without the time to decide whether to draft; `_ratios[1]` includes that time.
        self._undecided: Recent | None = None
        self._cycle = 0
        self.confirmed = False  # whether several passes with draft tokens were measured lately
        self._now: dict[int, float] = {}  # by width: results of `verify`, until the next measurement
        # A cache of `_excess`: the `_ratios` that it was computed from, the measured widths, and the excess of each.
        self._excesses: tuple[object, list[int], list[float]] = None, [], []
        self._started: dict[int, float] = {}  # by width: results of `_start`

    @property
    def measured(self) -> bool:
        """Whether the start-up table was measured on this machine."""
        return self._table.measured

    def measurements(self, width: int) -> int:
        return self._ratios[width].measurements if width in self._ratios else 0

    def is_new(self, width: int = 1) -> bool:
        """Return whether the costs began with an estimate that too few passes of this width have corrected so far."""
        return not self.measured and self.measurements(width) < SEVERAL

    def plain_step_seconds(self, replies: int = 1) -> float | None:
        """Return the seconds of a plain step that replies share, without the time to decide; None while unknown."""
        if replies > 1:
            return self.verify(replies) if self.measured or self.measurements(replies) else None
        if self._undecided is None:
            return self.verify(1) if self.measured else None
        return min(self._start(1) * self._undecided.value, self._bound())

    def verify(self, width: int) -> float:
        """Return the seconds of a target pass over `width` tokens, without those of drafting."""
        now = self._now
        if (seconds := now.get(width)) is None:
            if width == 1:
                seconds = min(self._start(1) * self._ratio(1), self._bound())
            elif width in self._ratios or self.measured:
                seconds = self._start(width) * self._ratio(width)
            else:
                seconds = self.verify(1) * (1 + self._excess(width) * self._estimated_excess(width))
            if width >= WIDE and width not in self._ratios:
                seconds = min(seconds, self._by_prefill(width))
            now[width] = seconds
        return seconds

    def verify_for_proposal(self, width: int) -> float:
        """Return `verify(width)`. Until `confirmed`, a narrow pass counts as at most a plain step.

        A table that was measured in a disturbed moment can make drafting look too expensive at any depth. Then nothing
        would be drafted, and no pass could correct the table.
        """
        seconds = self.verify(width)
        is_cheap = self.measured and not self.confirmed and width <= 1 + CAUTIOUS_DEPTH
        return min(seconds, self.verify(1)) if is_cheap else seconds

    def verify_for_copies(self, width: int) -> float:
        """Return `verify_for_proposal(width)`; if the table is an estimate, fewer seconds while measurements are few.

        If a cost is too high by chance, no copies are drafted at this width. Then nothing would correct the cost.
        """
        seconds = self.verify_for_proposal(width)
        ratio = self._ratios.get(width) if width > 1 and not self.measured else None
        return seconds / (1 + UNSURE / ratio.measurements) if ratio else seconds

    def draft(self, source: str, runs: float) -> float:
        """Return the seconds of `runs` runs of a drafter's model."""
        ratio = self._runs[source].value if source in self._runs else self._ratio(2)
        return self._run_at_start(source) * ratio * runs

    def reading(self, source: str) -> float:
        """Return the seconds to prefill a token in a drafter: at most those of a model run, and 0 without a model.

        Before a measurement, assume the target's ratio of a prompt token's seconds to those of a plain step.
        """
        run, seconds = self.draft(source, 1), self._table.prefill_seconds.get(source)
        if source in self._reading:
            seconds = self._reading[source].value
        elif not seconds and TARGET in self._reading:
            seconds = run * self._reading[TARGET].value / self.verify(1)
        return min(seconds or UNTIMED * min(run, UNTIMED * self.verify(1)), run)

    def knows(self, source: str) -> bool:
        """Return whether passes with draft tokens, and more than one draft of this drafter, were measured."""
        return self.confirmed and source in self._runs and self._runs[source].measurements > 1

    def learn_verify(
        self, width: int, seconds: float, *, drafted: bool = False, deciding_seconds: float = 0.0
    ) -> None:
        """Learn from a pass over `width` tokens. A pass over one token is a plain step, unless its cycle `drafted`.

        `deciding_seconds`: the part of `seconds` for deciding whether to draft, which plain decoding does not need.
        """
        self._cycle += 1
        if width == 1 and drafted:
            return
        is_first = width not in self._ratios and (self.measured or self.confirmed)
        prior = self.verify(width) / self._start(width) if is_first else None
        ratio = self._ratios.get(width) or Recent(prior)
        ratio.add(seconds / self._start(width), self._cycle)
        if width == 1:
            undecided = self._undecided or Recent(prior if self.measured else None)
            undecided.add((seconds - deciding_seconds) / self._start(1), self._cycle)
            self._undecided = undecided
        oldest = self._cycle - STALE_CYCLES
        known = {n: each for n, each in self._ratios.items() if n == 1 or each.last_cycle > oldest}
        self._ratios, self._now = {**known, width: ratio}, {}
        self.confirmed = sum(each.measurements for n, each in self._ratios.items() if n > 1) >= SEVERAL

    def learn_draft(self, source: str, runs: float, seconds: float) -> None:
        if at_start := self._run_at_start(source):
            run = self._runs.get(source) or Recent()
            run.add(seconds / (at_start * runs), self._cycle)
            self._runs = {**self._runs, source: run}

    def learn_prefill(self, source: str, tokens: int, seconds: float) -> None:
        reading = self._reading.get(source) or Recent(self._table.prefill_seconds.get(source))
        reading.add(seconds / max(tokens, 1), self._cycle)
        self._reading, self._now = {**self._reading, source: reading}, {}

    def table(self) -> CostTable:
        """Return the costs learned so far as a table for the next load; if too few are measured, return the old table.

        Leave out prefill costs that this load did not measure: a wrong high cost would prevent any prefill, for ever.
        """
        reliable = {n for n, ratio in self._ratios.items() if ratio.measurements >= SEVERAL}
        if not self.measured and (1 not in reliable or len(reliable) < 2):
            return self._table
        kept = {n for n in self._table.widths if self.measured or n < WIDE} - self._ratios.keys()
        widths = tuple(sorted({1} | kept | reliable))
        seconds = tuple(self.verify(n) for n in widths)
        return replace(
            self._table,
            widths=widths,
            verify_seconds=seconds,
            run_seconds={
                source: self.draft(source, 1) for source in {**self._table.run_seconds, **self._runs}
            },
            measured=True,
            prefill_seconds={source: found.value for source, found in self._reading.items()},
        )

    def _by_prefill(self, width: int) -> float:
        """Estimate a pass's seconds from the time of a prompt token. Infinity: the table is the better estimate."""
        if (self.measured and width <= self._table.widths[-1]) or TARGET not in self._reading:
            return inf
        return self.verify(1) + (width - 1) * WITH_LOGITS * self._reading[TARGET].value

    def _run_at_start(self, source: str) -> float:
        return self._table.run_seconds.get(source, UNTIMED * self._start(1))

    def _bound(self) -> float:
        """Return the most seconds that a plain step can take, judged by wider passes and by the fastest early step."""
        wider = (self._start(n) * ratio.value for n, ratio in self._ratios.items() if n > 1)
        fastest = self._ratios[1].lowest * self._start(1) if self.is_new() and 1 in self._ratios else inf
        return min(SLACK * min(wider, default=inf), fastest)

    def _start(self, width: int) -> float:
        """Return a pass's seconds by the start-up table, but at most SLACK times those of any wider pass."""
        if width not in self._started:
            wider = (
                s for n, s in zip(self._table.widths, self._table.verify_seconds, strict=True) if n > width
            )
            self._started[width] = min(self._table.verify(width), SLACK * min(wider, default=inf))
        return self._started[width]

    def _ratio(self, width: int) -> float:
        if width in self._ratios:
            return self._ratios[width].value
        if width == 1 or not self._ratios:
            return 1.0
        known = sorted(self._ratios)
        return interpolate(width, known, [self._ratios[n].value for n in known], extend=False)

    def _excess(self, width: int) -> float:
        """Return measured / estimated cost of a pass's tokens after the first, interpolated between known widths."""
        if self._excesses[0] is not self._ratios:
            known = [n for n in sorted(self._ratios) if n > 1 and self._estimated_excess(n) > LEAST_ESTIMATE]
            found = [(self.verify(n) / self.verify(1) - 1) / self._estimated_excess(n) for n in known]
            self._excesses = self._ratios, known, found
        _, known, found = self._excesses
        return max(interpolate(width, known, found, extend=False), 0.0) if known else 1.0

    def _estimated_excess(self, width: int) -> float:
        return self._start(width) / self._start(1) - 1


SHORT = 2048  # contexts up to this many tokens share a bucket; each doubling has a bucket of its own


class CostsByContext:
    """The costs of a pair in buckets, by context length and number of threads.

    A pass over the tokens of several replies costs as much as one over as many tokens of one reply. A new bucket starts
    with the costs of the nearest bucket as an estimate, until its own costs are measured.
    """

    def __init__(self, tables: Sequence[CostTable], threads: Callable[[], int] = lambda: 0) -> None:
        """`tables`: one or more, each for one bucket; `threads`: returns the number of threads that decode now."""
        self._threads = threads
        self._usual_threads = threads()
        self._known = {(self._usual_threads, doublings(t.context_tokens)): Costs(t) for t in tables}
        self.costs = next(iter(self._known.values()))  # costs of the latest bucket

    def at(self, context_tokens: int) -> Costs:
        """Return the costs of passes with this many tokens in the cache."""
        bucket = self._threads(), doublings(context_tokens)
        if bucket not in self._known:
            near = min(self._known, key=lambda other: (other[0] != bucket[0], abs(other[1] - bucket[1])))
            guess = replace(self._known[near].table(), measured=False, context_tokens=context_tokens)
            self._known[bucket] = Costs(guess)
        self.costs = self._known[bucket]
        return self.costs

    def calibrated(self, table: CostTable) -> None:
        """Replace the costs of the table's bucket by the table."""
        self.costs = self._known[self._threads(), doublings(table.context_tokens)] = Costs(table)

    def tables(self) -> tuple[CostTable, ...]:
        """Return the measured tables for the usual number of threads, or one estimate if there are none."""
        found = [
            costs.table() for (threads, _), costs in self._known.items() if threads == self._usual_threads
        ]
        return tuple(table for table in found if table.measured) or tuple(found[:1])


def doublings(context_tokens: int) -> int:
    """Return how often SHORT must double to reach this number of tokens."""
    return max(ceil(log2(max(context_tokens, 1) / SHORT)), 0)
