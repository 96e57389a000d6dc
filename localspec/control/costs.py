"""The cost of a cycle now: a stored table, corrected by every pass that ran since."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, log2

from localspec.control.cost_table import CostTable, interpolate
from localspec.control.timing import middle

WINDOW = 32  # measurements: 6 % timing noise becomes 1 %
PRIOR_SAMPLES = 2  # that a measured table counts for
FEW = 5  # measurements that are kept however old they are
LEAST_EXCESS = 0.1  # of a guess: noise can make a wider batch look free
RELIABLE = 3  # measurements that make a width fit to be stored
SLACK, MORE_SLACK = 1.05, 1.25  # before a wider pass says that a plain step was measured too dear
STALE_CYCLES = 400  # older measurements tell about another clock speed
LEAST_EXTRA = 0.03  # of a plain step: less is noise
UNTIMED_RUN = 0.12  # of a plain step: a run of a draft model that was never timed
UNTIMED_READING = 0.1  # of a run: reading a token among many
HOPED_EXCESS = 0.05  # of a plain step: a further token of a narrow pass, until passes confirm the table
NARROW = 4  # widths up to here are narrow
SETTLING = 2  # passes after a change of width that a device which records its passes takes longer for


def lower_middle(values: Iterable[float]) -> float:
    """The middle half, of few the lower ones: noise in time is one-sided, and a width that looks dear is not tried."""
    ordered = sorted(values)
    inner = ordered[(len(ordered) - 1) // 4 : max(3 * len(ordered) // 4, 1)]
    return sum(inner) / len(inner)


class Recent:
    """The middle of the latest measurements: half of them may be wild, and a lasting change is followed."""

    def __init__(
        self, prior: float | None = None, centre: Callable[[Iterable[float]], float] = lower_middle
    ) -> None:
        self._centre = centre
        self._samples: deque[tuple[int, float]] = deque(maxlen=WINDOW)
        if prior is not None:
            self._samples.extend([(0, prior)] * PRIOR_SAMPLES)
        self.value = 0.0
        self.last_cycle = 0
        self.measurements = 0  # ever

    def add(self, measured: float, cycle: int) -> None:
        self._samples.append((cycle, measured))
        self.measurements += 1
        self.last_cycle = cycle
        while len(self._samples) > FEW and self._samples[0][0] < cycle - STALE_CYCLES:
            self._samples.popleft()
        self.value = self._centre(value for _, value in self._samples)


class Costs:
    """Costs as they are now: ratios to the start-up table, corrected by every cycle.

    The ratio of a width that was never run is interpolated between those that were. Only plain steps that count correct
    the plain step, because every claim of speed rests on it; wider passes only bound it from above.
    """

    def __init__(self, table: CostTable, *, likely: bool = False) -> None:
        """`likely`: nobody measured the table, but what it says was measured with fewer or more replies."""
        self._table = table
        self._likely = likely or table.measured
        self._ratios: dict[int, Recent] = {}
        self._runs: dict[str, Recent] = {}  # ratios, by drafter
        self._reading: dict[str, Recent] = {}  # seconds of a token, by drafter
        self._undecided: Recent | None = None  # ratios of plain steps, without the time to decide on drafting
        self._unsettled = (Recent(), Recent())  # seconds of the first and the second plain step of a run
        self._cycle = 0
        self._width = self._run = 0  # of the latest pass, and how many in a row had that width
        self._now: dict[int, float] = {}  # replayed(), until the next measurement
        self._started: dict[int, float] = {}  # the table, interpolated
        self.held = 0  # the width to which narrower verify batches are padded; 0: none are

    @property
    def measured(self) -> bool:
        """Whether the start-up table was measured on this machine."""
        return self._table.measured

    @property
    def replies(self) -> int:
        """How many replies share the passes."""
        return self._table.replies

    @property
    def plain_steps(self) -> int:
        """How many plain steps were measured."""
        return self._ratios[1].measurements if 1 in self._ratios else 0

    @property
    def plain_step_seconds(self) -> float | None:
        """Seconds of a step of plain decoding, without the time to decide; None before any measurement."""
        if self._undecided is None:
            return self.verify(1) if self.measured else None
        return min(self._start(1) * self._undecided.value, self._bound())

    @property
    def plain_is_doubtful(self) -> bool:
        """Whether a plain step was measured as dearer than a wider pass, which is impossible."""
        return self.plain_steps < RELIABLE and self._plain_alone() > self._bound()

    @property
    def settling(self) -> int:
        """Passes after a change of width that cost more than later equal ones."""
        return SETTLING if self.direct_extra > LEAST_EXTRA * self.replayed(1) else 0

    @property
    def settled(self) -> bool:
        """Whether the latest pass costs as much as later equal ones."""
        return self._run > self.settling

    @property
    def direct_extra(self) -> float:
        """Extra seconds of the first pass after a change of width."""
        return self._extra(0, self._table.direct_extra_seconds)

    @property
    def change_seconds(self) -> float:
        """Extra seconds of a change of width, until the passes have settled."""
        return self.direct_extra + self._extra(1, self._table.capture_extra_seconds)

    @property
    def latest_extra(self) -> float:
        """Extra seconds of the latest pass because of a change of width."""
        if self._run > SETTLING:
            return 0.0
        return self.direct_extra if self._run == 1 else self.change_seconds - self.direct_extra

    def verify(self, width: int) -> float:
        """Seconds of a target pass in a cycle that drafts, or of a plain step after others, without drafting."""
        if 1 < width <= self.held:
            return self.replayed(self.held)
        return self.replayed(width) + (self.direct_extra if width > 1 else 0.0)

    @property
    def confirmed(self) -> bool:
        """Whether enough passes wider than one token ran here lately."""
        measured = (r.measurements for n, r in self._ratios.items() if n > 1 and self._fresh(n))
        return sum(measured) >= RELIABLE

    def to_propose(self) -> "Costs | Unconfirmed":
        """The prices that decide on a proposal."""
        return self if self.confirmed or not self.measured else Unconfirmed(self)

    def padding(self, width: int) -> int:
        """Padding for a verify batch, so that it has the width of the others."""
        return max(self.held - width, 0)

    def replayed(self, width: int) -> float:
        """Seconds of a pass whose predecessors had the same width."""
        if width not in self._now:
            if width == 1:
                self._now[1] = min(self._plain_alone(), self._bound())
                return self._now[1]
            if (width in self._ratios and self._fresh(width)) or self._likely:
                self._now[width] = self._start(width) * self._ratio(width)
            else:
                self._now[width] = self.replayed(1) * (1 + self._excess(width) * self._guessed_excess(width))
        return self._now[width]

    def draft(self, source: str, runs: float) -> float:
        """Seconds of `runs` runs of a drafter's model; `source`: which drafter."""
        ratio = self._runs[source].value if source in self._runs else self._ratio(2)
        return self._run_at_start(source) * ratio * runs

    def reading(self, source: str) -> float:
        """Seconds that a drafter takes to read a token among many."""
        run, found = self.draft(source, 1), self._table.reading_seconds.get(source)
        if source in self._reading:
            found = self._reading[source].value
        usual = UNTIMED_READING * min(run, UNTIMED_RUN * self.replayed(1))
        return max(min(found or usual, run), 1e-9)

    def learn_verify(
        self, width: int, seconds: float, *, drafted: bool = False, deciding_seconds: float = 0.0
    ) -> None:
        """A pass over `width` tokens, padding included: every pass in turn, as its price depends on the one before.

        Passes over one token are plain steps unless `drafted`; the settled ones give the cost of a step.
        `deciding_seconds`: the part of these seconds that plain decoding does not have.
        """
        self._cycle += 1
        self._run = self._run + 1 if width == self._width else 1
        self._width = width
        if width == 1 and drafted:
            return
        if not self.settled:
            if width == 1:
                self._unsettled[self._run - 1].add(seconds, self._cycle)
            if width == 1 or self._run > 1:
                return
            seconds = max(seconds - self.direct_extra, seconds / 2)
        if width not in self._ratios:
            prior = self._ratio(width) if self._likely else None
            # Claims rest on plain steps, so this estimate is unbiased.
            self._ratios[width] = Recent(prior, middle if width == 1 else lower_middle)
            if width == 1:
                self._undecided = Recent(prior if self.measured else None, middle)
        self._now.clear()
        self._ratios[width].add(seconds / self._start(width), self._cycle)
        if width == 1 and self._undecided:
            self._undecided.add((seconds - deciding_seconds) / self._start(1), self._cycle)

    def learn_draft(self, source: str, runs: float, seconds: float) -> None:
        if at_start := self._run_at_start(source):
            self._runs.setdefault(source, Recent()).add(seconds / (at_start * runs), self._cycle)

    def learn_reading(self, source: str, tokens: int, seconds: float) -> None:
        known = Recent(self._table.reading_seconds.get(source))
        self._reading.setdefault(source, known).add(seconds / max(tokens, 1), self._cycle)

    def table(self) -> CostTable:
        """The table as learned so far, for the next run; a guess stays one until it was checked.

        Prices of reading that this run did not confirm are left out: where reading looks too dear, nothing is read.
        """
        reliable = {n for n, ratio in self._ratios.items() if ratio.measurements >= RELIABLE}
        if not self.measured and (1 not in reliable or len(reliable) < 2):
            return self._table
        widths = tuple(sorted({1} | (set(self._table.widths) - self._ratios.keys()) | reliable))
        seconds = tuple(self.replayed(n) for n in widths)
        return replace(
            self._table,
            widths=widths,
            verify_seconds=seconds,
            run_seconds={
                source: self.draft(source, 1) for source in {**self._table.run_seconds, **self._runs}
            },
            measured=True,
            reading_seconds={source: found.value for source, found in self._reading.items()},
            direct_extra_seconds=self.direct_extra,
            capture_extra_seconds=self.change_seconds - self.direct_extra,
        )

    def _extra(self, run: int, at_start: float) -> float:
        """Extra seconds of pass number `run` after a change of width."""
        found = self._unsettled[run]
        if self.plain_steps and found.measurements >= RELIABLE:
            return max(found.value - self._plain_alone(), 0.0)
        return at_start * self.replayed(1) / self._start(1) if at_start else 0.0

    def _run_at_start(self, source: str) -> float:
        return self._table.run_seconds.get(source, UNTIMED_RUN * self._start(1))

    def _plain_alone(self) -> float:
        return self._start(1) * (self._ratios[1].value if 1 in self._ratios else 1.0)

    def _bound(self) -> float:
        """Seconds of the cheapest wider pass, with room for noise: a plain step takes no longer."""
        wider = (
            self._start(n) * ratio.value * (SLACK if ratio.measurements >= RELIABLE else MORE_SLACK)
            for n, ratio in self._ratios.items()
            if n > 1 and self._fresh(n)
        )
        return min(wider, default=float("inf"))

    def _start(self, width: int) -> float:
        """Seconds by the table; a pass takes no longer than a wider one, with room for noise."""
        if width not in self._started:
            wider = (
                s for n, s in zip(self._table.widths, self._table.verify_seconds, strict=True) if n > width
            )
            most = MORE_SLACK * min(wider, default=float("inf"))
            self._started[width] = min(self._table.verify(width), most)
        return self._started[width]

    def _ratio(self, width: int) -> float:
        if width in self._ratios and (width == 1 or self._fresh(width)):
            return self._ratios[width].value
        if width == 1 or not self._ratios:
            return 1.0
        known = sorted(n for n in self._ratios if n == 1 or self._fresh(n))
        return (
            interpolate(width, known, [self._ratios[n].value for n in known], extend=False) if known else 1.0
        )

    def _excess(self, width: int) -> float:
        """How much dearer than guessed further tokens are, judged by the widths that were run."""
        known = sorted(n for n in self._ratios if n > 1 and self._fresh(n))
        if not known:
            return 1.0
        plain = self.replayed(1)
        found = [(self.replayed(n) / plain - 1) / self._guessed_excess(n) for n in known]
        return max(interpolate(width, known, found, extend=False), LEAST_EXCESS)

    def _guessed_excess(self, width: int) -> float:
        return self._start(width) / self._start(1) - 1

    def _fresh(self, width: int) -> bool:
        return self._cycle - self._ratios[width].last_cycle < STALE_CYCLES


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """Low prices of narrow passes, until a few passes have confirmed the table.

    A table from a disturbed moment can make all drafting look too dear. Then nothing would be drafted, and nothing
    could correct it.
    """

    costs: Costs

    def verify(self, width: int) -> float:
        found = self.costs.verify(width)
        if width > NARROW:
            return found
        return min(found, self.costs.verify(1) * (1 + HOPED_EXCESS * (width - 1)))

    def padding(self, width: int) -> int:
        return self.costs.padding(width)


SHORT = 2048  # tokens: up to here attention is a small part of a pass; every doubling beyond is a place of its own


class CostsByContext:
    """The costs of a pair by place: length of the context, threads, and replies that share the passes.

    A new place starts with the nearest costs as a guess and measures its own.
    """

    def __init__(self, tables: Sequence[CostTable], threads: Callable[[], int] = lambda: 0) -> None:
        """`tables`: one at least, each for its length of context; `threads`: how many decode now."""
        self._threads = threads
        self._usual_threads = threads()
        self._known = {
            (t.replies, self._usual_threads, doublings(t.context_tokens)): Costs(t) for t in tables
        }
        self.costs = next(iter(self._known.values()))  # at the place of the coming pass, or of the latest one

    def move(self, context_tokens: int, replies: int = 1) -> None:
        """Choose the place of a pass of this many replies, with this many tokens in the cache."""
        place = replies, self._threads(), doublings(context_tokens)
        if place not in self._known:

            def distance(other: tuple[int, int, int]) -> tuple[bool, int, bool, int]:
                guessed = replies > 1 and not self._known[other].measured
                return guessed, abs(other[0] - place[0]), other[1] != place[1], abs(other[2] - place[2])

            near = min(self._known, key=distance)
            table = self._known[near].table()
            guess = replace(table.shared_by(replies), measured=False, context_tokens=context_tokens)
            self._known[place] = Costs(guess, likely=table.measured and near[1:] == place[1:])
        self.costs = self._known[place]

    def calibrated(self, table: CostTable) -> None:
        """Replace the costs of the table's place by the table."""
        place = table.replies, self._threads(), doublings(table.context_tokens)
        self.costs = self._known[place] = Costs(table)
        for source, seconds in table.reading_seconds.items():
            self.costs.learn_reading(source, 1, seconds)

    def tables(self) -> tuple[CostTable, ...]:
        """The costs with the usual threads, for the next run: all measured ones, or one guess."""
        found = [
            costs.table() for (_, threads, _), costs in self._known.items() if threads == self._usual_threads
        ]
        return tuple(table for table in found if table.measured) or tuple(found[:1])


def doublings(context_tokens: int) -> int:
    """How often the shortest class of contexts must double to hold the tokens."""
    return max(ceil(log2(max(context_tokens, 1) / SHORT)), 0)
