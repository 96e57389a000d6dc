"""Sampled texts with and without drafting, as likely under the target as its own law says?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from localspec.chat.loaded_pair import LoadedPair
from localspec.chat.messages import Message
from localspec.chat.reply import log_softmax
from localspec.chat.session import Session
from localspec.measure.recording import begin
from localspec.measure.statistics import bernstein
from localspec.passes import Candidates
from localspec.sampler.chain import Chain
from localspec.sampler.sampling import Sampling

NEW_TOKENS = 48
DEPTH = 4
CHUNK = 8  # tokens read at a time
DRAWS = 4000  # of the bootstrap


@dataclass(frozen=True, slots=True)
class Scores:
    """A text token by token, under the target reading it anew; float64 [n] each."""

    log_likelihoods: np.ndarray  # of the whole vocabulary at the temperature, nothing cut off
    surprisals: np.ndarray  # of the law after the whole sampler chain
    expected: np.ndarray  # what that law says a surprisal is on average: its entropy
    variances: np.ndarray  # of a surprisal under that law
    largest: float  # surprisal that any token of the text could have had, less its mean
    impossible: int  # tokens that the sampler chain excludes, by more than batch widths explain


@dataclass(frozen=True, slots=True)
class QualityResult:
    """Speculative against plain texts."""

    texts: int = 0  # of each kind
    tokens: int = 0  # of the speculative texts
    plain: float = 0.0  # mean log-likelihood per token, nats
    speculative: float = 0.0
    low: float = -math.inf  # 95 % interval of the difference, speculative - plain
    high: float = math.inf
    excess: float = (
        0.0  # surprisal of the speculative texts above what the target's law expects, nats per token
    )
    excess_error: float = math.inf  # its standard error
    excess_p: float = 1.0  # at most the probability of such an excess under the exact law
    impossible: int = 0

    @property
    def difference(self) -> float:
        return self.speculative - self.plain


def sampled_pair(
    session: Session, text: str, sampling: Sampling, seeds: tuple[int, int], width_difference: float
) -> tuple[Scores, Scores]:
    """A plain and a speculative reply through the session, each with randomness of its own, scored."""
    plain, speculative = (
        sampled(session, text, sampling, seed, speculate=speculate, width_difference=width_difference)
        for speculate, seed in zip((False, True), seeds, strict=True)
    )
    return plain, speculative


def sampled(
    session: Session, text: str, sampling: Sampling, seed: int, *, speculate: bool, width_difference: float
) -> Scores:
    """One reply, scored."""
    reply = session.run(
        [Message("user", text)],
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repeat_penalty=1.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        seed=seed,
        max_tokens=NEW_TOKENS,
        depth=DEPTH,
        speculate=speculate,
    )
    prompt = list(session.engine.target.tokens[: reply.stats.prompt_tokens])
    return scored(session.engine, prompt, reply.tokens, sampling, width_difference)


def scored(
    engine: LoadedPair, prompt: Sequence[int], tokens: Sequence[int], sampling: Sampling, slack: float
) -> Scores:
    """Read a text anew and judge its tokens; `slack` is how far logits may be off."""
    begin(engine, prompt)
    read = [prompt[-1], *tokens[:-1]]
    chain = Chain(sampling)
    columns: list[tuple[float, float, float, float]] = []
    largest, impossible = 0.0, 0
    for start in range(0, len(read), CHUNK):
        batch = read[start : start + CHUNK]
        for row, token in zip(engine.target.decode(batch, len(batch)).rows, tokens[start:], strict=False):
            assert not isinstance(row, Candidates), "whole rows were asked for"
            p = chain.distribution(row, ())
            surprisals = -np.log(p.probabilities)
            mean = float(p.probabilities @ surprisals)
            chance = p.of(token)
            if chance == 0.0:
                impossible += not nearly_kept(row, token, sampling, slack)
                continue
            variance = float(p.probabilities @ (surprisals - mean) ** 2)
            whole = float(log_softmax(row / sampling.temperature)[token])
            columns.append((whole, -math.log(chance), mean, variance))
            largest = max(largest, float(np.abs(surprisals - mean).max()))
    table = np.array(columns).reshape(-1, 4)
    return Scores(table[:, 0], table[:, 1], table[:, 2], table[:, 3], largest, impossible)


def nearly_kept(row: np.ndarray, token: int, sampling: Sampling, slack: float) -> bool:
    """Whether the sampler chain could keep a token if logits were up to `slack` away from this row's."""
    weight = math.exp(-2 * slack)  # a probability's ratio to another one can change by so much
    wider = Sampling(
        temperature=sampling.temperature,
        top_k=0,
        top_p=1.0 - (1.0 - sampling.top_p) * weight,
        min_p=sampling.min_p * weight,
    )
    if sampling.top_k and row[token] < np.sort(row)[-sampling.top_k :][0] - 2 * slack:
        return False
    return Chain(wider).distribution(row, ()).of(token) > 0.0


def quality(pairs: Sequence[tuple[Scores, Scores]]) -> QualityResult:
    """Plain and speculative texts compared, and the speculative ones with the law itself."""
    if not pairs:
        return QualityResult()
    plain, speculative = ([pair[side] for pair in pairs] for side in (0, 1))
    low, high = difference_interval(plain, speculative)
    total = sum(float((s.surprisals - s.expected).sum()) for s in speculative)
    variance = sum(float(s.variances.sum()) for s in speculative)
    tokens = sum(len(s.surprisals) for s in speculative)
    return QualityResult(
        texts=len(pairs),
        tokens=tokens,
        plain=mean_log_likelihood(plain),
        speculative=mean_log_likelihood(speculative),
        low=low,
        high=high,
        excess=total / max(tokens, 1),
        excess_error=math.sqrt(variance) / max(tokens, 1),
        excess_p=bernstein(total, variance, max(s.largest for s in speculative)),
        impossible=sum(s.impossible for s in speculative),
    )


def mean_log_likelihood(texts: Sequence[Scores]) -> float:
    return float(np.concatenate([text.log_likelihoods for text in texts]).mean())


def difference_interval(plain: Sequence[Scores], speculative: Sequence[Scores]) -> tuple[float, float]:
    """The 95 % bootstrap interval of the difference; whole texts are resampled, both sides apart."""
    random = np.random.default_rng(0)
    means = []
    for texts in (plain, speculative):
        sums = np.array([text.log_likelihoods.sum() for text in texts])
        counts = np.array([len(text.log_likelihoods) for text in texts])
        chosen = random.integers(len(texts), size=(DRAWS, len(texts)))
        means.append(sums[chosen].sum(axis=1) / counts[chosen].sum(axis=1))
    low, high = np.quantile(means[1] - means[0], [0.025, 0.975])
    return float(low), float(high)
