"""The production rules replayed in worlds of real rows, and the texts counted that come out."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from localspec.algorithm.protocols import Proposal, Rule
from localspec.algorithm.verification import make_rule
from localspec.measure.verify.law_worlds import (
    DRAFTED,
    Leak,
    Meeting,
    RememberingChain,
    World,
    leak,
    worlds_of,
)
from localspec.passes import Row
from localspec.sampler.distributions import Distribution
from localspec.sampler.sampling import Sampling

WORLDS = 24  # for each trial, of the meetings in which a wrong verdict shows most
TURN = 50  # texts in one world before the next one has its turn
GROUPS = 4  # of tokens at a position, where whole texts are counted


@dataclass(frozen=True, slots=True)
class LawTrial:
    """A way of drafting and verifying."""

    name: str
    rule: str
    drawn: bool  # drafts drawn by the rule, or always the draft's likeliest token


@dataclass(frozen=True, slots=True)
class Position:
    """The law of the token at a position of a world, and what a draft could do to it."""

    p: Distribution
    leak: Leak | None  # None where nothing is drafted
    groups: np.ndarray  # int [n]: the group of each token of p


@dataclass(slots=True)
class Place:
    """A world in which a trial is made, and the texts that came out there."""

    world: World
    positions: tuple[Position, ...]
    chosen: tuple[int, ...]  # what is drafted where drafts are not drawn
    counts: Counter[tuple[int, ...]] = field(default_factory=Counter)

    @property
    def information(self) -> float:
        """How well one text tells of wrongly kept drafts; see Leak."""
        return sum(position.leak.information for position in self.positions if position.leak)


class Replay:
    """One trial: draws texts, cycle by cycle, with fresh randomness for each."""

    def __init__(self, trial: LawTrial, meetings: Sequence[Meeting], sampling: Sampling, seed: int) -> None:
        """In worlds of the meetings that tell most; at least DRAFTED of them."""
        self.trial = trial
        self.verified = 0
        self.drafted = 0
        self.kept = 0
        self.texts = 0
        self._drawn = trial.drawn
        self._sampling = sampling
        self._chain = RememberingChain(sampling)
        self._seed = seed
        telling = sorted(meetings, key=self._information, reverse=True)[: WORLDS * DRAFTED]
        self.places = [place(world, self._chain, drawn=self._drawn) for world in worlds_of(telling)]

    @property
    def information(self) -> float:
        """Of a text, on average over the places."""
        return sum(here.information for here in self.places) / len(self.places)

    def _information(self, meeting: Meeting) -> float:
        p = self._chain.distribution(meeting.target_row, ())
        return leak(p, drafts_of(meeting.draft_row, self._chain, drawn=self._drawn)).information

    def turn(self) -> None:
        """Some texts in every world."""
        for here in self.places:
            for _ in range(TURN):
                here.counts[self._text(here)] += 1

    def _text(self, here: Place) -> tuple[int, ...]:
        """One text of a world, by as many cycles as it takes."""
        rule = self._rule(self._seed + self.texts)  # consecutive seeds: every draw hashes its seed
        self.texts += 1
        text: list[int] = []
        while len(text) < len(here.positions):
            proposal = self._proposal(rule, here, text)
            verdict = rule.verify(here.world.target_rows[len(text) :], proposal, text)
            text += [*proposal.tokens[: verdict.accepted], verdict.next_token]
            self.verified += 1
            self.drafted += len(proposal.tokens)
            self.kept += verdict.accepted
        return tuple(text)

    def _rule(self, seed: int) -> Rule:
        """The rule of a request; shaping a row is pure, so each row is shaped once for all replays."""
        rule: Any = make_rule(self.trial.rule, self._sampling, seed)
        same: Rule = replace(rule, chain=self._chain)
        return same

    def _proposal(self, rule: Rule, here: Place, text: Sequence[int]) -> Proposal:
        """Drafts as far as the world has rows for."""
        if not self._drawn:
            tokens = here.chosen[len(text) :]
            return Proposal(tokens, (None,) * len(tokens))
        history = list(text)
        draws = []
        for row in here.world.draft_rows[len(text) :]:
            draws.append(rule.draw(row, history, len(text)))
            history.append(draws[-1].token)
        return Proposal(tuple(draw.token for draw in draws), tuple(draw.q for draw in draws))


def drafts_of(row: Row, chain: RememberingChain, *, drawn: bool) -> Distribution | int:
    """What is drafted from, or the token that always is."""
    return chain.distribution(row, ()) if drawn else chain.likeliest(row, ())[0]


def place(world: World, chain: RememberingChain, *, drawn: bool) -> Place:
    """The laws of a world's positions, with drafts drawn from the draft's law or its likeliest tokens."""
    drafts = [drafts_of(row, chain, drawn=drawn) for row in world.draft_rows]
    targets = [chain.distribution(row, ()) for row in world.target_rows]
    leaks = [leak(p, q) for p, q in zip(targets, drafts, strict=False)]
    positions = [
        Position(p, found, groups_of(p, found)) for p, found in zip(targets, [*leaks, None], strict=True)
    ]
    return Place(world, tuple(positions), tuple(q for q in drafts if isinstance(q, int)))


def groups_of(p: Distribution, towards: Leak | None) -> np.ndarray:
    """Tokens cut into groups of about equal probability, in the order in which drafts would favour them."""
    order = (towards.weights if towards else p.probabilities).argsort(kind="stable")
    middles = p.probabilities[order].cumsum() - p.probabilities[order] / 2
    groups = np.empty(len(order), dtype=int)
    groups[order] = np.minimum((middles * GROUPS).astype(int), GROUPS - 1)
    return groups
