"""The time that plain decoding would have taken, estimated cycle by cycle."""

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from localspec.algorithm.protocols import PlainStep

MEMORY = 32  # number of latest measurements in a mean, which reduces noise of 6 % to 1 %
UNKNOWN_SPREAD = 0.11  # assumed relative deviation of a plain step's time, until several are measured
SEVERAL = 4
# 1.48 turns a median absolute deviation into a standard deviation. It is multiplied by 1.1, because the mean of the
# middle half has 1.1 times the standard error of the mean of all values.
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
class PlainClock:
    """The time that plain decoding would have taken for the same tokens and the same number of replies.

    Plain steps count with their measured time. Each token of a drafting cycle or a baseline step counts with the
    present cost of a plain step, because this cost grows with the context. `known` returns the cost if the strategy
    measures it. The first tokens count only after several plain steps, because the first step is slower.
    """

    known: Callable[[], PlainStep] = PlainStep
    _exact: float = 0.0  # seconds of plain steps, as measured
    _judged: float = 0.0  # estimated seconds of plain decoding for all tokens that `_exact` does not cover
    _steps: dict[int, PlainSteps] = field(default_factory=dict)  # by the number of replies

    def add_plain(self, seconds: float) -> None:
        """Count a step that plain decoding would have taken as well."""
        self._exact += seconds
        self.add(0, seconds)

    def add(self, tokens: int, plain: float | None = None) -> None:
        """Count tokens, and estimate their plain decoding. `plain`: their cycle's seconds, if it was a plain step."""
        now = self.known()
        steps = self._steps.setdefault(now.replies, PlainSteps())
        steps.known = now.seconds
        if plain is not None:
            steps.latest.append(plain)
        steps.doubt += tokens / math.sqrt(max(len(steps.latest), 1))
        steps.waiting += tokens
        # Few tokens may wait to be counted: all get the present cost of a plain step, which grows with the context.
        is_known = len(steps.latest) >= SEVERAL or steps.waiting > SEVERAL * MEMORY
        if (step := steps.seconds) is not None and is_known:
            self._judged += steps.waiting * step
            steps.waiting = 0

    @property
    def seconds(self) -> float:
        """The seconds of plain decoding for all tokens; 0 while the cost of a plain step is unknown."""
        usual = max((steps.seconds or 0.0 for steps in self._steps.values()), default=0.0)
        waiting = sum(steps.waiting * (steps.seconds or usual) for steps in self._steps.values())
        return self._exact + self._judged + waiting

    @property
    def error(self) -> float:
        """The standard error of `seconds`; only the estimated part of `seconds` has an error."""
        return sum(steps.error for steps in self._steps.values())


def middle(durations: Iterable[float]) -> float:
    """Return the mean of the middle half of the values; for two values the lower one, because noise only adds time."""
    ordered = sorted(durations)
    edge = max(len(ordered) // SEVERAL, 1) if len(ordered) > 2 else 0
    inner = ordered[edge : len(ordered) - edge] if edge else ordered[:1]
    return sum(inner) / len(inner)
