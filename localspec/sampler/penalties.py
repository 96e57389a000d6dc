"""Logit bias and the repetition, presence and frequency penalties, as llama.cpp computes them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from localspec.sampler.sampling import Sampling


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
