"""Which tokens a draft has to be able to say: those that its target writes, and then those that it thinks of."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from localspec.gguf.facts import VocabularyFacts, facts_of_file
from localspec.logits import Text

ALWAYS = 512  # of the lowest ids: bytes and control tokens stand there in most vocabularies


def needed_tokens(
    vocabulary: VocabularyFacts, written: Sequence[int], mass: np.ndarray, count: int
) -> np.ndarray:
    """`count` tokens, ascending: those that were written, and then the likeliest ones.

    mass: how likely the target held each token, summed over its rows; float64 [its vocabulary].
    """
    score = np.zeros(vocabulary.count)
    known = min(len(score), len(mass))
    score[:known] = mass[:known]
    ends = [token for token in (vocabulary.bos, vocabulary.eos, vocabulary.end) if token >= 0]
    always = [*ends, *range(min(ALWAYS, count // 2)), *written]
    score[[token for token in always if token < len(score)]] = np.inf
    order = np.lexsort((np.arange(len(score)), -score))
    return np.sort(order[:count])


def output_tokens_for(source: Path, texts: Sequence[Text], count: int) -> np.ndarray:
    """The `count` tokens of a model that these texts need: square roots of probabilities as for a trimmed draft."""
    vocabulary = facts_of_file(source).vocabulary
    assert vocabulary is not None, "trimmable says so"
    mass = np.zeros(1 + max(int(text.likely.max()) for text in texts))
    for text in texts:
        np.add.at(mass, text.likely.ravel(), np.exp(text.log_shares.ravel().astype(np.float64) / 2))
    written = [token for text in texts for token in text.tokens.tolist()]
    return needed_tokens(vocabulary, written, mass, count).astype(np.int32)
