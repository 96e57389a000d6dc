"""The sampler chain: from a row of logits to the distribution that a token is drawn from.

A grammar's mask, bias, penalties, top-k, top-p, min-p, temperature: the order is llama.cpp's. Temperature
comes last, so top-p and min-p look at the distribution at temperature 1. Target and draft share the chain; where it
keeps every token, drafts do without the unlikely ones.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol

import numpy as np

from localspec.errors import BackendFailure
from localspec.sampler.passes import Candidates, Row
from localspec.sampler.penalties import Written, biased
from localspec.sampler.sampling import Sampling

_ALL = slice(None)


@dataclass(frozen=True, slots=True)
class Distribution:
    """A probability distribution after the whole sampler chain: each token's weight / `total`.

    That of a whole row holds logits, and weighs those that are asked for. It is valid as long as the row.
    """

    ids: np.ndarray  # int [n], ascending
    values: np.ndarray  # float [n]: weights, or what `weigh` makes weights of
    total: float = 1.0  # of the weights
    weigh: Callable[[np.ndarray], np.ndarray] | None = None
    sums: np.ndarray | None = None  # of the weights of each block, float64

    def weights(self, at: slice | np.ndarray = _ALL) -> np.ndarray:
        """The weights at these indices."""
        values = self.values[at]
        return self.weigh(values) if self.weigh else values

    @property
    def probabilities(self) -> np.ndarray:
        """float64 [n], sums to 1."""
        if self.weigh is None and self.total == 1.0:
            return self.values
        return self.weights().astype(np.float64) / self.total

    def of(self, token: int) -> float:
        """The probability of a token; 0.0 when the chain removed it."""
        i = int(self.ids.searchsorted(token))
        if i == len(self.ids) or self.ids[i] != token:
            return 0.0
        return float(self.weights(slice(i, i + 1))[0]) / self.total

    def shares(self, tokens: np.ndarray) -> np.ndarray:
        """The probability of each of these tokens, float64 [m]."""
        at, known = self.places(tokens)
        return np.where(known, self.weights(at).astype(np.float64), 0.0) / self.total

    def places(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The index of each of these tokens, and whether it is there at all."""
        last = len(self.ids) - 1
        at = np.minimum(tokens if self.ids[last] == last else self.ids.searchsorted(tokens), last)
        return at, self.ids[at] == tokens


_BLOCK = 512
_BELOW_ONE = 1.0 - 2.0**-53


def pick(distribution: Distribution, u: float) -> int:
    """The token at height u of the cumulative distribution, u in [0, 1); never one of probability 0."""
    if len(distribution.ids) > 8 * _BLOCK:
        return int(distribution.ids[_pick_in_blocks(distribution, u)])
    return int(distribution.ids[_index_at(distribution.weights(), u)])


def _index_at(weights: np.ndarray, u: float) -> int:
    """The first index whose cumulative weight exceeds u x the total."""
    heights = weights.cumsum(dtype=np.float64)
    total = heights[-1]
    # u x total can round up to the total itself; the last index that adds weight is then meant.
    last = int(heights.searchsorted(total))
    return min(int(heights.searchsorted(u * total, side="right")), last)


def _pick_in_blocks(distribution: Distribution, u: float) -> int:
    """`_index_at` in two steps, first a block and then a place in it: a full cumulative sum is slower."""
    sums = _block_sums(distribution.weights()) if distribution.sums is None else distribution.sums
    block = _index_at(sums, u)
    inside = float((u * sums.sum() - sums[:block].sum()) / sums[block])
    begin = block * _BLOCK
    within = distribution.weights(slice(begin, begin + _BLOCK)).astype(np.float64)
    return begin + _index_at(within, min(max(inside, 0.0), _BELOW_ONE))


def _block_sums(weights: np.ndarray) -> np.ndarray:
    """The sum of each block, float64."""
    whole = len(weights) // _BLOCK * _BLOCK
    # Three times as fast as `sum`, and as exact: many lanes add a few weights each.
    sums = np.einsum("ij->i", weights[:whole].reshape(-1, _BLOCK))
    return np.append(sums, weights[whole:].sum(dtype=np.float64)).astype(np.float64)


def excess_mass(p: Distribution, q: Distribution | None, drafted: int, share: float) -> float:
    """The sum of max(share x p - q, 0) over all tokens; q None is all mass on the drafted token."""
    if q is None:
        return share * (1.0 - p.of(drafted))
    here = p.shares(q.ids)
    over = np.maximum(share * here - q.probabilities, 0.0)
    return max(float(np.add.reduce(over) + share * (1.0 - np.add.reduce(here))), 0.0)


def excess(p: Distribution, q: Distribution | None, drafted: int, share: float = 1.0) -> Distribution:
    """max(share x p - q, 0) as a distribution; p where nothing is left, which rounding alone can bring about."""
    weights = p.weights().astype(np.float64)
    weights *= share / p.total
    if q is None:
        weights[p.ids == drafted] = 0.0
    else:
        at, known = p.places(q.ids)
        at = at[known]
        weights[at] = np.maximum(weights[at] - q.probabilities[known], 0.0)
    total = float(weights.sum())
    return Distribution(p.ids, weights, total) if total > 0.0 else p


_STRIPES = 64  # at most
_SPARE = 4  # columns for each logit wanted, so that few of them are looked at more closely


def largest(row: Row, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The `count` largest logits as (ids ascending, float64 logits); of equal ones the lowest ids.

    A whole row is folded into stripes. The k-th largest column maximum is at most the k-th largest logit,
    so only columns whose maximum reaches it can hold one of the k largest. Raises BackendFailure for a broken row.
    """
    if isinstance(row, Candidates):
        order = row.ids.argsort()
        return _cut(row.ids[order], row.logits[order], count)
    stripes = min(_STRIPES, len(row) // (_SPARE * count))
    if stripes < 2:
        return _cut(np.arange(len(row)), row, count)
    columns = len(row) // stripes
    folded, rest = row[: stripes * columns].reshape(stripes, columns), row[stripes * columns :]
    maxima = np.maximum.reduce(folded)
    ordered = maxima.copy()
    ordered.partition(columns - count)
    least = ordered[-count]
    # Not `>=`, which would pass over NaN.
    chosen = (~(maxima < least)).nonzero()[0]
    stripe, column = np.divmod((~(folded[:, chosen] < least)).ravel().nonzero()[0], len(chosen))
    ids = stripe * columns + chosen[column]
    if len(rest):
        ids = np.append(ids, stripes * columns + (~(rest < least)).nonzero()[0])
    return _cut(ids, row[ids], count)


def _cut(ids: np.ndarray, logits: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The `count` largest of some logits whose ids ascend."""
    _checked(np.maximum.reduce(logits))
    if len(ids) > count:
        kept = (-logits).argsort(kind="stable")[:count]
        kept.sort()
        ids, logits = ids[kept], logits[kept]
    return ids, logits.astype(np.float64)


GREEDY_HEAD = 10  # tokens that the confidence of a greedy choice is measured against
SPARE = 128  # logits beyond those wanted: of a text, seldom more of the likeliest tokens were written


class Constraint(Protocol):
    """The tokens that a grammar allows after a text, the same for target and draft, before the rest of the chain."""

    def permitted(self, row: Row, history: Sequence[int]) -> Row:
        """A row without the tokens forbidden after `history`.

        Their logits are -inf, or the allowed ones come as Candidates with ascending ids.
        """


class Chain:
    """The sampler chain of one request; every method is a pure function of a row and the text before it.

    A row of candidates counts as a whole one. A draft's may lack tokens, because any q is lossless; where a target's
    lacks some that may count, it gives the whole row.
    """

    def __init__(self, sampling: Sampling, constraint: Constraint | None = None) -> None:
        self.sampling = sampling
        self._drafting = _of_drafts(sampling)
        self._constraint = constraint
        self._needs_all = bool(constraint) or sampling.logits_needed is None
        self._written = Written(sampling) if sampling.penalises else None
        self._scratch = np.zeros(0, np.float32)  # as long as a row

    @property
    def _lowered(self) -> int:
        """How many logits bias and penalties change at most; where the penalties see the whole text, a guess."""
        s = self.sampling
        looked_at = SPARE if s.repeat_last_n < 0 else s.repeat_last_n
        return len(s.logit_bias) + (looked_at if self._written else 0)

    def distribution(self, row: Row, history: Sequence[int], *, drafts: bool = False) -> Distribution:
        """The distribution of the token after `history`, at a temperature above 0; no probability is 0.

        `drafts`: it is for a draft, so that unlikely tokens may be missing.
        """
        s = self._drafting if drafts else self.sampling
        row = self._permitted(row, history)
        if isinstance(row, Candidates) or s.top_k:
            size = len(row.ids if isinstance(row, Candidates) else row)
            ids, logits = self._head(row, history, s.top_k or size)
            return _shaped(ids, logits, s, total=None)
        logits = self._adjusted(row, history)
        if s.top_p == 1.0 and s.min_p == 0.0:
            return self._everything(logits, s.temperature)
        ids, total = self._worth_keeping(logits, s)
        return _shaped(ids, logits if ids is _all_ids(len(logits)) else logits[ids], s, total)

    def _everything(self, logits: np.ndarray, temperature: float) -> Distribution:
        """The distribution of a whole row: one pass over it that allocates nothing, and no sort."""
        top = _checked(logits.max())
        weights = _heights(logits, top, temperature, self._as_long_as(logits))
        if np.minimum.reduce(weights) == 0.0:
            ids = (weights != 0.0).nonzero()[0]
            weights = weights[ids].astype(np.float64)
            return Distribution(ids, weights, float(np.add.reduce(weights)))
        sums = _block_sums(weights)
        ids, total = _all_ids(len(logits)), float(np.add.reduce(sums))
        return Distribution(ids, logits, total, lambda some: _heights(some, top, temperature), sums)

    def _worth_keeping(self, logits: np.ndarray, s: Sampling) -> tuple[np.ndarray, float | None]:
        """The tokens of a whole row that top-p and min-p can keep, and the row's sum of exp(logit - largest).

        Both filters keep the largest logits down to an edge; tokens below either edge are out. The sum is None if
        top-p is off.
        """
        top = _checked(logits.max())
        if s.top_p == 1.0:
            return (logits >= top + math.log(s.min_p)).nonzero()[0], None
        heights = _heights(logits, top, 1.0, self._as_long_as(logits))
        total = float(np.add.reduce(_block_sums(heights)))
        if s.min_p > 0.0:
            return (logits >= top + math.log(s.min_p)).nonzero()[0], total
        for edge in _EDGES:
            ids = (heights >= edge).nonzero()[0]
            if heights[ids].sum(dtype=np.float64) >= s.top_p * total:
                return ids, total
        return _all_ids(len(logits)), total

    def _as_long_as(self, row: np.ndarray) -> np.ndarray:
        """float32 [n] to write to; valid until the next call."""
        if len(self._scratch) != len(row):
            self._scratch = np.empty(len(row), np.float32)
        return self._scratch

    def likeliest(self, row: Row, history: Sequence[int]) -> tuple[int, float]:
        """The likeliest token after `history`, and its probability among the ten likeliest."""
        ids, logits = self._head(self._permitted(row, history), history, GREEDY_HEAD)
        at = int(logits.argmax())
        return int(ids[at]), float(1.0 / np.exp(logits - logits[at]).sum())

    def best(self, row: Row, history: Sequence[int]) -> int:
        """The likeliest token after `history`; of equal ones the lowest id."""
        row = self._permitted(row, history)
        if isinstance(row, Candidates) or self._adjusts:
            return int(self._head(row, history, 1)[0][0])
        at = int(row.argmax())
        _checked(row[at])
        return at

    @property
    def _adjusts(self) -> bool:
        """Whether bias or penalties change a row."""
        return bool(self.sampling.logit_bias or self._written)

    def _permitted(self, row: Row, history: Sequence[int]) -> Row:
        """The row without forbidden tokens, and whole where all of it counts."""
        if self._needs_all and isinstance(row, Candidates) and row.whole:
            row = row.whole()
        return self._constraint.permitted(row, history) if self._constraint else row

    def _adjusted(
        self, logits: np.ndarray, history: Sequence[int], ids: np.ndarray | None = None
    ) -> np.ndarray:
        """Logits of these tokens after bias and penalties, or a whole row; itself where there are none."""
        logits = biased(logits, ids, self.sampling.logit_bias)
        return self._written.penalised(logits, ids, history) if self._written else logits

    def _head(self, row: Row, history: Sequence[int], count: int) -> tuple[np.ndarray, np.ndarray]:
        """The `count` largest logits after bias and penalties, ids ascending."""
        if isinstance(row, Candidates):
            found = self._among(row, history, count)
            # Left-out logits are no larger than the least of these, and have not grown.
            if row.whole is None or found[1].min() > row.logits.min():
                return found
            row = row.whole()
        if not self._adjusts:
            return largest(row, count)
        if self.sampling.only_lowers:
            ids, logits = largest(row, count + self._lowered)
            found = self._among(Candidates(ids, row[ids]), history, count)
            if self.sampling.repeat_last_n >= 0 or found[1].min() > logits.min():
                return found
        return largest(self._adjusted(row, history), count)

    def _among(self, row: Candidates, history: Sequence[int], count: int) -> tuple[np.ndarray, np.ndarray]:
        """The same of these tokens alone."""
        if not self._adjusts:
            return largest(row, count)
        order = row.ids.argsort()
        ids, logits = row.ids[order], row.logits[order]
        _checked(logits.max())
        return largest(Candidates(ids, self._adjusted(logits, history, ids)), count)


_EDGES = tuple(math.exp(-nats) for nats in (4.0, 8.0, 12.0, 16.0))  # of heights: so that few are sorted
_DRAFTED_NATS = 10.0  # of SmolLM2's acceptance at temperature 1 this costs 0.2 %, of its time 60 %


def _of_drafts(s: Sampling) -> Sampling:
    """The settings for drafts: of those that keep every token, likely ones suffice, because any q is lossless."""
    if s.greedy or s.top_k or s.top_p < 1.0 or s.min_p > 0.0:
        return s
    return replace(s, min_p=math.exp(-_DRAFTED_NATS * s.temperature))


@cache
def _all_ids(size: int) -> np.ndarray:
    """0 to size, one array for each size."""
    ids = np.arange(size)
    ids.flags.writeable = False
    return ids


def _shaped(ids: np.ndarray, logits: np.ndarray, s: Sampling, total: float | None) -> Distribution:
    """Top-p, min-p and temperature on logits [n]; `total` as above where n is not the whole row."""
    top = np.maximum.reduce(logits)
    probable = logits >= top + math.log(s.min_p) if s.min_p > 0.0 else None
    if s.top_p < 1.0:
        order = (-logits).argsort(kind="stable")
        heights = np.exp(logits[order] - top).cumsum(dtype=np.float64)
        reached = 1 + int(heights.searchsorted(s.top_p * (heights[-1] if total is None else total)))
        kept = order[: reached if probable is None else min(reached, np.count_nonzero(probable))]
        kept.sort()
        ids, logits = ids[kept], logits[kept]
    elif probable is not None:
        ids, logits = ids[probable], logits[probable]
    weights = logits - top
    weights /= s.temperature
    weights = np.exp(weights, out=weights).astype(np.float64, copy=False)
    if not weights.all():
        ids, weights = ids[weights > 0.0], weights[weights > 0.0]
    weights /= np.add.reduce(weights)
    return Distribution(ids, weights)


def _heights(logits: np.ndarray, top: float, temperature: float, out: np.ndarray | None = None) -> np.ndarray:
    """exp of (logit - top) / temperature; `out` takes them."""
    heights: np.ndarray = np.subtract(logits, top, out=out)
    if temperature != 1.0:
        heights *= 1.0 / temperature  # half of the time of a division
    np.exp(heights, out=heights)
    return heights


def _checked(top: float) -> float:
    """The largest logit of a row, if it is a number."""
    if not math.isfinite(top):
        raise BackendFailure(
            f"the model returned a row whose largest logit is {top}",
            hint="the model file may be damaged, or the device's kernels faulty: try the CPU (--device CPU)",
        )
    return top
