"""How likely the target found the tokens of a reply: noted from the very rows that verified them."""

from collections.abc import Sequence

import numpy as np

from localspec.algorithm.protocols import Draw, Proposal, Rule, Verdict
from localspec.chat.vocabulary import Vocabulary
from localspec.events import Likelihood, Scored
from localspec.passes import Candidates, Row


class ScoringRule:
    """A rule that also notes the scores of what it lets through; needs whole rows."""

    def __init__(self, rule: Rule, vocabulary: Vocabulary, alternatives: int) -> None:
        self._rule = rule
        self._vocabulary = vocabulary
        self._alternatives = alternatives
        self.scores: tuple[Scored, ...] = ()  # of the newest cycle's tokens, in order

    @property
    def name(self) -> str:
        return self._rule.name

    @property
    def seed_decides(self) -> bool:
        return self._rule.seed_decides

    def draw(self, row: Row, history: Sequence[int], start: int) -> Draw:
        return self._rule.draw(row, history, start)

    def verify(self, rows: Sequence[Row], proposal: Proposal, history: Sequence[int]) -> Verdict:
        verdict = self._rule.verify(rows, proposal, history)
        emitted = (*proposal.tokens[: verdict.accepted], verdict.next_token)
        self.scores = tuple(self._scored(row, token) for row, token in zip(rows, emitted, strict=False))
        return verdict

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
