"""How likely the target found the tokens of a reply: noted from the very rows that verified them."""

from collections.abc import Sequence

import numpy as np

from localspec.chat.vocabulary import Vocabulary
from localspec.events import Likelihood, Scored
from localspec.passes import Candidates, Row


class Scoring:
    """The scores of the newest cycle's tokens; needs whole rows."""

    def __init__(self, vocabulary: Vocabulary, alternatives: int) -> None:
        self._vocabulary = vocabulary
        self._alternatives = alternatives
        self.scores: tuple[Scored, ...] = ()  # in order

    def see(self, rows: Sequence[Row], tokens: Sequence[int]) -> None:
        self.scores = tuple(self._scored(row, token) for row, token in zip(rows, tokens, strict=False))

    def _scored(self, row: Row, token: int) -> Scored:
        assert not isinstance(row, Candidates), "scores need whole rows"
        logprobs = log_softmax(row)
        likeliest = top(logprobs, self._alternatives)
        return Scored(
            self._likelihood(token, logprobs), tuple(self._likelihood(t, logprobs) for t in likeliest)
        )

    def _likelihood(self, token: int, logprobs: np.ndarray) -> Likelihood:
        piece = self._vocabulary.piece(token) or self._vocabulary.text(token).encode()
        return Likelihood(token, tuple(piece), float(logprobs[token]))


def log_softmax(row: np.ndarray) -> np.ndarray:
    """Natural logarithms of the probabilities [vocab] that logits stand for."""
    shifted = row.astype(np.float64) - float(row.max())
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def top(values: np.ndarray, count: int) -> list[int]:
    """Where the largest values are, the largest first; of equal ones the lowest index."""
    if not count:
        return []
    edge = np.partition(values, -count)[-count]
    found = np.flatnonzero(values >= edge)
    return [int(i) for i in found[(-values[found]).argsort(kind="stable")][:count]]
