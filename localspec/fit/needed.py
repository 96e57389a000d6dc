"""Which tokens a draft has to be able to say: those that its target writes, and then those that it thinks of."""

from collections.abc import Iterable

import numpy as np

from localspec.fit.collect import Answer
from localspec.gguf.facts import VocabularyFacts

ALWAYS = 512  # of the lowest ids: bytes and control tokens stand there in most vocabularies


def needed_tokens(
    vocabulary: VocabularyFacts, answers: Iterable[Answer], mass: np.ndarray, count: int
) -> np.ndarray:
    """`count` tokens, ascending: those that the answers have, and then the likeliest ones.

    mass: how likely the target held each token, summed over its rows; float64 [vocabulary or somewhat less].
    """
    score = np.zeros(vocabulary.count)
    score[: len(mass)] = mass[: len(score)]
    for answer in answers:
        score[answer.tokens] = np.inf
    score[: min(ALWAYS, count // 2)] = np.inf
    score[[token for token in (vocabulary.bos, vocabulary.eos, vocabulary.end) if token >= 0]] = np.inf
    order = np.lexsort((np.arange(len(score)), -score))
    return np.sort(order[:count])
