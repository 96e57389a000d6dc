"""Ending a proposal early: calibrated confidence against what another token costs.

Maximising tokens per second is a renewal-reward problem: with `rate`, the tokens per second of the run as a
whole, another token is worth its time when its chance of being kept exceeds `rate` times the seconds it adds.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from localspec.speculation.costs import Costs

BINS = 10
DECAY = 0.998  # per emitted token: about 500 tokens of memory
IDENTITY = 4.0  # pseudo-counts for "a confidence is a probability"
LAST_WEIGHT = 0.25  # how much the last token's chance says about the next one's
EDGE = 4.0  # bins cover logits from -EDGE to EDGE


@dataclass(frozen=True, slots=True)
class ConfidenceCounts:
    """Discounted counts by confidence bin, in a form that can be stored."""

    kept: tuple[float, ...]
    rejected: tuple[float, ...]


class Confidence:
    """What a draft's confidence is worth: P(kept | confidence), learned in bins, shrunk to the identity."""

    def __init__(self, prior: ConfidenceCounts | None = None) -> None:
        fits = prior is not None and len(prior.kept) == len(prior.rejected) == BINS
        self._kept = list(prior.kept) if prior and fits else [0.0] * BINS
        self._rejected = list(prior.rejected) if prior and fits else [0.0] * BINS

    def counts(self) -> ConfidenceCounts:
        return ConfidenceCounts(tuple(self._kept), tuple(self._rejected))

    def rate(self, confidence: float) -> float:
        """The chance that the target keeps a token of this confidence, given that it is reached."""
        i = bin_of(confidence)
        seen = self._kept[i] + self._rejected[i]
        return (self._kept[i] + IDENTITY * min(max(confidence, 0.0), 1.0)) / (seen + IDENTITY)

    def learn(self, confidences: tuple[float, ...], accepted: int, emitted: int) -> None:
        """Confidences of a proposal's tokens; those after the first rejected one were never judged."""
        decay = DECAY**emitted
        self._kept = [k * decay for k in self._kept]
        self._rejected = [r * decay for r in self._rejected]
        for confidence in confidences[:accepted]:
            self._kept[bin_of(confidence)] += 1
        for confidence in confidences[accepted : accepted + 1]:
            self._rejected[bin_of(confidence)] += 1


def bin_of(confidence: float) -> int:
    """Ten bins, evenly spaced on the logit: sure drafts differ by orders of magnitude."""
    if confidence <= 0.0:
        return 0
    if confidence >= 1.0:
        return BINS - 1
    logit = math.log(confidence / (1 - confidence))
    return min(max(int((logit + EDGE) * BINS / (2 * EDGE)), 0), BINS - 1)


class Stopper:
    """The `Stopping` of one cycle."""

    def __init__(
        self,
        confidence: Confidence,
        costs: Costs,
        *,
        hazard: Callable[[int], float],
        rate: float,
        depths: tuple[int, ...],
        limit: int,
    ) -> None:
        """`hazard(i)`: chance of the i-th draft token before it is drawn; `rate`: the run's tokens/s."""
        self._confidence = confidence
        self._costs = costs
        self._hazard = hazard
        self._rate = rate
        self._depths = tuple(d for d in depths if d <= limit)
        self._survival = 1.0
        self._last = 1.0
        self.drawn = 0  # draft tokens drawn, a dropped one included
        self.dropped: float | None = None  # the chance of the token that ended the proposal by being dropped

    def keeps(self, confidence: float, drafted: int) -> bool:
        self.drawn += 1
        self._last = self._confidence.rate(confidence)
        kept = self._must_go_on(drafted) or self._gain(drafted, first=self._last, draw_first=False) > 0
        self._survival *= self._last
        self.dropped = None if kept else self._last
        return kept

    def goes_on(self, drafted: int) -> bool:
        return (
            self._must_go_on(drafted) or self._gain(drafted, first=self._ahead(drafted), draw_first=True) > 0
        )

    def _ahead(self, drafted: int) -> float:
        return LAST_WEIGHT * self._last + (1 - LAST_WEIGHT) * self._hazard(drafted + 1)

    def _must_go_on(self, drafted: int) -> bool:
        """Where only some depths may be used, a proposal ends only at one of them (or before the first)."""
        return drafted > 0 and drafted not in self._depths

    def _gain(self, drafted: int, *, first: float, draw_first: bool) -> float:
        """Tokens won by going on to the best later depth, less the tokens its seconds are worth."""
        best, won, survival, ahead = -math.inf, 0.0, self._survival * first, self._ahead(drafted)
        here = self._costs.verify(drafted + 1)
        for depth in range(drafted + 1, self._depths[-1] + 1):
            won += survival
            survival *= ahead
            if depth in self._depths:
                draws = depth - drafted - (not draw_first)
                seconds = self._costs.verify(depth + 1) - here + self._costs.draft(draws)
                best = max(best, won - self._rate * seconds)
        return best
