"""How likely a target finds sampled texts that were drafted: it reads them again and adds up their surprisal."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from localspec.chat.loaded_pair import LoadedPair
from localspec.measure.compare import begin
from localspec.measure.intervals import bernstein
from localspec.sampler.chain import Chain
from localspec.sampler.passes import Candidates
from localspec.sampler.sampling import Sampling

SLACKS = 4  # times the largest difference seen: in 1 of 10 runs a row had moved by 3 times as much
CHUNK = 8  # tokens that the target reads at a time
RAREST = 10.0  # nats: surprisals are cut here, so that no single token decides the sum
NEARLY_SURE = 3.1  # standard deviations that hold 99.9 % of a normal distribution on one side
ALARM = 1e-4  # how often a correct pair may raise the alarm of the sampled texts


@dataclass(frozen=True, slots=True)
class SampledResult:
    """Sampled texts, read again by the target: a token's surprisal has a mean that its distribution gives."""

    texts: int = 0
    tokens: int = 0
    surplus: float = 0.0  # sum over all tokens of surprisal - its mean, nats
    variance: float = 0.0  # of that sum
    largest: float = 0.0  # that one token could have added
    impossible: int = 0  # tokens that the sampler chain excludes, by more than batch widths explain

    def __add__(self, other: "SampledResult") -> "SampledResult":
        sums = {name: value + getattr(other, name) for name, value in asdict(self).items()}
        return SampledResult(**sums | {"largest": max(self.largest, other.largest)})

    @property
    def excess(self) -> float:
        """Surprisal above its mean, nats per token."""
        return self.surplus / max(self.tokens, 1)

    @property
    def excess_error(self) -> float:
        """The standard error of `excess`."""
        return math.sqrt(self.variance) / self.tokens if self.tokens else math.inf

    @property
    def excess_p(self) -> float:
        """An upper bound of the probability of this excess if every token has the target's probabilities."""
        return bernstein(self.surplus, self.variance, self.largest)

    @property
    def smallest_excess(self) -> float:
        """The excess that raises the alarm in 999 of 1,000 runs: `bernstein` solved for its sum, and noise."""
        needed = math.log(2.0 / ALARM)
        rare = self.largest * needed / 3.0
        alarm = rare + math.sqrt(rare**2 + 2.0 * self.variance * needed)
        return alarm / max(self.tokens, 1) + NEARLY_SURE * self.excess_error


def scored(
    pair: LoadedPair, prompt: Sequence[int], tokens: Sequence[int], sampling: Sampling, slack: float
) -> SampledResult:
    """The target reads a text again and judges its tokens; `slack`: how far logits may be off."""
    begin(pair, prompt)
    read = [prompt[-1], *tokens[:-1]]
    chain = Chain(sampling)
    found = SampledResult(texts=1)
    for start in range(0, len(read), CHUNK):
        batch = read[start : start + CHUNK]
        for row, token in zip(pair.target.decode(batch, len(batch)).rows, tokens[start:], strict=False):
            assert not isinstance(row, Candidates), "whole rows were asked for"
            p = chain.distribution(row, ())
            chance = p.of(token)
            if chance == 0.0:
                found += SampledResult(impossible=int(not nearly_kept(row, token, sampling, SLACKS * slack)))
                continue
            surprisals = np.minimum(-np.log(p.probabilities), RAREST)
            expected = float(p.probabilities @ surprisals)
            beyond = surprisals - expected
            variance, largest = float(p.probabilities @ beyond**2), float(np.abs(beyond).max())
            found += SampledResult(0, 1, min(-math.log(chance), RAREST) - expected, variance, largest)
    return found


def nearly_kept(row: np.ndarray, token: int, sampling: Sampling, slack: float) -> bool:
    """Whether the sampler chain could keep a token if logits were up to `slack` away from this row's."""
    weight = math.exp(-2 * slack)  # the ratio of two probabilities can change by this factor
    top_p = 1.0 - (1.0 - sampling.top_p) * weight
    wider = Sampling(sampling.temperature, top_k=0, top_p=top_p, min_p=sampling.min_p * weight)
    if sampling.top_k and row[token] < np.sort(row)[-sampling.top_k :][0] - 2 * slack:
        return False
    return Chain(wider).distribution(row, ()).of(token) > 0.0
