"""Logit bias and the repetition, presence and frequency penalties, as llama.cpp computes them."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from localspec.sampler.sampling import Sampling


def adjust(ids: np.ndarray | None, logits: np.ndarray, sampling: Sampling, recent: Sequence[int]) -> None:
    """Apply bias and penalties in place to logits [n] of tokens `ids` [n] ascending (None: a whole row).

    `recent` are the tokens that the penalties look back at. Tokens outside the logits are passed over.
    """
    if sampling.logit_bias:
        tokens, biases = zip(*sampling.logit_bias, strict=True)
        at, known = _find(ids, len(logits), np.array(tokens))
        np.add.at(logits, at, np.array(biases)[known])
    if not (sampling.penalises and recent):
        return
    counts = Counter(recent)
    at, known = _find(ids, len(logits), np.fromiter(counts.keys(), np.int64, len(counts)))
    seen = np.fromiter(counts.values(), np.float64, len(counts))[known]
    was = logits[at]
    # Dividing would make a negative logit likelier.
    scaled = np.where(was <= 0.0, was * sampling.repeat_penalty, was / sampling.repeat_penalty)
    logits[at] = scaled - (seen * sampling.frequency_penalty + sampling.presence_penalty)


def _find(ids: np.ndarray | None, size: int, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where tokens stand among the logits, and a mask of those that do."""
    if ids is None:
        known = tokens < size
        return tokens[known], known
    at = np.minimum(ids.searchsorted(tokens), size - 1)
    known = ids[at] == tokens
    return at[known], known
