"""Bias and penalties: what comes onto a token's logit because of a request, and because it was written."""

from collections.abc import Sequence

import numpy as np

from localspec.sampler.passes import Continued
from localspec.sampler.sampling import Sampling


class Written:
    """The tokens in the penalties' window: a text is counted once and followed as it grows."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._times = np.zeros(0)  # by token
        self._text: Sequence[int] = ()  # this object is counted up to `_end`, and only grows
        self._end = 0
        self._more: Sequence[int] = ()  # the tokens behind it that are counted as well
        self._all = self._penalties(self._times)  # of all tokens but those that changed since
        self._changed: set[int] | None = None  # None: all of them

    def penalised(self, logits: np.ndarray, ids: np.ndarray | None, text: Sequence[int]) -> np.ndarray:
        """Logits [n] of tokens `ids` [n] ascending after a text (None: a whole row), after penalties."""
        self._follow(text, len(logits) if ids is None else int(ids[-1]) + 1)
        if ids is None:
            scale, minus = (of[: len(logits)] for of in self._of_all())
        else:
            scale, minus = self._penalties(self._times[ids])
        # Dividing would make a negative logit likelier. Dense arithmetic takes as long whatever was written.
        pick = np.minimum if self._sampling.repeat_penalty >= 1.0 else np.maximum
        scaled: np.ndarray = pick(logits * scale, logits / scale)
        if self._sampling.presence_penalty or self._sampling.frequency_penalty:
            scaled = (scaled - minus).astype(np.float32)
        return scaled

    def _penalties(self, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What divides and what lowers the logits of tokens that were written this often."""
        s, seen = self._sampling, times != 0.0
        scale = np.where(seen, np.float32(s.repeat_penalty), np.float32(1.0))
        return scale, times * s.frequency_penalty + seen * s.presence_penalty

    def _of_all(self) -> tuple[np.ndarray, np.ndarray]:
        if self._changed is None or len(self._all[0]) < len(self._times):
            self._all = self._penalties(self._times)
        elif changed := list(self._changed):
            for every, of_changed in zip(self._all, self._penalties(self._times[changed]), strict=True):
                every[changed] = of_changed
        self._changed = set()
        return self._all

    def _follow(self, text: Sequence[int], size: int) -> None:
        """Count this text from here on, for at least `size` tokens."""
        text, more = (text.text, tuple(text.more)) if isinstance(text, Continued) else (text, ())
        self._move(self._more, -1.0)
        if text is not self._text or len(text) < self._end:
            self._text, self._end, self._changed = text, len(text), None
            looks_back = self._sampling.repeat_last_n
            recent = text if looks_back < 0 else text[-looks_back:]
            self._times = np.bincount(np.fromiter(recent, np.int64, len(recent))).astype(np.float64)
        self._move(text[self._end :], 1.0)
        self._end = len(text)
        self._move(more, 1.0)
        self._more = more
        self._reach(size)

    def _move(self, tokens: Sequence[int], times: float) -> None:
        """Count these tokens behind the text, and no longer those that they move out of sight; -1 takes it back."""
        looks_back = self._sampling.repeat_last_n
        for position, token in enumerate(tokens, start=self._end):
            self._add(token, times)
            if 0 <= looks_back <= position:
                gone = position - looks_back
                self._add(self._text[gone] if gone < self._end else tokens[gone - self._end], -times)

    def _add(self, token: int, times: float) -> None:
        self._reach(token + 1)
        self._times[token] += times
        if self._changed is not None:
            self._changed.add(token)

    def _reach(self, size: int) -> None:
        if len(self._times) < size:
            self._times = np.append(self._times, np.zeros(size))


def biased(logits: np.ndarray, ids: np.ndarray | None, bias: Sequence[tuple[int, float]]) -> np.ndarray:
    """Logits [n] of tokens `ids` [n] ascending (None: a whole row) after the bias."""
    if not bias:
        return logits
    tokens, biases = (np.array(part) for part in zip(*bias, strict=True))
    at = tokens if ids is None else np.minimum(ids.searchsorted(tokens), len(ids) - 1)
    known = tokens < len(logits) if ids is None else ids[at] == tokens
    logits = logits.copy()
    np.add.at(logits, at[known], biases[known])
    return logits
