"""The acceptance rules by name. Each draws draft tokens, and judges them by the target's rows of logits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar

import numpy as np

from localspec.algorithm import judgement
from localspec.algorithm.judgement import DraftTemperature
from localspec.algorithm.noise import Keyed, loud_tokens
from localspec.algorithm.protocols import Draw, Proposal, Rule, Verdict, Vocabulary
from localspec.errors import BadSetting
from localspec.events import Likelihood, Origin, Scored
from localspec.sampler.chain import Chain, Constraint, Distribution
from localspec.sampler.passes import Candidates, ComingRow, Continued, LateRows, Row
from localspec.sampler.sampling import Sampling

LEAST_SCORE = -9999.0  # replaces log(0), as in OpenAI's interface, because JSON has no infinity


@dataclass(frozen=True, slots=True)
class Greedy:
    """Temperature 0: accept draft tokens that equal the target's likeliest token."""

    chain: Chain
    name: ClassVar[str] = "greedy"

    def draw(self, row: ComingRow, history: Sequence[int], start: int) -> Draw:
        token, confidence = self.chain.likeliest(row, history)
        return Draw(token, None, confidence)

    def verify(self, rows: Sequence[Row], proposal: Proposal, history: Sequence[int]) -> Verdict:
        return _compared(proposal, lambda i, text: self.chain.best(rows[i], text), history)


@dataclass(frozen=True, slots=True)
class Coupled:
    """Gumbel coupling (Daliri et al. 2024, arXiv 2408.07978): target and draft draw with the same noise.

    The target's choice depends only on the seed, the position and the target's row. So no draft changes the text.
    """

    chain: Chain
    noise: Keyed
    name: ClassVar[str] = "coupled"

    def draw(self, row: ComingRow, history: Sequence[int], start: int) -> Draw:
        q = self.chain.distribution(row, history, drafts=True)
        return Draw(self.noise.loudest(q, len(history)), None, q.likeliest()[1])

    def verify(self, rows: Sequence[Row], proposal: Proposal, history: Sequence[int]) -> Verdict:
        start = len(history)
        for i in range(len(rows)) if isinstance(rows, LateRows) else ():  # a device still computes the rows
            loud_tokens(self.noise.seed, start + i, self.chain.size)

        def choose(i: int, text: Sequence[int]) -> int:
            if (logits := self.chain.logits(rows[i], text)) is not None:
                return self.noise.loudest_of_all(logits, self.chain.sampling.temperature, start + i)
            return self.noise.loudest(self.chain.distribution(rows[i], text), start + i)

        return _compared(proposal, choose, history)


@dataclass(frozen=True, slots=True)
class BlockRule:
    """Draw draft tokens from q, and accept them by block verification."""

    chain: Chain
    noise: Keyed
    judge: judgement.Judge = judgement.block  # a field, because tests replace it
    sharpness: DraftTemperature = field(default_factory=DraftTemperature)
    name: ClassVar[str] = "block"

    def draw(self, row: ComingRow, history: Sequence[int], start: int) -> Draw:
        _ = self.sharpness.factor  # this access makes the factor learn before `distribution` waits
        whole = self.chain.distribution(row, history, drafts=True)
        likeliest, confidence = whole.likeliest()
        q = self.sharpness.shape(whole, len(history))
        if q is None:
            return Draw(likeliest, None, confidence)
        return Draw(self.noise.drafted(q, len(history), start), q, confidence)

    def verify(self, rows: Sequence[Row], proposal: Proposal, history: Sequence[int]) -> Verdict:
        certain, start = proposal.certain, len(history)
        if not proposal.tokens:
            token = self.noise.chosen(self.chain.distribution(rows[0], history), start)
            return Verdict(0, token, Origin.PLAIN)

        @cache
        def p(i: int) -> Distribution:
            text = Continued(history, proposal.tokens[: certain + i])
            return self.chain.distribution(rows[certain + i], text)

        def coin(i: int, probability: float) -> bool:
            return self.noise.coin(probability, start + certain + i, start)

        tokens, q = proposal.tokens[certain:], proposal.q[certain:]
        # If no token is random, `reject` accepts as many as `block`, and reads no rows after the first rejection.
        judge = self.judge if any(d is not None for d in q) else judgement.reject
        kept, successor = judge(tokens, q, p, coin)
        accepted = certain + kept
        self.sharpness.learn(start + certain, min(kept + 1, len(tokens)), p)
        return _verdict(accepted, self.noise.chosen(successor, start + accepted), proposal)


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
            found.append(Likelihood(each, tuple(piece), max(float(logprobs[each]), LEAST_SCORE)))
        return Scored(found[0], tuple(found[1:]))


def make_rule(name: str, sampling: Sampling, seed: int, constraint: Constraint | None = None) -> Rule:
    """Return the rule of a request. "auto" is "greedy" at temperature 0, otherwise "block". Raises BadSetting."""
    if name not in RULES:
        raise BadSetting(
            f"there is no acceptance rule called {name!r}", hint=f"use one of {', '.join(RULES)}"
        )
    if name == Greedy.name and not sampling.greedy:
        raise BadSetting(
            f"the rule 'greedy' needs temperature 0, but the temperature is {sampling.temperature}",
            hint="set the temperature to 0, or leave the rule at 'auto'",
        )
    chain, noise = Chain(sampling, constraint), Keyed(seed)
    if sampling.greedy:
        return Greedy(chain)
    return Coupled(chain, noise) if name == Coupled.name else BlockRule(chain, noise)


RULES = ("auto", Greedy.name, BlockRule.name, Coupled.name)
SEED_DECIDES = frozenset({Greedy.name, Coupled.name})  # rules under which no draft changes the text


def _compared(
    proposal: Proposal, choose: Callable[[int, Sequence[int]], int], history: Sequence[int]
) -> Verdict:
    if not proposal.tokens:
        return Verdict(0, choose(0, history), Origin.PLAIN)
    certain = proposal.certain
    kept, token = judgement.compare(
        proposal.tokens[certain:],
        lambda i: choose(certain + i, Continued(history, proposal.tokens[: certain + i])),
    )
    return _verdict(certain + kept, token, proposal)


def _verdict(accepted: int, next_token: int, proposal: Proposal) -> Verdict:
    return Verdict(accepted, next_token, Origin.BONUS if accepted == len(proposal.tokens) else Origin.FIX)


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
