"""Drafts copied from the caller's prediction of the reply, for example from the file to edit.

The drafter follows the reply through the prediction, token by token. After a difference it continues at the place with
the best score: the number of matching tokens, minus the logarithm of the distance from the difference.
"""

from collections.abc import Sequence
from math import log, log2

import numpy as np

from localspec.algorithm.protocols import Drafter, Proposal, Rule, Stopping
from localspec.drafters.lookup import GRAM, LEAST_CHANCE, LONGEST, PRIOR, LookupAcceptance, match_lengths
from localspec.events import Source
from localspec.sampler.passes import common_prefix_length


class PredictionDrafter(Drafter):
    """A drafter for one reply, which proposes the next tokens of the prediction."""

    source = Source.PREDICTION

    def __init__(self, predicted: Sequence[int]) -> None:
        """`predicted`: the tokens of the expected reply."""
        self._predicted = np.array(predicted, dtype=np.int32)
        # The caller expects this text, so each initial chance of rejection is the square of the one in lookup.
        self._trust = LookupAcceptance(prior=[1 - (1 - chance) ** 2 for chance in PRIOR])
        self._at: int | None = 0  # index of the predicted token that should come next; None: unknown
        self._agreed = 0  # number of newest tokens in the reply that equal the tokens before `_at`
        self._left_at = 0  # index in the prediction at which the reply last left it
        self._away = 0  # number of tokens in the reply since it left the prediction
        self._length: int | None = None  # length of the text at the last proposal; None before the first
        self._proposed: tuple[int, ...] = ()  # the last proposal

    def propose(
        self, tokens: Sequence[int], limit: int, rule: Rule | None = None, stopping: Stopping | None = None
    ) -> Proposal:
        """Return a proposal of the next predicted tokens; confidences are chances of acceptance."""
        self._sync(tokens)
        found, chance = list[int](), self._trust.rate(self._agreed, 1.0)
        if self._at is not None:
            probable = min(limit, int(log(LEAST_CHANCE) / log(chance)))
            found = self._predicted[self._at : self._at + max(probable, 0)].tolist()
        self._proposed = tuple(found)
        return Proposal.copied(self._proposed, (chance,) * len(found), self.source)

    def _sync(self, tokens: Sequence[int]) -> None:
        """Follow the new tokens through the prediction, or find the place where the reply returns to it."""
        if self._length is None:
            self._length = len(tokens)
        if len(tokens) < self._length:  # tokens were rolled back
            self._at, self._agreed, self._away = None, 0, 1
        new = tokens[self._length :]
        agreed = common_prefix_length(self._proposed, 0, new)
        judged = min(agreed + 1, len(self._proposed), len(new))
        self._trust.learn(self._agreed, (1.0,) * judged, agreed, len(new))
        self._length = len(tokens)
        for token in new:
            self._follow(token)
        if self._agreed < GRAM and self._away:
            self._at, self._agreed = self._place(np.array(tokens[-LONGEST:], dtype=np.int32))

    def _follow(self, token: int) -> None:
        if self._at is not None and self._at < len(self._predicted) and self._predicted[self._at] == token:
            self._at += 1
            self._agreed += 1
            self._away += 1
            if self._agreed >= GRAM:
                self._left_at, self._away = self._at, 0
        else:
            self._at, self._agreed = None, 0
            self._away += 1

    def _place(self, tail: np.ndarray) -> tuple[int | None, int]:
        """Return the probable index of the next token in the prediction, and how many tokens before it match."""
        found, agreed, best = None, 0, 1 - log2(1 + LONGEST)
        # First assume that the reply replaced some predicted tokens by equally many other tokens.
        if self._left_at and -log2(1 + self._away) > best:
            found, best = self._left_at + self._away, -log2(1 + self._away)
        ends = self._candidates(tail)
        if len(ends):
            matches = match_lengths(self._predicted, ends, tail)
            starts = ends + 1 - np.minimum(matches, self._away)
            scores = matches - np.log2(1 + np.abs(starts - self._left_at))
            top = int(scores.argmax())
            if scores[top] >= best:
                found, agreed = int(ends[top]) + 1, int(matches[top])
        return found, agreed

    def _candidates(self, tail: np.ndarray) -> np.ndarray:
        """Return where the prediction has the newest token; far from `_left_at`, the newest three tokens must match."""
        predicted = self._predicted
        first, last = max(self._left_at - LONGEST, 0), self._left_at + self._away + LONGEST
        near = np.flatnonzero(predicted[first:last] == tail[-1]) + first
        if len(tail) < GRAM or len(predicted) < GRAM:
            return near
        same = (
            (predicted[2:] == tail[-1])
            & (predicted[1:-1] == tail[-2])
            & (predicted[: 1 - GRAM] == tail[-GRAM])
        )
        return np.union1d(near, np.flatnonzero(same) + GRAM - 1)
