"""How far copied tokens can be trusted, learned from what became of earlier guesses.

Counts alone are over-confident: a match seen once says nothing about its share. So acceptance is counted by
the length of the match, the depth in the proposal, and whether all places agreed.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

MATCHES = (4, 6, 9, 17, 33)  # lengths at which a new bucket begins: 3, 4-5, 6-8, 9-16, 17-32, more
DEPTHS = (1, 3, 7)  # 0-based depths at which a new bucket begins: first, 2nd-3rd, 4th-7th, more
PRIOR = (0.4, 0.55, 0.7, 0.8, 0.9, 0.93)  # by match length, before anything was seen
PRIOR_COUNT = 4.0
AGREED = 0.99  # share of places from which on they count as unanimous
DECAY = 0.998  # per emitted token
CELLS = len(PRIOR) * (len(DEPTHS) + 1) * 2


@dataclass(frozen=True, slots=True)
class TrustCounts:
    """Discounted counts by cell, in a form that can be stored."""

    kept: tuple[float, ...]
    rejected: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raises ValueError for what are no counts, as a damaged file may hold."""
        if not all(isfinite(count) and count >= 0 for count in (*self.kept, *self.rejected)):
            raise ValueError(f"counts are finite and not negative: {self}")


class Trust:
    """P(the target keeps a copied token | it is reached), by match length, depth and agreement."""

    def __init__(self, prior: TrustCounts | None = None, beliefs: Sequence[float] = PRIOR) -> None:
        """`beliefs`: the chance by match length before anything was seen."""
        self._beliefs = beliefs
        fits = prior is not None and len(prior.kept) == len(prior.rejected) == CELLS
        self._kept = list(prior.kept) if prior and fits else [0.0] * CELLS
        self._rejected = list(prior.rejected) if prior and fits else [0.0] * CELLS
        self._weight = 1.0  # of a new count; grows instead of shrinking all the old ones

    def counts(self) -> TrustCounts:
        return TrustCounts(
            tuple(k / self._weight for k in self._kept), tuple(r / self._weight for r in self._rejected)
        )

    def rate(self, match: int, depth: int, share: float) -> float:
        """The chance of the token at `depth` (from 0), on which `share` of the places agree."""
        i = cell(match, depth, share)
        prior = PRIOR_COUNT * self._weight
        believed = self._beliefs[bisect_right(MATCHES, match)] * share
        return (self._kept[i] + prior * believed) / (self._kept[i] + self._rejected[i] + prior)

    def learn(self, match: int, shares: Sequence[float], agreed: int, emitted: int) -> None:
        """`shares` of the guessed tokens that were judged; the first `agreed` of them came true."""
        self._weight /= DECAY**emitted
        if self._weight > 1e6:
            self._rescale()
        for depth, share in enumerate(shares):
            counts = self._kept if depth < agreed else self._rejected
            counts[cell(match, depth, share)] += self._weight

    def _rescale(self) -> None:
        self._kept = [k / self._weight for k in self._kept]
        self._rejected = [r / self._weight for r in self._rejected]
        self._weight = 1.0


def cell(match: int, depth: int, share: float) -> int:
    bucket = bisect_right(MATCHES, match) * (len(DEPTHS) + 1) + bisect_right(DEPTHS, depth)
    return 2 * bucket + (share >= AGREED)
