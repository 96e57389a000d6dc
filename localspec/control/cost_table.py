"""A table of costs: the time of a target pass by batch width, and of one run of each drafter's model."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import isfinite
from typing import Self


@dataclass(frozen=True, slots=True)
class CostTable:
    """The seconds of a target pass by batch width, and the seconds of one run of each drafter's model."""

    widths: tuple[int, ...]  # batch widths, ascending from 1
    verify_seconds: tuple[float, ...]  # seconds of a target pass, one for each width
    run_seconds: dict[str, float] = field(default_factory=dict)  # seconds of a run, by `Drafter.source`
    measured: bool = True  # whether the costs were measured on this machine, not estimated
    context_tokens: int = 0  # number of tokens in the cache during the measurement
    prefill_seconds: dict[str, float] = field(default_factory=dict)  # seconds per token, by `Drafter.source`
    # Number of replies that share each pass. Width 1 is a plain step of all replies, and each draft token adds 1.
    replies: int = 1

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

    def shared_by(self, replies: int) -> Self:
        """Return the table for another number of replies. Assume that passes of the same width cost the same."""
        more = replies - self.replies
        widths = tuple(sorted({1, *(width - more for width in self.widths if width > 1 + more)}))
        seconds = tuple(self.verify(width + more) for width in widths)
        return replace(self, widths=widths, verify_seconds=seconds, replies=replies)


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
