"""Drafts copied from the caller's prediction of the reply, for example the file to edit: no model.

It follows the reply through the prediction by exact position. After a departure, the reply returns where most of the
newest tokens agree, less the logarithm of the distance from the departure.
"""

from collections.abc import Sequence
from math import log2
from typing import Final

import numpy as np

from localspec.algorithm.protocols import Drafter, Proposal, Rule, Stopping
from localspec.drafters.lookup import LookupAcceptance, match_lengths
from localspec.events import Source
from localspec.sampler.passes import standing

# P(a proposed token is kept), by how many tokens have agreed (lookup_trust.MATCHES), before anything was seen.
BELIEFS: Final = (0.7, 0.85, 0.93, 0.97, 0.98, 0.99)
SURE: Final = 4  # tokens that agree: the reply is back in step
LONGEST_MATCH: Final = 16  # tokens compared to find the return
SAME_LENGTH: Final = 8  # tokens: a departure so short may have replaced as many, unless it opens the reply
LEAST_CHANCE: Final = 0.1  # tokens that are less likely to be kept are not proposed,
PROBABLE: Final = 0.5  # at a fixed depth those below this
GRAM: Final = 3  # tokens that must agree at a place that is not near
NEAR: Final = 64  # tokens
LEAST_SCORE: Final = 1 - log2(1 + NEAR)


class PredictionDrafter(Drafter):
    """Proposes what follows in the prediction; serves one reply."""

    source = Source.PREDICTION

    def __init__(self, predicted: Sequence[int]) -> None:
        """`predicted`: the tokens of the expected reply."""
        self._predicted = np.array(predicted, dtype=np.int32)
        self._trust = LookupAcceptance(beliefs=BELIEFS)
        self._at: int | None = 0  # of the prediction: what should come next
        self._agreed = 0  # newest tokens that are the prediction's before `_at`
        self._left_at = 0  # of the prediction: where the reply was in step last
        self._away = 0  # tokens written since
        self._length: int | None = None  # of the text that was seen; None: the reply has not begun
        self._proposed: tuple[int, ...] = ()  # what was proposed to follow it

    def propose(
        self, tokens: Sequence[int], limit: int, rule: Rule | None = None, stopping: Stopping | None = None
    ) -> Proposal:
        """What follows in the prediction; the confidences are the chances that the tokens are kept."""
        return self._proposal(tokens, limit, LEAST_CHANCE)

    def likely(self, tokens: Sequence[int], limit: int) -> Proposal:
        """The tokens that are probably all kept."""
        return self._proposal(tokens, limit, PROBABLE)

    def _proposal(self, tokens: Sequence[int], limit: int, least_chance: float) -> Proposal:
        """The next tokens, until the chance that all are kept falls below `least_chance`."""
        self._catch_up(tokens)
        found = () if self._at is None else self._predicted[self._at : self._at + max(limit, 0)].tolist()
        chances: list[float] = []
        survival = 1.0
        for depth in range(len(found)):
            chance = self._trust.rate(self._agreed, depth, 1.0)
            survival *= chance
            if survival < least_chance:
                break
            chances.append(chance)
        self._proposed = tuple(found[: len(chances)])
        return Proposal.copied(self._proposed, tuple(chances), self.source)

    def _catch_up(self, tokens: Sequence[int]) -> None:
        """The text is now `tokens`: follow the new tokens in step, or find where the text returns to the prediction."""
        if self._length is None:
            self._length = len(tokens)
        if len(tokens) < self._length:  # something was taken back
            self._at, self._agreed, self._away = None, 0, 1
        new = tokens[self._length :]
        agreed = standing(self._proposed, 0, new)
        judged = min(agreed + 1, len(self._proposed), len(new))
        self._trust.learn(self._agreed, (1.0,) * judged, agreed, len(new))
        self._length = len(tokens)
        for token in new:
            self._follow(token)
        if self._agreed < SURE and self._away:
            self._at, self._agreed = self._place(np.array(tokens[-LONGEST_MATCH:], dtype=np.int32))

    def _follow(self, token: int) -> None:
        """One more token of the reply."""
        if self._at is not None and self._at < len(self._predicted) and self._predicted[self._at] == token:
            self._at += 1
            self._agreed += 1
            self._away += 1
            if self._agreed >= SURE:
                self._left_at, self._away = self._at, 0
        else:
            self._at, self._agreed = None, 0
            self._away += 1

    def _place(self, tail: np.ndarray) -> tuple[int | None, int]:
        """The reply's probable place in the prediction, and the number of newest tokens that agree there."""
        same_length = self._left_at + self._away
        found, agreed, best = None, 0, LEAST_SCORE
        if self._left_at and self._away <= SAME_LENGTH:
            found, best = same_length, -log2(1 + self._away)
        ends = self._candidates(tail)
        if len(ends):
            matches = match_lengths(self._predicted, ends, tail)
            starts = ends + 1 - np.minimum(matches, self._away)  # of what was written since it departed
            scores = matches - np.log2(1 + np.abs(starts - self._left_at))
            top = int(scores.argmax())
            if scores[top] >= best:
                found, agreed = int(ends[top]) + 1, int(matches[top])
        return found, agreed

    def _candidates(self, tail: np.ndarray) -> np.ndarray:
        """Places of the newest token in the prediction: any near ones, and far ones with the same tokens before it."""
        predicted = self._predicted
        first, last = max(self._left_at - NEAR, 0), self._left_at + self._away + NEAR
        near = np.flatnonzero(predicted[first:last] == tail[-1]) + first
        if len(tail) < GRAM or len(predicted) < GRAM:
            return near
        same = (predicted[2:] == tail[-1]) & (predicted[1:-1] == tail[-2]) & (predicted[:-2] == tail[-3])
        return np.union1d(near, np.flatnonzero(same) + GRAM - 1)
