"""Rows that a pair met while it ran, as small worlds in which the law of every text is known exactly.

Where a pair drafted, the rows of target and draft are a meeting. Meetings become the positions of a world:
whatever stands before, the token at position i has the target's law p_i and is drafted from q_i. Then the law
of a text is the product of the p_i, and a verifier, which cannot tell where its rows come from, has to
produce exactly that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from localspec.algorithm.loop import speculate
from localspec.algorithm.verification import make_rule
from localspec.chat.loaded_pair import LoadedPair
from localspec.drafters.fixed import Fixed
from localspec.measure.recording import Recording, RecordingRule, begin
from localspec.passes import Row
from localspec.sampler.chain import Chain
from localspec.sampler.distributions import Distribution
from localspec.sampler.sampling import Sampling

DRAFTED = 2  # draft tokens in a world
COLLECTING_DEPTH = 4
HEAVIEST = 20.0  # weights are cut here: rare tokens of large weight would make a sum erratic


@dataclass(frozen=True, slots=True)
class Meeting:
    """The rows of target and draft after the same text."""

    target_row: Row
    draft_row: Row


@dataclass(frozen=True, slots=True)
class World:
    """The target's rows at K+1 positions, and the draft's at the first K."""

    target_rows: tuple[Row, ...]
    draft_rows: tuple[Row, ...]


def collect(
    engine: LoadedPair, prompt: Sequence[int], sampling: Sampling, room: int, seed: int
) -> Iterator[Meeting]:
    """The meetings of a speculative reply to a prompt, up to `room` tokens long."""
    needed = Chain(sampling).candidates_needed()
    rule = RecordingRule(make_rule("auto", sampling, seed), needed)
    target, drafter = Recording(engine.target, needed), engine.drafters[0]
    drafter.begin()
    strategy = Fixed(drafter, COLLECTING_DEPTH, rule)
    begin(engine, prompt)
    cycles = speculate(target, strategy, list(prompt), rule=rule, room=room, is_end=engine.vocabulary.is_end)
    for cycle in cycles:
        p, q = target.taken(), rule.taken()
        assert len(p) == cycle.width, "one row for each token of the batch"
        yield from map(Meeting, p, q)
    if drafter.failure:
        raise drafter.failure


def worlds_of(meetings: Sequence[Meeting]) -> list[World]:
    """Each world has DRAFTED meetings, and another one's target row behind them."""
    count = len(meetings) // DRAFTED
    groups = [meetings[n * DRAFTED : (n + 1) * DRAFTED] for n in range(count)]
    return [
        World(
            (*(m.target_row for m in here), behind[0].target_row),
            tuple(m.draft_row for m in here),
        )
        for here, behind in zip(groups, [*groups[1:], *groups[:1]], strict=True)
    ]


class RememberingChain(Chain):
    """A chain that shapes each row once: without penalties a distribution depends on its row alone."""

    def __init__(self, sampling: Sampling) -> None:
        super().__init__(sampling)
        self._distributions: dict[int, tuple[Row, Distribution]] = {}
        self._likeliest: dict[int, tuple[Row, tuple[int, float]]] = {}

    def distribution(self, row: Row, history: Sequence[int]) -> Distribution:
        found = self._distributions.get(id(row))
        if found is None:
            # The row is kept with its distribution, so that no other row can take its id.
            found = self._distributions[id(row)] = (row, super().distribution(row, history))
        return found[1]

    def likeliest(self, row: Row, history: Sequence[int]) -> tuple[int, float]:
        found = self._likeliest.get(id(row))
        if found is None:
            found = self._likeliest[id(row)] = (row, super().likeliest(row, history))
        return found[1]


@dataclass(frozen=True, slots=True)
class Leak:
    """How a position's law moves when draft tokens that should be rejected are kept.

    A share e of such mistakes moves the law from p to p + e (q - p). The weights point
    there, with mean 0 under p.
    """

    weights: np.ndarray  # float64 [n], for the tokens of p
    variance: float  # of a token's weight under p
    pull: float  # what a share of 1 adds to the mean weight

    @property
    def information(self) -> float:
        """How well one draw tells: the squared shift in standard deviations, for a share of 1."""
        return self.pull**2 / self.variance if self.variance > 0.0 else 0.0


def leak(p: Distribution, q: Distribution | int) -> Leak:
    """q as a distribution, or as the one token that is always drafted."""
    drafted = shares_of(q, p.ids) if isinstance(q, Distribution) else (p.ids == q).astype(float)
    weights = np.minimum(drafted / p.probabilities, HEAVIEST)
    weights -= float(p.probabilities @ weights)
    # What is drafted outside of p has no weight; a single such token in a text is proof enough.
    pull = float(drafted @ weights)
    return Leak(weights, float(p.probabilities @ weights**2), pull)


def shares_of(q: Distribution, ids: np.ndarray) -> np.ndarray:
    """The probabilities of tokens [n], 0 for those that q excludes; float64 [n]."""
    at = np.minimum(q.ids.searchsorted(ids), len(q.ids) - 1)
    return np.where(q.ids[at] == ids, q.probabilities[at], 0.0)
