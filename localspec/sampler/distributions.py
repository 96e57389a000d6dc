"""Arithmetic on sparse distributions: draw from one, and subtract one from another."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Distribution:
    """A sparse probability distribution after the whole sampler chain."""

    ids: np.ndarray  # int [n], ascending
    probabilities: np.ndarray  # float64 [n], sums to 1

    def of(self, token: int) -> float:
        """The probability of a token; 0.0 when the chain removed it."""
        i = int(np.searchsorted(self.ids, token))
        return float(self.probabilities[i]) if i < len(self.ids) and self.ids[i] == token else 0.0


_BLOCK = 512
_BELOW_ONE = 1.0 - 2.0**-53


def pick(distribution: Distribution, u: float) -> int:
    """The token at height u of the cumulative distribution, u in [0, 1); never one of probability 0."""
    weights = distribution.probabilities
    if len(weights) > 8 * _BLOCK:
        return int(distribution.ids[_pick_in_blocks(weights, u)])
    return int(distribution.ids[_index_at(weights, u)])


def _index_at(weights: np.ndarray, u: float) -> int:
    """The first index whose cumulative weight exceeds u x the total."""
    heights = np.cumsum(weights)
    total = heights[-1]
    # u x total can round up to the total itself; the last index that adds weight is then meant.
    last = int(heights.searchsorted(total))
    return min(int(heights.searchsorted(u * total, side="right")), last)


def _pick_in_blocks(weights: np.ndarray, u: float) -> int:
    """`_index_at` in two steps, first a block and then a place in it: a full cumulative sum is slower."""
    sums = np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK))
    block = _index_at(sums, u)
    inside = float((u * sums.sum() - sums[:block].sum()) / sums[block])
    begin = block * _BLOCK
    return begin + _index_at(weights[begin : begin + _BLOCK], min(max(inside, 0.0), _BELOW_ONE))


def excess(p: Distribution, q: Distribution | None, drafted: int, share: float = 1.0) -> np.ndarray:
    """max(share x p - q, 0) over the tokens of p, float64 [n]; q None is all mass on the drafted token."""
    weights = share * p.probabilities
    if q is None:
        weights[p.ids == drafted] = 0.0
        return weights
    if q.ids is p.ids:
        weights -= q.probabilities
        return np.maximum(weights, 0.0, out=weights)
    at = np.minimum(q.ids.searchsorted(p.ids), len(q.ids) - 1)
    shared = q.ids[at] == p.ids
    weights[shared] -= q.probabilities[at[shared]]
    return np.maximum(weights, 0.0, out=weights)


def normalised(ids: np.ndarray, weights: np.ndarray, otherwise: Distribution) -> Distribution:
    """Weights as a distribution; `otherwise` when all are 0, which rounding alone can bring about."""
    total = weights.sum()
    return Distribution(ids, weights / total) if total > 0.0 else otherwise
