"""Bias and penalties. A bias changes logits of tokens that a request names; a penalty, those of tokens in the text."""

from collections.abc import Sequence

import numpy as np

from localspec.sampler.passes import Continued
from localspec.sampler.sampling import Sampling


class Written:
    """Counts of the tokens that penalties look back on. As a text grows, only its new tokens are counted."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._times = np.zeros(0)  # number of occurrences in the window, by token
        self._text: Sequence[int] = ()  # the text of the last call, to which the caller only appends
        self._end = 0  # position in the text up to which the counts are complete
        self._more: Sequence[int] = ()  # tokens of a proposal after the text, which count, too

    def penalised(self, logits: np.ndarray, ids: np.ndarray | None, text: Sequence[int]) -> np.ndarray:
        """Return the logits after penalties for `text`. `ids`: the logits' tokens, ascending; None for a whole row."""
        self._follow(text, len(logits) if ids is None else int(ids[-1]) + 1)
        sampling, times = self._sampling, self._times[: len(logits)] if ids is None else self._times[ids]
        seen = times.nonzero()[0]
        before, repeat = logits[seen], np.float32(sampling.repeat_penalty)
        # The penalty divides positive logits and multiplies negative ones. Computing both for all of them is faster.
        pick = np.minimum if repeat >= 1.0 else np.maximum
        logits = logits.copy()
        minus = times[seen] * sampling.frequency_penalty + sampling.presence_penalty
        logits[seen] = pick(before * repeat, before / repeat) - minus
        return logits

    def _follow(self, text: Sequence[int], size: int) -> None:
        """Update the counts to this text. The vocabulary has at least `size` tokens."""
        text, more = (text.text, tuple(text.more)) if isinstance(text, Continued) else (text, ())
        self._move(self._more, -1.0)
        if text is not self._text or len(text) < self._end:
            self._text, self._end = text, len(text)
            looks_back = self._sampling.repeat_last_n
            recent = text if looks_back < 0 else text[-looks_back:]
            self._times = np.bincount(np.fromiter(recent, np.int64, len(recent))).astype(np.float64)
        self._move(text[self._end :], 1.0)
        self._end = len(text)
        self._move(more, 1.0)
        self._more = more
        self._grow(size)

    def _move(self, tokens: Sequence[int], times: float) -> None:
        """Count tokens after the text, and uncount tokens that leave the window; with `times` -1, reverse both."""
        looks_back = self._sampling.repeat_last_n
        for position, token in enumerate(tokens, start=self._end):
            self._add(token, times)
            if 0 <= looks_back <= position:
                gone = position - looks_back
                self._add(self._text[gone] if gone < self._end else tokens[gone - self._end], -times)

    def _add(self, token: int, times: float) -> None:
        self._grow(token + 1)
        self._times[token] += times

    def _grow(self, size: int) -> None:
        if len(self._times) < size:
            self._times = np.append(self._times, np.zeros(size))


def biased(logits: np.ndarray, ids: np.ndarray | None, bias: Sequence[tuple[int, float]]) -> np.ndarray:
    """Return the logits plus the bias. `ids`: the logits' tokens, ascending; None for a whole row."""
    if not bias:
        return logits
    tokens, biases = (np.array(part) for part in zip(*bias, strict=True))
    at = tokens if ids is None else np.minimum(ids.searchsorted(tokens), len(ids) - 1)
    known = tokens < len(logits) if ids is None else ids[at] == tokens
    logits = logits.copy()
    np.add.at(logits, at[known], biases[known])
    return logits
