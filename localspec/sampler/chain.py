"""The sampler chain: from a row of logits to the distribution that a token is drawn from.

A grammar's mask, bias, penalties, top-k, top-p, min-p, temperature: the order is llama.cpp's. Temperature
comes last, so top-p and min-p look at the distribution at temperature 1. Target and draft share the chain.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np

from localspec.errors import BackendFailure
from localspec.sampler.passes import Candidates, Row
from localspec.sampler.sampling import Sampling


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


@dataclass(frozen=True, slots=True)
class Counts:
    """How often each token stands in a text."""

    ids: np.ndarray  # int64 [n], ascending
    times: np.ndarray  # float64 [n]

    @classmethod
    def of(cls, tokens: Sequence[int]) -> "Counts":
        ids, times = np.unique(np.fromiter(tokens, np.int64, len(tokens)), return_counts=True)
        return cls(ids, times.astype(np.float64))

    def plus(self, tokens: Sequence[int]) -> "Counts":
        """The same with a few more tokens."""
        more = Counts.of(tokens)
        if not (len(self.ids) and len(tokens)):
            return self if len(self.ids) else more
        at = self.ids.searchsorted(more.ids)
        known = self.ids.take(at, mode="clip") == more.ids
        times = self.times.copy()
        times[at[known]] += more.times[known]
        new = at[~known]
        return Counts(np.insert(self.ids, new, more.ids[~known]), np.insert(times, new, more.times[~known]))


NOTHING = Counts.of(())


def adjust(ids: np.ndarray | None, logits: np.ndarray, sampling: Sampling, recent: Counts) -> None:
    """Apply bias and penalties in place to logits [n] of tokens `ids` [n] ascending (None: a whole row).

    `recent` are the tokens that the penalties look back at. Tokens outside the logits are passed over.
    """
    if sampling.logit_bias:
        tokens, biases = (np.array(part) for part in zip(*sampling.logit_bias, strict=True))
        if ids is None:
            known = tokens < len(logits)
            np.add.at(logits, tokens[known], biases[known])
        else:
            at = np.minimum(ids.searchsorted(tokens), len(ids) - 1)
            known = ids[at] == tokens
            np.add.at(logits, at[known], biases[known])
    if not len(recent.ids):
        return
    if ids is None:
        count = int(recent.ids.searchsorted(len(logits)))
        at, times = recent.ids[:count], recent.times[:count]
    else:
        place = recent.ids.searchsorted(ids)
        at = np.flatnonzero(recent.ids.take(place, mode="clip") == ids)
        times = recent.times[place[at]]
    was = logits[at]
    # Dividing would make a negative logit likelier.
    scaled = np.where(was <= 0.0, was * sampling.repeat_penalty, was / sampling.repeat_penalty)
    logits[at] = scaled - (times * sampling.frequency_penalty + sampling.presence_penalty)


_STRIPES = 64  # at most
_SPARE = 4  # columns for each logit wanted, so that few of them are looked at more closely


def largest(row: Row, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The `count` largest logits as (ids ascending, float64 logits); of equal ones the lowest ids.

    A whole row is folded into stripes. The k-th largest column maximum is at most the k-th largest logit,
    so only columns whose maximum reaches it can hold one of the k largest.
    """
    if isinstance(row, Candidates):
        order = row.ids.argsort()
        return _cut(row.ids[order], row.logits[order], count)
    stripes = min(_STRIPES, len(row) // (_SPARE * count))
    if stripes < 2:
        return _cut(np.arange(len(row)), row, count)
    columns = len(row) // stripes
    folded = row[: stripes * columns].reshape(stripes, columns)
    rest = row[stripes * columns :]
    maxima = folded.max(axis=0)
    least = np.partition(maxima, -count)[-count]
    chosen = np.flatnonzero(maxima >= least)
    stripe, column = np.nonzero(folded[:, chosen] >= least)
    ids = np.concatenate(
        (stripe * columns + chosen[column], stripes * columns + np.flatnonzero(rest >= least))
    )
    return _cut(ids, row[ids], count)


def likeliest(row: np.ndarray, rivals: int) -> tuple[int, float]:
    """The largest logit's id (the lowest of equal ones), and its share of exp(logit) among the largest.

    On a large vocabulary the others are the largest of as many columns of the fold: nearly always the next
    largest logits, at the cost of one pass over the row.
    """
    columns = len(row) // _STRIPES
    if columns < _STRIPES * rivals:
        token = int(row.argmax())
        return token, _share(row[token], largest(row, rivals)[1])
    folded = row[: _STRIPES * columns].reshape(_STRIPES, columns)
    maxima = folded.max(axis=0)
    if len(row) > _STRIPES * columns:
        maxima = np.append(maxima, row[_STRIPES * columns :].max())
    top = maxima.max()
    best = np.flatnonzero(maxima == top)
    # Ties, the unfolded tail and NaN are rare enough for a second pass.
    alone = len(best) == 1 and best[0] < columns
    token = int(folded[:, best[0]].argmax()) * columns + int(best[0]) if alone else int(row.argmax())
    return token, _share(top, np.partition(maxima, -rivals)[-rivals:])


def _share(top: float, logits: np.ndarray) -> float:
    return float(1.0 / np.exp(logits - top).sum()) if np.isfinite(top) else np.nan


def _cut(ids: np.ndarray, logits: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The `count` largest of some logits whose ids ascend."""
    if len(ids) > count:
        kept = np.sort((-logits).argsort(kind="stable")[:count])
        ids, logits = ids[kept], logits[kept]
    return ids, logits.astype(np.float64)


GREEDY_HEAD = 10  # tokens that the confidence of a greedy choice is measured against


class Constraint(Protocol):
    """The tokens that a grammar allows after a text, the same for target and draft, before the rest of the chain."""

    def permitted(self, row: Row, history: Sequence[int]) -> Row:
        """A row without the tokens forbidden after `history`.

        Their logits are -inf, or the allowed ones come as Candidates with ascending ids.
        """


class Chain:
    """The sampler chain of one request; every method is a pure function of a row and the text before it.

    A row of candidates counts as a whole one. A draft's may lack tokens, because any q is lossless; a target's must
    hold `candidates_needed`.
    """

    def __init__(self, sampling: Sampling, constraint: Constraint | None = None) -> None:
        self.sampling = sampling
        self._constraint = constraint
        self._text: list[int] = []  # that the penalties have counted
        self._counts = NOTHING  # of its tokens

    def candidates_needed(self) -> int | None:
        """How many of the largest logits suffice; None when a whole row is needed."""
        s = self.sampling
        head = GREEDY_HEAD if s.greedy else s.top_k
        if self._constraint or head == 0 or not s.only_lowers or (s.penalises and s.repeat_last_n < 0):
            return None
        return head + len(s.logit_bias) + (s.repeat_last_n if s.penalises else 0)

    def recall(self, history: Sequence[int]) -> list[int]:
        """The tail of a text that affects the next tokens.

        Its tokens are counted once here: later texts begin with it.
        """
        s = self.sampling
        looks_back = len(history) if s.repeat_last_n < 0 else s.repeat_last_n
        if s.penalises and s.repeat_last_n < 0:
            self._counts, self._text = self._recent(history), list(history)
        if self._constraint:
            return list(history)
        return list(history[-looks_back:]) if s.penalises else []

    def _recent(self, history: Sequence[int]) -> Counts:
        """The tokens that the penalties look back at."""
        s = self.sampling
        if not s.penalises:
            return NOTHING
        if s.repeat_last_n >= 0:
            return Counts.of(history[-s.repeat_last_n :])
        counted = len(self._text)
        if history[:counted] != self._text:
            return Counts.of(history)
        return self._counts.plus(history[counted:])

    def _permitted(self, row: Row, history: Sequence[int]) -> Row:
        """The row without what the constraint forbids."""
        return self._constraint.permitted(row, history) if self._constraint else row

    def distribution(self, row: Row, history: Sequence[int]) -> Distribution:
        """The distribution of the token after `history`, at a temperature above 0; no probability is 0."""
        s = self.sampling
        row = self._permitted(row, history)
        if isinstance(row, Candidates) or s.top_k:
            ids, logits = self._head(row, history, s.top_k or _size(row))
            return _shaped(ids, logits, s, total=None)
        logits = self._adjusted(row, history)
        ids, total = _worth_keeping(logits, s)
        return _shaped(ids, logits if ids is _all_ids(len(logits)) else logits[ids], s, total)

    def likeliest(self, row: Row, history: Sequence[int]) -> tuple[int, float]:
        """The likeliest token after `history`, and its probability among the ten likeliest."""
        s = self.sampling
        row = self._permitted(row, history)
        if not (isinstance(row, Candidates) or s.logit_bias or s.penalises):
            token, share = likeliest(row, GREEDY_HEAD)
            _checked(row[token])
            return token, share
        ids, logits = self._head(row, history, GREEDY_HEAD)
        at = int(logits.argmax())
        top = _checked(logits[at])
        return int(ids[at]), float(1.0 / np.exp(logits - top).sum())

    def best(self, row: Row, history: Sequence[int]) -> int:
        """The likeliest token after `history`; of equal ones the lowest id."""
        row = self._permitted(row, history)
        if isinstance(row, Candidates):
            ids, logits = self._head(row, history, 1)
        else:
            ids, logits = None, self._adjusted(row, history)
        at = int(logits.argmax())
        _checked(logits[at])
        return at if ids is None else int(ids[at])

    def _adjusted(self, row: np.ndarray, history: Sequence[int]) -> np.ndarray:
        """A whole row after bias and penalties; the row itself where there are none."""
        s = self.sampling
        if not (s.logit_bias or s.penalises):
            return row
        logits = row.copy()
        adjust(None, logits, s, self._recent(history))
        return logits

    def _head(self, row: Row, history: Sequence[int], count: int) -> tuple[np.ndarray, np.ndarray]:
        """The `count` largest logits after bias and penalties, ids ascending."""
        s = self.sampling
        _checked((row.logits if isinstance(row, Candidates) else row).max())  # selection would pass over NaN
        if not (s.logit_bias or s.penalises):
            return largest(row, count)
        if not isinstance(row, Candidates):
            return largest(self._adjusted(row, history), count)
        order = row.ids.argsort()
        ids, logits = row.ids[order], row.logits[order]
        adjust(ids, logits, s, self._recent(history))
        return largest(Candidates(ids, logits), count)


def _size(row: Row) -> int:
    """How many tokens a row holds."""
    return len(row.ids if isinstance(row, Candidates) else row)


def _worth_keeping(logits: np.ndarray, s: Sampling) -> tuple[np.ndarray, float | None]:
    """The tokens of a whole row that top-p and min-p can keep, and the row's sum of exp(logit - largest).

    Both filters keep the largest logits down to an edge; tokens below either edge are out. The sum is None if top-p is
    off.
    """
    top = _checked(logits.max())
    total = float(np.exp(logits - top).sum(dtype=np.float64)) if s.top_p < 1.0 else None
    if s.min_p > 0.0:
        return np.flatnonzero(logits >= top + math.log(s.min_p)), total
    if total is not None:
        for nats in (8.0, 16.0):
            ids = np.flatnonzero(logits >= top - nats)
            if np.exp(logits[ids] - top).sum(dtype=np.float64) >= s.top_p * total:
                return ids, total
    return _all_ids(len(logits)), total


@cache
def _all_ids(size: int) -> np.ndarray:
    """0 to size, one array for each size: that two distributions hold every token shows by identity."""
    ids = np.arange(size)
    ids.flags.writeable = False
    return ids


def _shaped(ids: np.ndarray, logits: np.ndarray, s: Sampling, total: float | None) -> Distribution:
    """Top-p, min-p and temperature on logits [n]; `total` as above where n is not the whole row."""
    top = _checked(logits.max())
    if s.top_p < 1.0:
        order = (-logits).argsort(kind="stable")
        heights = np.exp(logits[order] - top).cumsum(dtype=np.float64)
        reached = int(heights.searchsorted(s.top_p * (heights[-1] if total is None else total)))
        kept = np.sort(order[: reached + 1])
        ids, logits = ids[kept], logits[kept]
    if s.min_p > 0.0:
        kept = np.flatnonzero(logits >= top + math.log(s.min_p))
        ids, logits = ids[kept], logits[kept]
    weights = np.exp((logits - top) / s.temperature).astype(np.float64)
    if not weights.all():
        ids, weights = ids[weights > 0.0], weights[weights > 0.0]
    return Distribution(ids, weights / weights.sum())


def _checked(top: float) -> float:
    """The largest logit of a row, if it is a number."""
    if not math.isfinite(top):
        raise BackendFailure(
            f"the model returned a row whose largest logit is {top}",
            hint="the model file may be damaged, or the device's kernels faulty: try the CPU (--device CPU)",
        )
    return top
