"""What a cycle costs: the target by batch width and the draft by depth, from a start-up table and from running."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

# A width that was not used for so many cycles follows its neighbours weakly: contexts grow, machines throttle.
STALE_CYCLES = 20
FOLLOW = 0.03
# Averages over about ten cycles keep 6 % timing noise below 1.5 % and still follow a growing context.
SLOWEST_RATE = 0.1


@dataclass(frozen=True, slots=True)
class CostTable:
    """Seconds of a target pass by batch width, and of a draft step; widths in between are interpolated."""

    widths: tuple[int, ...]  # ascending, from 1
    verify_seconds: tuple[float, ...]  # one for each width
    draft_step_seconds: float  # one draft token; 0 when drafting runs no model
    switch_ratio: float = 1.0  # cost of a pass whose width differs from the one before / same width

    def verify(self, width: float) -> float:
        """Seconds of a target pass over `width` tokens; beyond the last width the last slope goes on."""
        return interpolate(width, self.widths, self.verify_seconds, extend=True)


def guess_table(*, flat_to: int, slope: float, draft_step: float) -> CostTable:
    """A table for a machine that nothing is known about, in units of one plain step.

    `slope` is the cost of each further token relative to the first; a kernel for small batches that ends after
    `flat_to` tokens (CUDA's quantised mat-vec: 8) makes the next width twice as dear.
    """
    widths = tuple(n for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 32, 64) if n <= 9 or flat_to < 64)
    cliff = [2.0 if n > flat_to else 1.0 for n in widths]
    seconds = tuple(c * (1 + slope * (n - 1)) for n, c in zip(widths, cliff, strict=True))
    return CostTable(widths, seconds, draft_step)


def interpolate(x: float, xs: Sequence[float], ys: Sequence[float], *, extend: bool) -> float:
    """Piecewise linear through (xs, ys), xs ascending; flat before the first and, unless extended, after the last."""
    if x <= xs[0] or len(xs) == 1:
        return ys[0]
    if x >= xs[-1]:
        slope = (ys[-1] - ys[-2]) / (xs[-1] - xs[-2]) if extend else 0.0
        return ys[-1] + max(slope, 0.0) * (x - xs[-1])
    i = next(i for i, edge in enumerate(xs) if edge >= x)
    share = (x - xs[i - 1]) / (xs[i] - xs[i - 1])
    return ys[i - 1] + share * (ys[i] - ys[i - 1])


@dataclass(slots=True)
class Average:
    """A running mean that one wild measurement cannot move and two in a row can."""

    value: float
    count: int = 0
    last_cycle: int = 0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=3))

    def add(self, measured: float) -> None:
        self.count += 1
        self.recent.append(measured)
        # With fewer than three there is no majority: take the smaller, since noise in time is one-sided.
        typical = median(self.recent) if len(self.recent) == 3 else min(self.recent)
        rate = max(SLOWEST_RATE, 1 / (self.count + 1))
        self.value += rate * (typical - self.value)


class Costs:
    """Costs as they are now: ratios to the start-up table, corrected by every cycle.

    The ratio of a width that was never run is interpolated between those that were; the plain step is never
    corrected by anything but plain steps, because every claim of being faster rests on it.
    """

    def __init__(self, table: CostTable) -> None:
        self._table = table
        self._ratios: dict[int, Average] = {}
        self._draft_ratio = Average(1.0)
        self._cycle = 0

    @property
    def plain_steps(self) -> int:
        """How many plain steps the plain cost rests on."""
        return self._ratios[1].count if 1 in self._ratios else 0

    def verify(self, width: int) -> float:
        """Seconds of a target pass over `width` tokens, with everything around it but drafting."""
        return self._table.verify(width) * self._ratio(width)

    def draft(self, depth: int) -> float:
        """Seconds to draft `depth` tokens with the draft model."""
        ratio = self._draft_ratio.value if self._draft_ratio.count else self._ratio(2)
        return self._table.draft_step_seconds * ratio * depth

    def cycle(self, depth: int) -> float:
        """Seconds of a whole cycle in which the draft model drafts `depth` tokens."""
        return self.verify(depth + 1) + self.draft(depth)

    def learn_verify(self, width: int, seconds: float) -> None:
        self._cycle += 1
        ratio = seconds / self._table.verify(width)
        if width not in self._ratios:
            # The first measurement counts whole when the table is a guess about another machine,
            # and half when it was measured on this one: Average gives it half, its start the rest.
            self._ratios[width] = Average(self._ratio(width))
        track = self._ratios[width]
        track.add(ratio)
        track.last_cycle = self._cycle
        for other, stale in self._ratios.items():
            if other != 1 and self._cycle - stale.last_cycle > STALE_CYCLES:
                stale.value += FOLLOW * (track.value - stale.value)

    def learn_draft(self, depth: int, seconds: float) -> None:
        if self._table.draft_step_seconds > 0:
            self._draft_ratio.add(seconds / (self._table.draft_step_seconds * depth))

    def table(self) -> CostTable:
        """The table as learned so far, for the next run."""
        widths = tuple(sorted({*self._table.widths, *self._ratios}))
        return CostTable(
            widths, tuple(self.verify(n) for n in widths), self.draft(1), self._table.switch_ratio
        )

    def _ratio(self, width: int) -> float:
        if width in self._ratios:
            return self._ratios[width].value
        if width == 1 or not self._ratios:
            return 1.0
        known = sorted(self._ratios)
        return interpolate(width, known, [self._ratios[n].value for n in known], extend=False)


def totals(seconds: Iterable[float]) -> float:
    return sum(seconds)
