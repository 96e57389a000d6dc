"""How unlikely counts are under an exact law: p-values that hold far out in the tail."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

LEAST_EXPECTED = 10.0  # rarer outcomes share one cell


def bernstein(total: float, variance: float, bound: float) -> float:
    """At most the probability that a sum of independent centred terms is this far from 0 on either side.

    `variance` is that of the sum, `bound` the largest absolute term. Bernstein's inequality:
    no approximation, whatever the terms look like.
    """
    if variance <= 0.0:
        return 1.0 if abs(total) <= 1e-9 * bound else 0.0
    return min(1.0, 2.0 * math.exp(-(total**2) / (2.0 * (variance + bound * abs(total) / 3.0))))


def needed_distance(alpha: float) -> float:
    """How many standard deviations `bernstein` asks for at level alpha, where many terms are summed."""
    return math.sqrt(2.0 * math.log(2.0 / alpha))


@dataclass(slots=True)
class Pearson:
    """Pearson's statistic, summed over independent tables of counts, with its exact mean and variance."""

    statistic: float = 0.0
    mean: float = 0.0
    variance: float = 0.0

    def add(self, counts: np.ndarray, law: np.ndarray) -> None:
        """Counts [k] of outcomes with probabilities [k]; rare outcomes are put together."""
        draws = float(counts.sum())
        seen, chances = merged(counts.astype(float), law, draws)
        cells = len(chances)
        if cells < 2:
            return
        expected = draws * chances
        self.statistic += float(((seen - expected) ** 2 / expected).sum())
        self.mean += cells - 1
        # The variance of Pearson's statistic for a multinomial (Haldane 1937).
        self.variance += 2 * (cells - 1) + (float((1 / chances).sum()) - cells**2 - 2 * cells + 2) / draws

    def p_value(self) -> float:
        """The upper tail of the gamma law of the same mean and variance (Wilson and Hilferty 1931)."""
        if self.variance <= 0.0:
            return 1.0
        spread = self.variance / self.mean**2 / 9.0
        z = ((self.statistic / self.mean) ** (1 / 3) - (1.0 - spread)) / math.sqrt(spread)
        return 0.5 * math.erfc(z / math.sqrt(2.0))


def merged(counts: np.ndarray, law: np.ndarray, draws: float) -> tuple[np.ndarray, np.ndarray]:
    """The cells that are expected often enough, the others as one cell, or with the rarest of these."""
    common = law * draws >= LEAST_EXPECTED
    if common.all():
        return counts, law
    rest, rest_law = counts[~common].sum(), law[~common].sum()
    counts, law = counts[common], law[common]
    if rest_law * draws >= LEAST_EXPECTED or not len(law):
        return np.append(counts, rest), np.append(law, rest_law)
    rarest = int(law.argmin())
    counts[rarest] += rest
    law[rarest] += rest_law
    return counts, law


def smallest(values: Iterable[float]) -> float:
    """The smallest p-value; 1 where there is none."""
    return min(values, default=1.0)
