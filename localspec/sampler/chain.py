"""The sampler chain: from a row of logits to the distribution that a token is drawn from.

A grammar's mask, bias, penalties, top-k, top-p, min-p, temperature: the order is llama.cpp's. Temperature
comes last, so top-p and min-p look at the distribution at temperature 1. Target and draft share the chain.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Protocol

import numpy as np

from localspec.errors import BackendFailure
from localspec.passes import Candidates, Row
from localspec.sampler.candidates import largest, likeliest
from localspec.sampler.distributions import Distribution
from localspec.sampler.penalties import NOTHING, Counts, adjust
from localspec.sampler.sampling import Sampling

GREEDY_HEAD = 10  # tokens that the confidence of a greedy choice is measured against


class Constraint(Protocol):
    """What a grammar lets follow a text: the same for target and draft, before the rest of the chain."""

    def permitted(self, row: Row, history: Sequence[int]) -> Row:
        """A whole row without what may not follow `history`, the whole text.

        The forbidden logits are -inf, or only the others are left, whole and ascending, as Candidates.
        """


class Chain:
    """The sampler chain of one request; every method is a pure function of a row and the text before it.

    A row of candidates counts as a whole one: a draft's may lack tokens, as any distribution may be drafted from, a
    target's has to hold as many as `candidates_needed` says.
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
        """The tail of a text that can matter to the next tokens: it may stand for the whole text.

        What has been written so far is counted here, once: the texts to come begin with it.
        """
        s = self.sampling
        looks_back = len(history) if s.repeat_last_n < 0 else s.repeat_last_n
        if s.penalises and s.repeat_last_n < 0:
            self._counts, self._text = self._recent(history), list(history)
        if self._constraint:
            return list(history)
        return list(history[-looks_back:]) if s.penalises else []

    def _recent(self, history: Sequence[int]) -> Counts:
        """What the penalties look back at."""
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
        """What the token after `history` is drawn from, at a temperature above 0; no probability is 0."""
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

    Both filters keep the largest logits down to some edge, so whatever lies below an edge of either is out.
    The sum is left out (None) where top-p is off.
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
            hint="the model file may be damaged, or the device's kernels at fault: try it on the CPU",
        )
    return top
