"""The chance that the target accepts a draft token, from recent acceptance and the draft's confidence.

The draft's confidence alone predicts poorly: a token with confidence 0.4 is usually accepted in free prose, but only
half the time in unfamiliar text. Recent acceptance and the number of earlier draft tokens distinguish these texts. So
a logistic regression combines all three. An extended Kalman filter learns its weights from every judged token.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul

from localspec.control.timing import MEMORY

START = (2.0, 0.6)  # assumed numbers of accepted and rejected tokens before each reply
# Initial weights of the regression's inputs: the constant 1, the recent acceptance, the draft's confidence.
WEIGHTS = (-0.3, 0.8, 0.4)
VARIANCES = (0.5, 0.1, 0.1)  # initial variances of the weights
DRIFT = 1e-5  # growth of the variances per token, because the best weights change with the text
EDGE = 7.0  # logits are clipped to +-EDGE, because smaller probabilities than 1 in 1,000 do not matter


@dataclass(frozen=True, slots=True)
class ChanceWeights:
    weights: tuple[float, ...]
    variances: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raise ValueError for invalid weights, for example from a damaged file."""
        fits = len(self.weights) == len(self.variances) == len(WEIGHTS)
        most = EDGE**4  # a larger weight could overflow in `learn`; the comparison refuses NaN, too
        usual = all(abs(w) <= most for w in self.weights) and all(0 <= v <= most for v in self.variances)
        if not (fits and usual):
            raise ValueError(f"the weights and variances are not three finite numbers each: {self}")


class AcceptanceModel:
    """The chance that a draft token is accepted if all earlier draft tokens are. All replies improve the estimate."""

    def __init__(self, prior: ChanceWeights | None = None) -> None:
        known = prior or ChanceWeights(WEIGHTS, VARIANCES)
        self._weights = list(known.weights)
        self._covariance = diagonal(known.variances)
        self.begin()

    def begin(self) -> None:
        """Begin another reply: keep the regression, forget the recent acceptance."""
        self._kept, self._rejected = START

    def doubt(self) -> None:
        """Trust the regression less: move its weights half-way to the initial ones, with the initial variances."""
        self.begin()
        self._weights = [(learned + first) / 2 for learned, first in zip(self._weights, WEIGHTS, strict=True)]
        self._covariance = diagonal(VARIANCES)

    def weights(self) -> ChanceWeights:
        return ChanceWeights(tuple(self._weights), tuple(row[i] for i, row in enumerate(self._covariance)))

    def ahead(self, drafted: int) -> float:
        """Return the chance that the next token, not drawn yet, is accepted if the `drafted` ones before it are."""
        return (self._kept + drafted) / (self._kept + self._rejected + drafted)

    def of(self, confidence: float, drafted: int) -> float:
        """Return the chance that a draft token of this confidence is accepted if the `drafted` ones before it are."""
        return logistic(dot(self._weights, self._features(confidence, drafted)))

    def learn(self, confidences: Sequence[float], accepted: int, emitted: int) -> None:
        """Learn from a proposal that the target judged in a cycle of `emitted` tokens.

        Only tokens up to the first rejected one are judged. If the later ones counted as rejected, a low estimate
        would confirm itself.
        """
        for i, confidence in enumerate(confidences[: accepted + 1]):
            self._update(self._features(confidence, i), 1.0 if i < accepted else 0.0)
        fade = (1 - 1 / MEMORY) ** emitted
        rejected = accepted < len(confidences)
        self._kept, self._rejected = (
            begun + (lately - begun) * fade + newly
            for begun, lately, newly in zip(
                START, (self._kept, self._rejected), (accepted, rejected), strict=True
            )
        )

    def _features(self, confidence: float, drafted: int) -> tuple[float, ...]:
        return 1.0, logit(self.ahead(drafted)), logit(confidence)

    def _update(self, x: Sequence[float], kept: float) -> None:
        believed = logistic(dot(self._weights, x))
        spread = believed * (1.0 - believed)  # at least about 0.001, because `logistic` clips its argument
        along = [dot(row, x) for row in self._covariance]
        scale = dot(along, x) + 1.0 / spread
        for i, a in enumerate(along):
            self._weights[i] += a * (kept - believed) / spread / scale
            row = [c - a * b / scale for c, b in zip(self._covariance[i], along, strict=True)]
            row[i] += DRIFT
            self._covariance[i] = row


def diagonal(values: Sequence[float]) -> list[list[float]]:
    return [[value * (i == j) for j in range(len(values))] for i, value in enumerate(values)]


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    return float(sum(map(mul, a, b)))


def logistic(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-min(max(x, -EDGE), EDGE)))


def logit(p: float) -> float:
    if p <= 0.0 or p >= 1.0:
        return EDGE if p >= 1.0 else -EDGE
    return min(max(math.log(p / (1.0 - p)), -EDGE), EDGE)
