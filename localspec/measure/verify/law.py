"""Does the rule of replies keep the target's law? Replayed on rows that this pair met, where that law is known.

Where a pair drafted, the rows of target and draft are a meeting. Two meetings, and the target's row of a third, make
a world: whatever stands before, the token at position i has the target's law p_i and is drafted from q_i. Then the
law of a text is the product of the p_i, and a rule, which cannot tell where its rows come from, has to produce that.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from localspec.algorithm.loop import speculate
from localspec.algorithm.protocols import Proposal, Rule
from localspec.algorithm.verification import make_rule
from localspec.chat.loaded_pair import LoadedPair
from localspec.drafters.arbiter import Fixed
from localspec.measure.recording import RecordingRule, begin
from localspec.measure.statistics import bernstein
from localspec.passes import Row
from localspec.sampler.chain import Chain, Distribution
from localspec.sampler.sampling import Sampling

RULE = "auto"
DRAFTED = 2  # draft tokens in a world
WORLDS = 24  # of the meetings in which a wrong verdict shows most
TURN = 50  # texts in one world before the next one has its turn
COLLECTING_DEPTH = 4
HEAVIEST = 20.0  # weights are cut here: rare tokens of large weight would make a sum erratic
ALPHA = 1e-4  # how often a correct verifier may raise an alarm, both tests of a run together
EACH = ALPHA / 2  # one test on replays, and one on whole replies
LEAK = 0.02  # share of rejections turned into acceptances that has to be found
SURE = 5.0  # standard deviations beyond the threshold, so that it is found nearly always
SURELY_FOUND = 3.1  # standard deviations that a chance of 99.9 % leaves room for
FEWEST, MOST = 24_000, 240_000  # texts


@dataclass(frozen=True, slots=True)
class Meeting:
    """The rows of target and draft after the same text."""

    target_row: Row
    draft_row: Row


@dataclass(frozen=True, slots=True)
class LawResult:
    """What the replays gave."""

    verifications: int
    texts: int
    kept_share: float  # of draft tokens
    impossible: int  # tokens that the target's law excludes
    leak_p: float  # of a sum that grows where drafts are wrongly kept; an upper bound
    smallest_leak: float  # share of rejections turned into acceptances that is found 999 times of 1000

    @property
    def exact(self) -> bool:
        """Whether nothing speaks against the exact law."""
        return not self.impossible and self.leak_p >= EACH


def collect(
    engine: LoadedPair, prompt: Sequence[int], sampling: Sampling, room: int, seed: int
) -> Iterator[Meeting]:
    """The meetings of a speculative reply to a prompt, up to `room` tokens long."""
    needed = Chain(sampling).candidates_needed()
    rule = RecordingRule(make_rule(RULE, sampling, seed), needed)
    drafter = engine.drafters[0]
    drafter.begin()
    strategy = Fixed(drafter, COLLECTING_DEPTH, rule)
    begin(engine, prompt)
    text, is_end = list(prompt), engine.vocabulary.is_end
    for cycle in speculate(engine.target, strategy, text, rule=rule, room=room, is_end=is_end):
        p, q = rule.taken()
        assert len(p) == cycle.width, "one row for each token of the batch"
        yield from map(Meeting, p, q)
    if drafter.failure:
        raise drafter.failure


class RememberingChain(Chain):
    """A chain that shapes each row once: without penalties a distribution depends on its row alone."""

    def __init__(self, sampling: Sampling) -> None:
        super().__init__(sampling)
        self._distributions: dict[int, tuple[Row, Distribution]] = {}

    def distribution(self, row: Row, history: Sequence[int]) -> Distribution:
        found = self._distributions.get(id(row))
        if found is None:
            # The row is kept with its distribution, so that no other row can take its id.
            found = self._distributions[id(row)] = (row, super().distribution(row, history))
        return found[1]


@dataclass(frozen=True, slots=True)
class Leak:
    """How a position's law p moves when draft tokens that should be rejected are kept.

    A share e of such mistakes moves it to p + e (q - p). The weights point there, with mean 0 under p.
    """

    weights: dict[int, float]  # by token of p
    variance: float  # of a token's weight under p
    pull: float  # what a share of 1 adds to the mean weight

    @property
    def information(self) -> float:
        """How well one draw tells: the squared shift in standard deviations, for a share of 1."""
        return self.pull**2 / self.variance if self.variance > 0.0 else 0.0


def leak(p: Distribution, q: Distribution) -> Leak:
    """Of a position with the law p that is drafted from q; what q has outside of p needs no weight: it is proof."""
    at = np.minimum(q.ids.searchsorted(p.ids), len(q.ids) - 1)
    drafted = np.where(q.ids[at] == p.ids, q.probabilities[at], 0.0)
    weights = np.minimum(drafted / p.probabilities, HEAVIEST)
    weights -= float(p.probabilities @ weights)
    by_token = dict(zip(p.ids.tolist(), weights.tolist(), strict=True))
    return Leak(by_token, float(p.probabilities @ weights**2), float(drafted @ weights))


@dataclass(frozen=True, slots=True)
class World:
    """The target's rows at DRAFTED + 1 positions, the draft's at all but the last, and what can go wrong there."""

    target_rows: tuple[Row, ...]
    draft_rows: tuple[Row, ...]
    leaks: tuple[Leak, ...]
    last: Distribution  # behind the drafts

    @property
    def information(self) -> float:
        return sum(leak.information for leak in self.leaks)


class Replay:
    """Draws texts, cycle by cycle, with fresh randomness for each."""

    def __init__(self, meetings: Sequence[Meeting], sampling: Sampling, seed: int) -> None:
        """In worlds of the meetings that tell most; at least DRAFTED of them."""
        self.verified = self.drafted = self.kept = self.texts = self.impossible = 0
        self._total = 0.0  # of weights
        self._sampling = sampling
        self._chain = RememberingChain(sampling)
        self._seed = seed
        found = sorted(((self._leak(m), m) for m in meetings), key=lambda each: -each[0].information)
        count = min(len(found) // DRAFTED, WORLDS)
        groups = [found[n * DRAFTED : (n + 1) * DRAFTED] for n in range(count)]
        self.worlds = [
            self._world(here, behind[0][1].target_row)
            for here, behind in zip(groups, [*groups[1:], *groups[:1]], strict=True)
        ]
        self.information = sum(world.information for world in self.worlds) / count  # of a text

    def _leak(self, meeting: Meeting) -> Leak:
        rows = meeting.target_row, meeting.draft_row
        return leak(*(self._chain.distribution(row, ()) for row in rows))

    def _world(self, here: Sequence[tuple[Leak, Meeting]], behind: Row) -> World:
        return World(
            (*(meeting.target_row for _, meeting in here), behind),
            tuple(meeting.draft_row for _, meeting in here),
            tuple(leak for leak, _ in here),
            self._chain.distribution(behind, ()),
        )

    @property
    def done(self) -> float:
        """The share of the texts by which a leak of LEAK moves the sum SURE standard deviations too far."""
        distance = needed_distance() + SURE
        wanted = (distance / LEAK) ** 2 / self.information if self.information else 0.0
        return min(1.0, self.texts / max(FEWEST, min(MOST, wanted)))

    def turn(self) -> None:
        """Some texts in every world."""
        for world in self.worlds:
            for _ in range(TURN):
                self._count(world, self._text(world))

    def result(self) -> LawResult:
        """The test, on the texts so far."""
        each = self.texts / len(self.worlds)
        variance = each * sum(leak.variance for world in self.worlds for leak in world.leaks)
        bound = max(sum(max(map(abs, leak.weights.values())) for leak in w.leaks) for w in self.worlds)
        moved = self.texts * self.information  # squared standard deviations, for a share of 1
        return LawResult(
            verifications=self.verified,
            texts=self.texts,
            kept_share=self.kept / self.drafted if self.drafted else 0.0,
            impossible=self.impossible,
            leak_p=bernstein(self._total, variance, bound),
            smallest_leak=min(1.0, (needed_distance() + SURELY_FOUND) / math.sqrt(moved)) if moved else 1.0,
        )

    def _count(self, world: World, text: Sequence[int]) -> None:
        for token, leak in zip(text, world.leaks, strict=False):
            if token in leak.weights:
                self._total += leak.weights[token]
            else:
                self.impossible += 1
        self.impossible += not world.last.of(text[-1])

    def _text(self, world: World) -> list[int]:
        """One text of a world, by as many cycles as it takes."""
        rule = self._rule(self._seed + self.texts)  # consecutive seeds: every draw hashes its seed
        self.texts += 1
        text: list[int] = []
        while len(text) < len(world.target_rows):
            proposal = drafted(rule, world, text)
            verdict = rule.verify(world.target_rows[len(text) :], proposal, text)
            text += [*proposal.tokens[: verdict.accepted], verdict.next_token]
            self.verified += 1
            self.drafted += len(proposal.tokens)
            self.kept += verdict.accepted
        return text

    def _rule(self, seed: int) -> Rule:
        """The rule of a request; shaping a row is pure, so each row is shaped once for all replays."""
        rule: Any = make_rule(RULE, self._sampling, seed)
        same: Rule = replace(rule, chain=self._chain)
        return same


def drafted(rule: Rule, world: World, text: Sequence[int]) -> Proposal:
    """Drafts as far as the world has rows for."""
    history, draws = list(text), []
    for row in world.draft_rows[len(text) :]:
        draws.append(rule.draw(row, history, len(text)))
        history.append(draws[-1].token)
    return Proposal(tuple(draw.token for draw in draws), tuple(draw.q for draw in draws))


def needed_distance() -> float:
    """How many standard deviations `bernstein` asks for, where many terms are summed."""
    return math.sqrt(2.0 * math.log(2.0 / EACH))
