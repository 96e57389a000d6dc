"""What a cycle costs by a table: the target by batch width, and each drafter by its runs."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import isfinite
from typing import Self


@dataclass(frozen=True, slots=True)
class CostTable:
    """Seconds of a target pass by batch width, and of a run of each drafter; widths in between are interpolated.

    Passes follow passes of the same width, as in plain decoding. A device that records its passes (CUDA
    graphs) takes longer after a change of width: the first pass is launched kernel by kernel (direct), the second is
    recorded (capture), and from the third on the recording is replayed.
    """

    widths: tuple[int, ...]  # ascending, from 1
    verify_seconds: tuple[float, ...]  # one for each width
    run_seconds: dict[str, float] = field(default_factory=dict)  # of a drafter's model, by `Drafter.source`
    measured: bool = True  # on this machine, with these files; otherwise the seconds are only in proportion
    direct_extra_seconds: float = 0.0  # of the first pass of a width, beyond a replayed one
    capture_extra_seconds: float = 0.0  # of the second
    context_tokens: int = 0  # in the cache when it was measured
    reading_seconds: dict[str, float] = field(default_factory=dict)  # of a token among many, likewise
    # That share the passes: width 1 is a plain step of all of them, and each draft token adds 1.
    replies: int = 1

    def __post_init__(self) -> None:
        """Raises ValueError for an invalid table, for example from a damaged file."""
        ascending = all(one < other for one, other in pairwise((0, *self.widths)))
        if self.widths[:1] != (1,) or not ascending or len(self.widths) != len(self.verify_seconds):
            raise ValueError(f"widths ascend from 1, each with its seconds: {self}")
        drafters = (*self.run_seconds.values(), *self.reading_seconds.values())
        others = (*drafters, self.direct_extra_seconds, self.capture_extra_seconds)
        if min(self.verify_seconds) <= 0 or min(*others, self.context_tokens) < 0:
            raise ValueError(f"a pass takes time: {self}")
        if not all(map(isfinite, (*self.verify_seconds, *others))):
            raise ValueError(f"costs are finite: {self}")

    def verify(self, width: float) -> float:
        """Seconds of a target pass over `width` tokens; beyond the last width the last slope continues."""
        return interpolate(width, self.widths, self.verify_seconds, extend=True)

    def shared_by(self, replies: int) -> Self:
        """A guess for this number of replies: a pass of as many tokens takes as long."""
        more = replies - self.replies
        widths = tuple(sorted({1, *(width - more for width in self.widths if width > 1 + more)}))
        seconds = tuple(self.verify(width + more) for width in widths)
        return replace(self, widths=widths, verify_seconds=seconds, replies=replies)


def interpolate(x: float, xs: Sequence[float], ys: Sequence[float], *, extend: bool) -> float:
    """Piecewise linear through (xs, ys), xs ascending; flat outside, or with the last slope if extended."""
    if x <= xs[0] or len(xs) == 1:
        return ys[0]
    if x >= xs[-1]:
        slope = (ys[-1] - ys[-2]) / (xs[-1] - xs[-2]) if extend else 0.0
        return ys[-1] + max(slope, 0.0) * (x - xs[-1])
    i = next(i for i, edge in enumerate(xs) if edge >= x)
    share = (x - xs[i - 1]) / (xs[i] - xs[i - 1])
    return ys[i - 1] + share * (ys[i] - ys[i - 1])
