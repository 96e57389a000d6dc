"""Count the cycles of a reply, and estimate the time that plain decoding would have taken."""

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from localspec.algorithm.protocols import PlainStep
from localspec.events import LEAST_CYCLES, Cycle, Mode, Source, Stats, stalled

MEMORY = 32  # number of latest measurements in a mean; this many reduce noise of 6 % to 1 %
UNKNOWN_SPREAD = 0.11  # assumed relative deviation of a plain step's time, until several are measured
SEVERAL = 4
# The factor 1.48 turns a median absolute deviation into a standard deviation.
# The factor 1.1 is the standard error of the middle half's mean, relative to that of the mean of all values.
DEVIATION = 1.63


@dataclass(slots=True)
class PlainSteps:
    """The plain steps measured with one number of replies, and the tokens whose time is estimated from them."""

    # Seconds of a plain step, if the drafting strategy measures them. This value then replaces the mean of `latest`.
    known: float | None = None
    latest: deque[float] = field(default_factory=lambda: deque(maxlen=MEMORY))  # seconds of plain steps
    waiting: int = 0  # number of tokens without an estimate, because too few plain steps are measured
    doubt: float = 0.0  # sum over all tokens of 1 / sqrt(number of plain steps measured before the token)

    @property
    def seconds(self) -> float | None:
        return self.known if self.known is not None or not self.latest else middle(self.latest)

    @property
    def error(self) -> float:
        """The standard error of the estimated seconds of plain decoding."""
        step = self.seconds
        if step is None:
            return 0.0
        if len(self.latest) < SEVERAL:
            return self.doubt * UNKNOWN_SPREAD * step
        return self.doubt * DEVIATION * sorted(abs(s - step) for s in self.latest)[len(self.latest) // 2]


@dataclass(slots=True)
class Tally:
    """The statistics of a reply so far, and the time that plain decoding would have taken for the same tokens.

    Plain steps count with their measured time. Each token of a drafting cycle or a baseline step counts with the
    present cost of a plain step with the same number of replies, because this cost grows with the context. `known`
    returns the cost if the strategy measures it. The first tokens count only after several plain steps, because the
    first step is slower.
    """

    _sums: Stats = Stats()  # noqa: RUF009  Stats is frozen
    known: Callable[[], PlainStep] = PlainStep
    _exact: float = 0.0  # seconds of plain steps, as measured
    _expected: float = 0.0  # seconds of the same plain steps by the known cost
    _plain_steps: int = 0
    _judged: float = 0.0  # estimated seconds of plain decoding for all tokens that `_exact` does not cover
    _steps: dict[int, PlainSteps] = field(default_factory=dict)  # by the number of replies in a step
    _longest_seconds: float = 0.0  # seconds of the longest cycle
    _mode: Mode | None = None  # the mode of the newest cycle that might use a draft model
    _new: list[Cycle] = field(default_factory=list)  # cycles to add, many at once to save time

    @property
    def sums(self) -> Stats:
        if self._new:
            self.sums = self._sums.after(*self._new)
        return self._sums

    @sums.setter
    def sums(self, sums: Stats) -> None:
        self._sums = sums
        self._new.clear()

    def add(self, cycle: Cycle) -> None:
        self._new.append(cycle)
        self._longest_seconds = max(self._longest_seconds, cycle.seconds)
        seconds, now = cycle.seconds - cycle.deciding_seconds, self.known()
        if cycle.mode is Mode.BASELINE and cycle.is_plain:
            self._estimate(1, now, seconds)
        elif cycle.is_plain:  # plain decoding would have taken the same step
            self._exact += seconds
            self._expected += now.seconds or seconds
            self._plain_steps += 1
            self._estimate(0, now, seconds)
        else:
            self._estimate(len(cycle.tokens), now)
        if cycle.source not in (Source.LOOKUP, Source.PREDICTION):  # these sources need no draft model
            before, self._mode = self._mode, cycle.mode
            if cycle.mode is Mode.OFF and before in (Mode.DRAFTING, Mode.BASELINE):
                self.sums = replace(self.sums, switch_offs=self.sums.switch_offs + 1)

    def stats(self) -> Stats:
        usual = max((steps.seconds or 0.0 for steps in self._steps.values()), default=0.0)
        waiting = sum(steps.waiting * (steps.seconds or usual) for steps in self._steps.values())
        is_stalled = stalled(self._longest_seconds, self.sums.decode_seconds)
        is_judged = self.sums.cycles < LEAST_CYCLES or not is_stalled
        if self._plain_steps >= 2 * SEVERAL:  # enough steps to see whether the machine has changed
            is_judged = is_judged and abs(math.log(self._exact / self._expected)) < UNKNOWN_SPREAD
        return replace(
            self.sums,
            plain_seconds=self._exact + self._judged + waiting if is_judged else 0.0,
            plain_error_seconds=sum(steps.error for steps in self._steps.values()),
        )

    def _estimate(self, tokens: int, now: PlainStep, plain: float | None = None) -> None:
        """Estimate the plain decoding of tokens. `plain`: the seconds of their cycle, if this was a plain step."""
        steps = self._steps.get(now.replies) or self._steps.setdefault(now.replies, PlainSteps())
        steps.known = now.seconds
        if plain is not None:
            steps.latest.append(plain)
        steps.doubt += tokens / math.sqrt(max(len(steps.latest), 1))
        steps.waiting += tokens
        # Let only few tokens wait, because all of them count with the present cost, which grows with the context.
        is_known = len(steps.latest) >= SEVERAL or steps.waiting > SEVERAL * MEMORY
        if steps.waiting and is_known and (step := steps.seconds) is not None:
            self._judged += steps.waiting * step
            steps.waiting = 0


def middle(durations: Iterable[float]) -> float:
    """Return the mean of the middle half of the values; for two values the lower one, because noise only adds time."""
    ordered = sorted(durations)
    edge = max(len(ordered) // SEVERAL, 1) if len(ordered) > 2 else 0
    inner = ordered[edge : len(ordered) - edge] if edge else ordered[:1]
    return sum(inner) / len(inner)
