"""Means of ratios with their intervals, and a bound for sums."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST_FREEDOM = 2  # below, Student's interval would be a guess

Log = float
"""The logarithm of a ratio: 2x and 0.5x are equally far from 1x."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A middle value with its 95 % interval; from 0 to infinity if too little is known."""

    middle: float
    low: float = 0.0
    high: float = math.inf

    @property
    def known(self) -> bool:
        return self.high < math.inf


def mean_ratio(groups: Sequence[Sequence[Sequence[Log]]]) -> Interval:
    """The geometric mean of paired ratios, every group with the same weight, with its interval.

    groups[g][p] holds the repeated measurements of prompt p in group g. Repetitions become their median,
    which one disturbed run cannot move. The interval is Student's, about other prompts of the same kinds.
    Raises ValueError without any ratio.
    """
    groups = [[prompt for prompt in group if prompt] for group in groups]
    groups = [group for group in groups if group]
    if not groups:
        raise ValueError("no ratios")
    medians = [np.array([np.median(prompt) for prompt in group]) for group in groups]
    middle = float(np.mean([group.mean() for group in medians]))
    freedom = sum(map(len, groups)) - len(groups)
    if freedom < LEAST_FREEDOM:
        return Interval(math.exp(middle))
    # A group of one shows no spread.
    variance = sum(group.var(ddof=1) / group.size for group in medians if group.size > 1) / len(groups) ** 2
    margin = student_quantile(freedom) * math.sqrt(variance)
    return Interval(math.exp(middle), math.exp(middle - margin), math.exp(middle + margin))


def student_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, from the normal's by Fisher's expansion; 3 % short at 2 degrees."""
    z = 1.959964
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    quantile: float = z + sum(term / freedom**power for power, term in enumerate(terms, start=1))
    return quantile


def bernstein(total: float, variance: float, bound: float) -> float:
    """An upper bound of the probability that a sum of independent centred terms is this far from 0.

    `variance` is that of the sum, `bound` the largest absolute term. Bernstein's inequality holds for any terms,
    without approximation.
    """
    if variance <= 0.0:
        return 1.0 if abs(total) <= 1e-9 * bound else 0.0
    return min(1.0, 2.0 * math.exp(-(total**2) / (2.0 * (variance + bound * abs(total) / 3.0))))
