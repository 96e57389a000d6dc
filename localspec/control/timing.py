"""What plain decoding would have taken, judged while durations come."""

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from localspec.algorithm.protocols import PlainStep

LATEST = 32  # plain steps that say what one costs now
UNKNOWN_SPREAD = 0.10  # relative spread of a plain step, until several were seen
SEVERAL = 4
PATIENCE = 128  # tokens that wait for several plain steps: the context has hardly grown by then
STALL = 2.5  # times as long as usual: something else held the machine up
MIDDLE = 1.1  # the mean of the middle half is this much less certain than the mean


@dataclass(slots=True)
class Stalls:
    """How much longer the target's passes took than usual for their width: plain ones would stall as well."""

    _latest: dict[int, deque[float]] = field(default_factory=dict)  # seconds by width
    _seconds: float = 0.0
    _usual: float = 0.0

    def add(self, width: int, seconds: float) -> None:
        """Count a pass."""
        latest = self._latest.setdefault(width, deque(maxlen=LATEST))
        if len(latest) >= SEVERAL:
            usual = middle(latest)
            self._seconds += seconds
            self._usual += usual if seconds > STALL * usual else seconds
        latest.append(seconds)

    @property
    def factor(self) -> float:
        """At least 1."""
        return self._seconds / self._usual if self._usual else 1.0


@dataclass(slots=True)
class PlainSteps:
    """The plain steps of a run at one number of replies, and the tokens that their price judges."""

    known: float | None = None  # seconds of a step, if the run keeps that price
    latest: deque[float] = field(default_factory=lambda: deque(maxlen=LATEST))  # seconds
    waiting: int = 0  # tokens, before several steps
    doubt: float = 0.0  # judged tokens, each / square root of the steps it was judged by

    @property
    def seconds(self) -> float | None:
        """Of a step; None while unknown."""
        return self.known if self.known is not None or not self.latest else middle(self.latest)

    @property
    def error(self) -> float:
        """Standard error of the seconds of all judged tokens."""
        step = self.seconds
        if step is None:
            return 0.0
        spread = UNKNOWN_SPREAD * step
        if len(self.latest) >= SEVERAL:  # the median absolute deviation, scaled to a standard deviation
            spread = 1.48 * sorted(abs(s - step) for s in self.latest)[len(self.latest) // 2]
        return self.doubt * spread * MIDDLE


@dataclass(slots=True)
class PlainClock:
    """What plain decoding would have taken for the same tokens, among as many replies.

    Plain steps are exact. All other cycles, and the plain steps between them that only measure, are judged by the cost
    of a plain step at that time, which grows with the context: `known`, if the run keeps that price. The first tokens
    are judged by the price after several plain steps: the first step runs cold.
    """

    known: Callable[[], PlainStep] = PlainStep
    stalls: Stalls = field(default_factory=Stalls)
    _exact: float = 0.0  # seconds
    _judged: float = 0.0  # seconds
    _steps: dict[int, PlainSteps] = field(default_factory=dict)  # by the number of replies

    def add_plain(self, seconds: float) -> None:
        """Count a step that plain decoding would have taken as well."""
        self._exact += seconds
        self._judge(0, seconds)

    def add_anchor(self, seconds: float) -> None:
        """Count a plain step between cycles that draft."""
        self._judge(1, seconds)

    def add_drafted(self, tokens: int, width: int, verify_seconds: float) -> None:
        """Count a cycle that drafted, by the tokens it brought and its target pass."""
        self.stalls.add(width, verify_seconds)
        self._judge(tokens)

    @property
    def seconds(self) -> float:
        """0 while the cost of a plain step is unknown."""
        usual = max((steps.seconds or 0.0 for steps in self._steps.values()), default=0.0)
        waiting = sum(steps.waiting * (steps.seconds or usual) for steps in self._steps.values())
        return self._exact + (self._judged + waiting) * self.stalls.factor

    @property
    def error(self) -> float:
        """Standard error of `seconds`: plain steps are exact, the others are estimated."""
        return sum(steps.error for steps in self._steps.values())

    def _judge(self, tokens: int, plain: float | None = None) -> None:
        now = self.known()
        steps = self._steps.setdefault(now.replies, PlainSteps())
        steps.known = now.seconds
        if plain is not None:
            steps.latest.append(plain)
        steps.doubt += tokens / math.sqrt(max(len(steps.latest), 1))
        steps.waiting += tokens
        if (step := steps.seconds) is not None and (len(steps.latest) >= SEVERAL or steps.waiting > PATIENCE):
            self._judged += steps.waiting * step
            steps.waiting = 0


def middle(durations: Iterable[float]) -> float:
    """The mean of their middle half, without hiccups; of two the lower one: noise in time is one-sided."""
    ordered = sorted(durations)
    edge = max(len(ordered) // 4, 1) if len(ordered) > 2 else 0
    inner = ordered[edge : len(ordered) - edge] if edge else ordered[:1]
    return sum(inner) / len(inner)
