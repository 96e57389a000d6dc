"""Score the tokens of a reply by the probabilities of the target."""

from collections.abc import Sequence

import numpy as np

from localspec.algorithm.protocols import Proposal, Rule, Verdict, Vocabulary
from localspec.events import Likelihood, Scored
from localspec.sampler.chain import Chain
from localspec.sampler.passes import Candidates, Row

LEAST = -9999.0  # replaces log(0), as in OpenAI's interface, because JSON has no infinity


class ScoringRule:
    """A rule that applies another acceptance rule, and scores the tokens of its latest verdict."""

    def __init__(self, rule: Rule, vocabulary: Vocabulary, alternatives: int, chain: Chain | None) -> None:
        """`chain`: the sampler whose distributions are scored; None: the target's distributions before sampling."""
        self._rule = rule
        self.name, self.draw = rule.name, rule.draw
        self._vocabulary = vocabulary
        self._alternatives = alternatives
        self._chain = chain
        self.scores: tuple[Scored, ...] = ()

    def verify(self, rows: Sequence[Row], proposal: Proposal, history: Sequence[int]) -> Verdict:
        verdict = self._rule.verify(rows, proposal, history)
        tokens = (*proposal.tokens[: verdict.accepted], verdict.next_token)
        pairs = enumerate(zip(rows, tokens, strict=False))
        self.scores = tuple(self._scored(row, token, (*history, *tokens[:n])) for n, (row, token) in pairs)
        return verdict

    def _scored(self, row: Row, token: int, history: Sequence[int]) -> Scored:
        assert not isinstance(row, Candidates), "scores need whole rows"
        if self._chain is None:
            logprobs = log_softmax(row)
        else:
            logprobs = np.full(len(row), -np.inf)
            if self._chain.sampling.greedy:
                logprobs[token] = 0.0
            else:
                sampled = self._chain.distribution(row, history)
                logprobs[sampled.ids] = np.log(sampled.probabilities)
        found: list[Likelihood] = []
        for each in (token, *(t for t in top(logprobs, self._alternatives) if logprobs[t] > -np.inf)):
            piece = self._vocabulary.piece(each) or self._vocabulary.text(each).encode()
            found.append(Likelihood(each, tuple(piece), max(float(logprobs[each]), LEAST)))
        return Scored(found[0], tuple(found[1:]))


def log_softmax(row: np.ndarray) -> np.ndarray:
    """Return the log probabilities [vocab] of a row of logits."""
    shifted = row.astype(np.float64) - float(row.max())
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def top(values: np.ndarray, count: int) -> list[int]:
    """Return the indices of the `count` largest values, largest first; equal values in the order of indices."""
    if not count:
        return []
    edge = np.partition(values, -count)[-count]
    found = np.flatnonzero(values >= edge)
    return [int(i) for i in found[(-values[found]).argsort(kind="stable")][:count]]
