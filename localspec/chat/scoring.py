"""The target's probabilities of the tokens of a reply, read from the rows that they came from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from localspec.algorithm.protocols import Draw, Proposal, Rule, Verdict, Vocabulary
from localspec.events import Likelihood, Scored
from localspec.sampler.passes import Candidates, Row


@dataclass(frozen=True, slots=True)
class WatchedRule:
    """A rule that shows the tokens of its verdicts: rows[i] gave tokens[i], and is valid until the next decode."""

    _rule: Rule
    _show: Callable[[Sequence[Row], Sequence[int]], None]

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
        self._show(rows, (*proposal.tokens[: verdict.accepted], verdict.next_token))
        return verdict


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
    """Indices of the largest values, in descending order; of equal ones the lowest index first."""
    if not count:
        return []
    edge = np.partition(values, -count)[-count]
    found = np.flatnonzero(values >= edge)
    return [int(i) for i in found[(-values[found]).argsort(kind="stable")][:count]]
