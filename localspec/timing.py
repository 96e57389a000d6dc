"""Durations summed up while they come: percentiles, and what plain decoding would have taken."""

import math
from collections import Counter, deque
from dataclasses import dataclass, field

BIN = math.log(1.05)  # histogram bins are 5 % wide
LATEST = 32  # plain steps that say what one costs now
UNKNOWN_SPREAD = 0.10  # relative spread of a plain step, until several were seen
SEVERAL = 4
MIDDLE = 1.1  # the mean of the middle half is this much less certain than the mean


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of a duration, in seconds; 0 when nothing was measured."""

    p50: float = 0.0
    p95: float = 0.0


@dataclass(slots=True)
class Histogram:
    """Durations in bins, so that hours of them take no more room than minutes."""

    _counts: Counter[int | None] = field(default_factory=Counter)

    def add(self, seconds: float, times: int = 1) -> None:
        """Count a duration, `times` over."""
        if times:
            self._counts[round(math.log(seconds) / BIN) if seconds > 0 else None] += times

    def percentiles(self) -> Percentiles:
        """Of all durations so far."""
        return Percentiles(self._at(0.50), self._at(0.95))

    def _at(self, share: float) -> float:
        below, wanted = 0, share * self._counts.total()
        for bin_ in sorted(self._counts, key=lambda bin_: -math.inf if bin_ is None else bin_):
            below += self._counts[bin_]
            if below >= wanted:
                return 0.0 if bin_ is None else math.exp(bin_ * BIN)
        return 0.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measured value and its 95 % confidence interval."""

    value: float
    low: float
    high: float


@dataclass(slots=True)
class PlainClock:
    """What plain decoding would have taken for the same tokens, judged by the plain steps among the cycles.

    A plain step grows dearer with the context, so each cycle is judged by the latest steps before it; those
    before the first step are judged by it. `known` is what a step cost before this reply, if measured.
    """

    known: float | None = None
    seconds: float = 0.0
    _waiting: int = 0  # tokens before anything was known
    _doubt: float = 0.0  # tokens of drafting cycles, each / square root of the steps it was judged by
    _steps: deque[float] = field(default_factory=lambda: deque(maxlen=LATEST))

    def add_plain(self, seconds: float) -> None:
        """Count a plain step."""
        self._steps.append(seconds)
        self.seconds += seconds + self._waiting * seconds
        self._waiting = 0

    def add_drafted(self, tokens: int) -> None:
        """Count a cycle that drafted, by the tokens it brought."""
        self._doubt += tokens / math.sqrt(max(len(self._steps), 1))
        step = self._step()
        if step is None:
            self._waiting += tokens
        else:
            self.seconds += tokens * step

    @property
    def error(self) -> float:
        """Standard error of `seconds`: plain steps among the cycles are exact, the others are estimated."""
        step = self._step()
        return self._doubt * self._spread(step) * MIDDLE if step is not None else 0.0

    def _step(self) -> float | None:
        """The middle half of the latest plain steps: a hiccup of the machine is not a plain step."""
        ordered = sorted(self._steps)
        if not ordered:
            return self.known
        quarter = len(ordered) // 4
        middle = ordered[quarter : len(ordered) - quarter]
        return sum(middle) / len(middle)

    def _spread(self, step: float) -> float:
        if len(self._steps) < SEVERAL:
            return UNKNOWN_SPREAD * step
        # The median absolute deviation, scaled to a standard deviation.
        return 1.48 * sorted(abs(s - step) for s in self._steps)[len(self._steps) // 2]
