"""The sampler chain: from a row of logits to the distribution that a token is drawn from.

A grammar's mask, bias, penalties, top-k, top-p, min-p, temperature: the order is llama.cpp's. Temperature
comes last, so top-p and min-p use the distribution at temperature 1. Target and draft share the chain. If no
step removes tokens, a draft's distribution still leaves out unlikely tokens, because that is faster.
"""

import math
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import Literal, Protocol

import numpy as np

from localspec.errors import BackendFailure
from localspec.sampler.passes import Candidates, ComingRow, LateRows, Row, arrived
from localspec.sampler.penalties import Written, biased
from localspec.sampler.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Distribution:
    """A distribution after the whole sampler chain: the probability of a token is its weight / `total`."""

    ids: np.ndarray  # token ids, int [n], ascending
    weights: np.ndarray  # [n], float64; float32 if `ids` are the whole vocabulary
    total: float = 1.0  # sum of the weights
    sums: np.ndarray | None = None  # for a whole row: sums of the weights of blocks of _BLOCK tokens, float64

    @property
    def probabilities(self) -> np.ndarray:
        return self.weights if self.total == 1.0 else self.weights.astype(np.float64) / self.total

    def likeliest(self) -> tuple[int, float]:
        """Return the likeliest token and its probability."""
        at = int(self.weights.argmax())
        return int(self.ids[at]), float(self.weights[at]) / self.total

    def of(self, token: int) -> float:
        """Return the probability of a token; 0.0 if the chain removed it."""
        i = int(self.ids.searchsorted(token))
        if i == len(self.ids) or self.ids[i] != token:
            return 0.0
        return float(self.weights[i]) / self.total

    def shares(self, tokens: np.ndarray) -> np.ndarray:
        """Return the probability of each of these tokens, float64 [m]."""
        at, known = self.positions(tokens)
        return np.where(known, self.weights[at].astype(np.float64), 0.0) / self.total

    def positions(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the index of each of these tokens in `ids`, and whether `ids` contains the token."""
        last = len(self.ids) - 1
        at = np.minimum(tokens if self.ids[last] == last else self.ids.searchsorted(tokens), last)
        return at, self.ids[at] == tokens


class Few(Distribution):
    """A distribution of few tokens, as a dict. For few tokens plain Python is faster than numpy."""

    __slots__ = ("chances",)
    chances: Mapping[int, float]
    total, sums = 1.0, None

    def __init__(self, chances: Mapping[int, float]) -> None:
        """`chances`: the probability of each token, by ascending token."""
        object.__setattr__(self, "chances", chances)

    @classmethod
    def of_weights(cls, weights: Iterable[tuple[int, float]]) -> "Few":
        # Remove tokens with a weight of nearly 0, because a probability of 0 has no logarithm.
        kept = [(token, weight) for token, weight in weights if weight > 1e-300]
        total = sum([weight for _, weight in kept])
        return cls({token: weight / total for token, weight in kept})

    @property
    def ids(self) -> np.ndarray:
        return np.array([*self.chances])

    @property
    def weights(self) -> np.ndarray:
        return np.array([*self.chances.values()])

    def likeliest(self) -> tuple[int, float]:
        token = max(self.chances, key=self.chances.__getitem__)
        return token, self.chances[token]

    def of(self, token: int) -> float:
        return self.chances.get(token, 0.0)


_BLOCK = 512
# A softmax in float32 is exact enough if its sum of exponentials is between this number and 1 / this number.
_LEAST_TOTAL = 1e-30
BELOW_ONE = 1.0 - 2.0**-53


def pick(distribution: Distribution, u: float) -> int:
    """Draw a token by the random number `u` in [0, 1), with inverse transform sampling; never one of probability 0."""
    if isinstance(distribution, Few):
        heights = [*accumulate(distribution.chances.values())]
        side = bisect_right if u * heights[-1] < heights[-1] else bisect_left
        return [*distribution.chances][side(heights, u * heights[-1])]
    weights, sums = distribution.weights, distribution.sums
    at = _index_at(weights, u) if sums is None else _index_in_blocks(weights, sums, u)
    return int(distribution.ids[at])


def _index_at(weights: np.ndarray, u: float) -> int:
    """Return the first index whose cumulative weight exceeds u x the total."""
    heights = weights.cumsum(dtype=np.float64)
    total = heights[-1]
    # If rounding makes u x total equal to the total, return the last index whose weight is above 0.
    side: Literal["left", "right"] = "right" if u * total < total else "left"
    return int(heights.searchsorted(u * total, side))


def _index_in_blocks(weights: np.ndarray, sums: np.ndarray, u: float) -> int:
    """Return the same index as `_index_at`, but faster: first find its block, then its place in the block."""
    block = _index_at(sums, u)
    inside = float((u * sums.sum() - sums[:block].sum()) / sums[block])
    begin = block * _BLOCK
    return begin + _index_at(weights[begin : begin + _BLOCK], min(max(inside, 0.0), BELOW_ONE))


def _block_sums(weights: np.ndarray) -> np.ndarray:
    whole = len(weights) // _BLOCK * _BLOCK
    # einsum is three times as fast as `sum`. It is as exact here, because a block has only _BLOCK weights.
    sums = np.einsum("ij->i", weights[:whole].reshape(-1, _BLOCK))
    return np.append(sums, weights[whole:].sum(dtype=np.float64)).astype(np.float64)


def excess_mass(p: Distribution, q: Distribution | None, drafted: int, share: float) -> float:
    """Return the sum of max(share x p - q, 0) over all tokens. A `q` of None is 1 for `drafted`, 0 for others."""
    if q is None:
        return share * (1.0 - p.of(drafted))
    if isinstance(p, Few):
        return sum([max(share * chance - q.of(token), 0.0) for token, chance in p.chances.items()])
    here = p.shares(q.ids)
    over = np.maximum(share * here - q.probabilities, 0.0)
    return max(float(np.add.reduce(over) + share * (1.0 - np.add.reduce(here))), 0.0)


def excess(p: Distribution, q: Distribution | None, drafted: int, share: float = 1.0) -> Distribution:
    """Return max(share x p - q, 0) as a distribution, or p if rounding leaves no weight above 0."""
    if isinstance(p, Few):
        q = q or Few({drafted: 1.0})
        left = {token: share * chance - q.of(token) for token, chance in p.chances.items()}
        return Few.of_weights(left.items()) if max(left.values()) > 0.0 else p
    weights = np.multiply(p.weights, share / p.total, dtype=np.float64)
    at, known = p.positions(np.array([drafted]) if q is None else q.ids)
    at = at[known]
    weights[at] = 0.0 if q is None else np.maximum(weights[at] - q.probabilities[known], 0.0)
    sums = None if p.sums is None else _block_sums(weights)
    total = float(np.add.reduce(weights if sums is None else sums))
    return Distribution(p.ids, weights, total, sums) if total > 0.0 else p


_STRIPES = 64  # `largest` folds a row of logits into at most this many stripes, the rows of a matrix
_SPARE = 4  # least columns in `largest` for each requested logit; with these, few columns must be examined


def largest(row: Row, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the `count` largest logits, as ascending ids and float64 logits; of equal logits, the lowest ids.

    A whole row is folded into stripes, the rows of a matrix. If a column's maximum is below the k-th largest maximum,
    each of k other columns has a larger logit. So this column contains none of the k largest logits. Raises
    BackendFailure for NaN or infinity.
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
    # `~(a < b)` is also true for NaN, unlike `a >= b`, so a broken row is noticed.
    chosen = (~(maxima < least)).nonzero()[0]
    stripe, column = np.divmod((~(folded[:, chosen] < least)).ravel().nonzero()[0], len(chosen))
    ids = stripe * columns + chosen[column]
    if len(rest):
        ids = np.append(ids, stripes * columns + (~(rest < least)).nonzero()[0])
    return _cut(ids, row[ids], count)


def _cut(ids: np.ndarray, logits: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    finite(np.maximum.reduce(logits))
    if len(ids) > count:
        kept = (-logits).argsort(kind="stable")[:count]
        kept.sort()
        ids, logits = ids[kept], logits[kept]
    return ids, logits.astype(np.float64)


_MOST_BUFFERS = 64  # largest number of kept buffers: one for each row of a cycle
COLDEST = 1e-12  # lowest temperature above 0, because 1 / 1e-39 is infinite in float32
GREEDY_HEAD = 10  # a greedy token's confidence is its probability among this many likeliest tokens
SPARE = 128  # number of extra logits to examine, because penalties seldom lower more of the likeliest tokens


class Constraint(Protocol):
    """A grammar's mask of the next token: the first step of the chain, the same for target and draft."""

    whole_rows: bool  # whether the constraint may need whole rows, because it may forbid the likeliest tokens

    def mask(self, history: Sequence[int]) -> object:
        """Compute the mask after `history` in advance, so that `permitted` is quick."""

    def allows(self, token: int, history: Sequence[int]) -> bool:
        """Return whether the token may follow `history`, as `permitted` would decide."""

    def permitted(self, row: Row, history: Sequence[int]) -> Row:
        """Return the row without the tokens forbidden after `history`.

        A forbidden token gets the logit -inf, or the result is Candidates of the allowed tokens, with ascending ids.
        If no token is allowed, the row is returned unchanged.
        """


class Chain:
    """The sampler chain of one request; every method is a pure function of a row and the text before it.

    A row of Candidates has only the largest logits. This is harmless for a draft, because rejection keeps the text
    lossless for any draft distribution. If a target's row lacks tokens that may matter, the whole row replaces it.
    """

    def __init__(self, sampling: Sampling, constraint: Constraint | None = None) -> None:
        self.sampling = sampling
        self._drafting = _of_drafts(sampling)
        self._constraint = constraint
        self._masks = constraint is not None and constraint.whole_rows
        self._needs_all = sampling.logits_needed is None or (self._masks and sampling.logits_needed != 1)
        self._written = Written(sampling) if sampling.penalises else None
        self._adjusts = bool(sampling.logit_bias or self._written)
        # The tokens whose logits a bias lowers; None if anything else changes logits.
        lowers_only = sampling.only_lowers and not self._written
        self._lowered_tokens = {token for token, _ in sampling.logit_bias} if lowers_only else None
        # The largest number of logits that bias and penalties can lower; an estimate if penalties cover the whole text.
        looked_at = SPARE if sampling.repeat_last_n < 0 else sampling.repeat_last_n
        self._lowered = len(sampling.logit_bias) + (looked_at if self._written else 0)
        self._buffers: list[np.ndarray] = []  # reused memory for the weights of whole rows
        self.size = 0  # number of tokens in the latest result of `logits`

    def distribution(self, row: ComingRow, history: Sequence[int], *, drafts: bool = False) -> Distribution:
        """Return the distribution of the token after `history`, at a temperature above 0. No probability is 0.

        `drafts`: whether the row is a draft's. Unlikely tokens may then be left out.
        """
        s = self._drafting if drafts else self.sampling
        row = self._permitted(row, history, s.top_k)
        if isinstance(row, Candidates) or s.top_k:
            if not self._adjusts and (few := _of_few(row, s)):
                return few
            size = len(row.ids if isinstance(row, Candidates) else row)
            ids, logits = self._head(row, history, s.top_k or size)
            return _shaped(ids, logits, s, total=None)
        logits = self._adjusted(row, history)
        if s.top_p == 1.0 and s.min_p == 0.0:
            return self._everything(logits, s.temperature)
        ids, total = self._worth_keeping(logits, s)
        return _shaped(ids, logits if ids is _all_ids(len(logits)) else logits[ids], s, total)

    def logits(self, row: ComingRow, history: Sequence[int]) -> np.ndarray | None:
        """Return the logits after `history` if the distribution is their softmax, over all tokens; else None."""
        keeps_all = self._drafting is not self.sampling
        if not keeps_all or isinstance(row := self._permitted(row, history, 0), Candidates):
            return None
        self.size = len(row)
        return self._adjusted(row, history)

    def _everything(self, logits: np.ndarray, temperature: float) -> Distribution:
        """Return the softmax of a whole row."""
        # Float32 seldom needs the largest logit, and finding and subtracting it takes a third of the time.
        with np.errstate(over="ignore"):
            weights = _heights(logits, 0.0, temperature, self._buffer(logits))
        sums = _block_sums(weights)
        if not _LEAST_TOTAL < np.add.reduce(sums) < 1.0 / _LEAST_TOTAL:
            sums = _block_sums(_heights(logits, finite(logits.max()), temperature, weights))
        if np.minimum.reduce(weights) == 0.0:
            ids = weights.nonzero()[0]
            weights = weights[ids].astype(np.float64)
            return Distribution(ids, weights, float(np.add.reduce(weights)))
        return Distribution(_all_ids(len(logits)), weights, float(np.add.reduce(sums)), sums)

    def _worth_keeping(self, logits: np.ndarray, s: Sampling) -> tuple[np.ndarray, float | None]:
        """Return the tokens of a whole row that top-p and min-p can keep, and the row's sum of exp(logit - largest).

        Each filter removes the tokens below some logit. The sum is None if top-p is off.
        """
        top, total = finite(logits.max()), None
        if s.top_p < 1.0:
            heights = _heights(logits, top, 1.0, self._buffer(logits))
            total = float(np.add.reduce(_block_sums(heights)))
        if total is None or s.min_p > 0.0:
            return (logits >= top + math.log(s.min_p)).nonzero()[0], total
        for edge in _EDGES:
            ids = (heights >= edge).nonzero()[0]
            if heights[ids].sum(dtype=np.float64) >= s.top_p * total:
                return ids, total
        return _all_ids(len(logits)), total

    def _buffer(self, row: np.ndarray) -> np.ndarray:
        """Return an unused float32 buffer as long as the row. New memory would take more time than exp."""
        unused = 3  # references to an unused buffer: by the list, the loop, and the argument of getrefcount
        for buffer in self._buffers:
            if sys.getrefcount(buffer) == unused and len(buffer) == len(row):
                return buffer
        self._buffers = [*self._buffers[1 - _MOST_BUFFERS :], np.empty(len(row), np.float32)]
        return self._buffers[-1]

    def likeliest(self, row: ComingRow, history: Sequence[int]) -> tuple[int, float]:
        """Return the likeliest token after `history`, and its probability among the GREEDY_HEAD likeliest."""
        row = self._permitted(row, history, GREEDY_HEAD)
        if isinstance(row, Candidates) and not self._adjusts:
            found, order = _sorted(row)
            total = sum([math.exp(logit - order[-1]) for logit in order[-GREEDY_HEAD:]])
            if total < 2.0:  # each largest logit adds exp(0) = 1, so from 2 on two may tie
                return row.ids.item(found.index(order[-1])), 1.0 / total
        ids, logits = self._head(row, history, GREEDY_HEAD)
        at = int(logits.argmax())
        return int(ids[at]), float(1.0 / np.exp(logits - logits[at]).sum())

    def best(self, row: Row, history: Sequence[int]) -> int:
        """Return the likeliest token after `history`; of equally likely tokens, the one with the lowest id."""
        if isinstance(row, Candidates):
            logits, order = _sorted(row)
            token, alone = int(row.ids[logits.index(order[-1])]), order[-2:-1] < order[-1:]
        else:
            token, alone = int(row.argmax()), True
            finite(float(row[token]))
        stays = alone and self._lowered_tokens is not None and token not in self._lowered_tokens
        if stays and (self._constraint is None or self._constraint.allows(token, history)):
            return token
        return int(self._head(self._permitted(row, history, 1), history, 1)[0][0])

    def _permitted(self, row: ComingRow, history: Sequence[int], count: int) -> Row:
        """Return the row without forbidden tokens; if every logit matters, replace Candidates by the whole row.

        `count`: number of likeliest tokens that the caller needs; 0: all. The result may lack less likely tokens.
        """
        if self._constraint and type(row) is LateRows:
            self._constraint.mask(history)  # compute the mask while a device still computes the row
        row = arrived(row)
        if self._needs_all and isinstance(row, Candidates) and row.whole:
            row = row.whole()
        if self._constraint is None:
            return row
        if count and self._masks and not (self._adjusts or isinstance(row, Candidates)):
            # Mask only the likeliest tokens at first, because a grammar seldom forbids them.
            ids = largest(row, count + SPARE)[0]
            likely = Candidates(ids, row[ids])
            permitted = self._constraint.permitted(likely, history)
            if isinstance(permitted, Candidates) and permitted is not likely and len(permitted.ids) >= count:
                return permitted
        return self._constraint.permitted(row, history)

    def _adjusted(
        self, logits: np.ndarray, history: Sequence[int], ids: np.ndarray | None = None
    ) -> np.ndarray:
        """Return logits after bias and penalties. `ids`: the tokens of the logits; None for a whole row."""
        logits = biased(logits, ids, self.sampling.logit_bias)
        return self._written.penalised(logits, ids, history) if self._written else logits

    def _head(self, row: Row, history: Sequence[int], count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the ascending ids of the `count` likeliest tokens, and their logits after bias and penalties."""
        if isinstance(row, Candidates):
            head = self._among(row, history, count)
            # Logits that the row lacks are at most as large as its smallest, and bias and penalties never raise them.
            if row.whole is None or head[1].min() > row.logits.min():
                return head
            row = row.whole()
        if self._lowered_tokens is not None:
            head = largest(row, count)
            if self._lowered_tokens.isdisjoint(head[0].tolist()):
                return head
        if self.sampling.only_lowers:
            ids, logits = largest(row, count + self._lowered)
            head = self._among(Candidates(ids, row[ids]), history, count)
            if self.sampling.repeat_last_n >= 0 or head[1].min() > logits.min():
                return head
        return largest(self._adjusted(row, history), count)

    def _among(self, row: Candidates, history: Sequence[int], count: int) -> tuple[np.ndarray, np.ndarray]:
        if not self._adjusts or len(row.ids) == 1:  # a single allowed token stays, even if a bias bans it
            return largest(row, count)
        order = row.ids.argsort()
        ids, logits = row.ids[order], row.logits[order]
        finite(logits.max())
        return largest(Candidates(ids, self._adjusted(logits, history, ids)), count)


# Thresholds for exp(logit - largest logit), tried in this order until the tokens above one of them reach top-p.
_EDGES = tuple(math.exp(-nats) for nats in (4.0, 8.0, 12.0, 16.0))
# A draft's distribution leaves out tokens whose logits are more than this below the largest one.
# This costs 0.2 % of the acceptance, and saves 60 % of the time for the distribution.
_DRAFTED_NATS = 10.0


def _of_drafts(s: Sampling) -> Sampling:
    """Return the sampler options for drafts. If no option removes tokens, add a min-p, which saves time."""
    if s.greedy or s.top_k or s.top_p < 1.0 or s.min_p > 0.0:
        return s
    return replace(s, min_p=math.exp(-_DRAFTED_NATS * s.temperature))


_all_ids = cache(np.arange)


_FEW = 64  # for at most this many tokens, Python takes less time than numpy


def _of_few(row: Row, s: Sampling) -> Few | None:
    """Return the distribution of a row without bias and penalties, if min-p keeps few tokens of different logits."""
    if s.min_p == 0.0 or len(row.ids if isinstance(row, Candidates) else row) <= s.top_k:
        return None
    if isinstance(row, Candidates):
        logits, order = _sorted(row)
        top, ids = order[-1], row.ids
        near = order[bisect_left(order, top + math.log(s.min_p)) :]
    else:
        top = finite(float(row[row.argmax()]))
        ids = (row >= np.float64(top + math.log(s.min_p))).nonzero()[0]
        logits = row[ids].tolist()
        order = near = sorted(logits)
    if not len({*near}) == len(near) <= min(s.top_k or _FEW, _FEW):
        return None
    if len(near) > 1 and s.top_p < 1.0:
        near.reverse()
        heights = [*accumulate([math.exp(logit - top) for logit in near])]
        if heights[-2] >= s.top_p * (total := heights[-1]):  # top-p may remove some tokens
            if not isinstance(row, Candidates):
                order = largest(row, s.top_k or len(row))[1].tolist()
            total = sum([math.exp(logit - top) for logit in order[-(s.top_k or len(order)) :]])
        near = near[: 1 + bisect_left(heights, s.top_p * total)]
    cold = max(s.temperature, COLDEST)
    return Few.of_weights(sorted([(ids.item(logits.index(x)), math.exp((x - top) / cold)) for x in near]))


def _sorted(row: Candidates) -> tuple[list[float], list[float]]:
    """Return the logits, and the same in ascending order. Raises BackendFailure for a broken row."""
    logits = row.logits.tolist()
    return logits, sorted(logits) if sum(logits) < math.inf else [finite(math.nan)]


def _shaped(ids: np.ndarray, logits: np.ndarray, s: Sampling, total: float | None) -> Distribution:
    """Return the distribution after top-p, min-p and temperature. `total`: sum of exp(logit - largest), if known."""
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
    weights /= max(s.temperature, COLDEST)
    weights = np.exp(weights, out=weights).astype(np.float64, copy=False)
    if not weights.all():
        ids, weights = ids[weights > 0.0], weights[weights > 0.0]
    weights /= np.add.reduce(weights)
    return Distribution(ids, weights)


def _heights(logits: np.ndarray, top: float, temperature: float, out: np.ndarray) -> np.ndarray:
    """Return exp((logit - top) / temperature) of each logit, in `out`."""
    heights = np.subtract(logits, top, out=out) if top else logits
    if temperature != 1.0:  # a product takes half the time of a division
        heights = np.multiply(heights, 1.0 / max(temperature, COLDEST), out=out)
    np.exp(heights, out=out)
    return out


def finite(top: float) -> float:
    """Return `top`, the largest logit of a row. Raises BackendFailure if it is infinite or NaN."""
    if not math.isfinite(top):
        hint = "try the CPU (--device CPU); if that fails as well, download the file again or use another quantisation"
        raise BackendFailure("the model's output is not usable: it contains NaN or infinity", hint=hint)
    return top
