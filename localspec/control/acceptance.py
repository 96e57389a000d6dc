"""The chance that the target keeps a draft token, from recent acceptance and the draft's confidence.

Confidence alone says little: 0.4 is usually kept in free prose and a coin toss in unfamiliar text. The recent
acceptance and the tokens before it in the proposal tell the two apart. A logistic regression weighs both, learned while
running: an extended Kalman filter, which is Newton's method taken one token at a time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

DECAY = 0.97  # per emitted token: about 33 tokens
SLOW_DECAY = 0.993
START_KEPT, START_REJECTED = 2.0, 0.6  # what a reply begins with
# Of 1, of how it went lately and of the draft's confidence, before anything was seen.
WEIGHTS = (-0.3, 0.8, 0.4)
VARIANCES = (0.5, 0.1, 0.1)  # of those weights
DRIFT = 1e-5  # by which the variances grow per token: no text has the same weights for ever
EDGE = 7.0  # logits end here: a probability of 1 in 1,000 is as good as 0
MOST = 1e3  # that a stored weight or variance may be
LEAST_VARIANCE = 1e-9
MANY = 200  # judged tokens: their share is known within 0.07, twice its standard error
LEAST_SPREAD = 1e-3  # of an outcome: a surprise teaches no more than this allows


@dataclass(frozen=True, slots=True)
class ChanceWeights:
    """The state of a regression, as it is stored."""

    weights: tuple[float, ...]
    variances: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raises ValueError for an invalid regression, for example from a damaged file."""
        if not len(self.weights) == len(self.variances) == len(WEIGHTS):
            raise ValueError(f"three weights, each with its variance: {self}")
        # Written so that nan is refused as well.
        if not all(abs(weight) <= MOST for weight in self.weights):
            raise ValueError(f"weights are not that large: {self}")
        if not all(0 <= variance <= MOST for variance in self.variances):
            raise ValueError(f"variances of weights are neither negative nor that large: {self}")


class AcceptanceModel:
    """P(kept | reached) of draft tokens, in this reply and across replies."""

    def __init__(self, prior: ChanceWeights | None = None) -> None:
        known = prior or ChanceWeights(WEIGHTS, VARIANCES)
        self._weights = list(known.weights)
        self._covariance = [
            [v * (i == j) for j in range(len(WEIGHTS))] for i, v in enumerate(known.variances)
        ]
        self._ever_kept = self._ever_judged = 0  # tokens
        self.begin()

    def begin(self) -> None:
        """Another reply: keep the regression, forget the recent acceptance."""
        self._kept, self._rejected = START_KEPT, START_REJECTED

    @property
    def usual(self) -> float | None:
        """The kept share of judged tokens in all replies; None until many were judged."""
        return self._ever_kept / self._ever_judged if self._ever_judged >= MANY else None

    def weights(self) -> ChanceWeights:
        return ChanceWeights(tuple(self._weights), tuple(row[i] for i, row in enumerate(self._covariance)))

    def ahead(self, drafted: int) -> float:
        """The chance of a token before it is drawn, after `drafted` tokens that were all kept."""
        return (self._kept + drafted) / (self._kept + self._rejected + drafted)

    def of(self, confidence: float, drafted: int) -> float:
        """The chance of a token drawn with this confidence, after `drafted` tokens that were all kept."""
        return logistic(dot(self._weights, self._features(confidence, drafted)))

    def learn(self, confidences: Sequence[float], accepted: int, emitted: int) -> None:
        """Learn from a judged proposal.

        Tokens behind the first rejected one, and drawn tokens that were left out, were not judged. They must not count
        as doubtful, or a doubt would confirm itself.
        """
        for i, confidence in enumerate(confidences[: accepted + 1]):
            self._update(self._features(confidence, i), 1.0 if i < accepted else 0.0)
        fade = DECAY**emitted
        self._kept = START_KEPT + (self._kept - START_KEPT) * fade + accepted
        rejected = accepted < len(confidences)
        self._ever_kept += accepted
        self._ever_judged += accepted + rejected
        self._rejected = START_REJECTED + (self._rejected - START_REJECTED) * fade + rejected

    def fade(self, emitted: int) -> None:
        """Tokens were written without a proposal: the recent acceptance is the same, but weighs less."""
        fade = max(SLOW_DECAY**emitted, (START_KEPT + START_REJECTED) / (self._kept + self._rejected))
        self._kept *= fade
        self._rejected *= fade

    def _features(self, confidence: float, drafted: int) -> tuple[float, ...]:
        return 1.0, logit(self.ahead(drafted)), logit(confidence)

    def _update(self, x: Sequence[float], kept: float) -> None:
        believed = logistic(dot(self._weights, x))
        spread = max(believed * (1.0 - believed), LEAST_SPREAD)
        along = [dot(row, x) for row in self._covariance]
        scale = dot(along, x) + 1.0 / spread
        for i, a in enumerate(along):
            self._weights[i] += a * (kept - believed) / spread / scale
            for j, b in enumerate(along):
                self._covariance[i][j] -= a * b / scale
            self._covariance[i][i] = max(self._covariance[i][i] + DRIFT, LEAST_VARIANCE)


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def logistic(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-min(max(x, -EDGE), EDGE)))


def logit(p: float) -> float:
    if p <= 0.0 or p >= 1.0:
        return EDGE if p >= 1.0 else -EDGE
    return min(max(math.log(p / (1.0 - p)), -EDGE), EDGE)
