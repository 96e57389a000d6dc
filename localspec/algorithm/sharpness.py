"""The draft temperature: the request's temperature times the factor that gives the highest acceptance rate.

Any q is lossless if draft tokens are drawn from it. After a cycle p and q are known, so the overlap of p with q at
other temperatures can be computed. A draft whose distribution is flatter than the target's should be sampled at a
lower temperature, or by its likeliest token alone.
"""

from collections.abc import Callable

import numpy as np

from localspec.sampler.chain import Distribution

FACTORS = (0.0, 0.5, 0.7, 0.85, 1.0)  # factors of the request's temperature; 0: take the likeliest token
_WARM = np.array(FACTORS[1:])[:, None]
BETTER = 1.01  # another factor replaces the present one if its overlap is more than this many times as large
ENOUGH = 4  # the factor may change after this many judged positions
EAGER_CYCLES, EVERY = 8, 4  # learn from the first eight cycles, then from every fourth
# Each new position multiplies the sums of overlaps by this factor, so about the latest 33 positions count.
DECAY = 0.97


class DraftTemperature:
    """The temperature factor for the drafts of one reply. It starts with 1, so the same seed repeats the reply."""

    def __init__(self) -> None:
        self._factor = 1.0
        self._kept = np.zeros(len(FACTORS))  # sum of overlaps for each factor; older positions count less
        self._seen = 0
        self._cycles = 0
        self._drafted: dict[int, Distribution] = {}  # q at factor 1, by position in the present cycle
        self._judged: list[tuple[Distribution, Distribution]] = []  # p and q of positions not learned yet

    def shape(self, q: Distribution, position: int) -> Distribution | None:
        """Return the distribution for the draft token at a position; None: take the likeliest token."""
        self._drafted[position] = q
        return sharpened(q, factor) if (factor := self.factor) else None

    def learn(self, first: int, judged: int, p: Callable[[int], Distribution]) -> None:
        """Note the target's p at `judged` positions from `first` on, wherever `shape` has recorded a q."""
        drafted, self._drafted = self._drafted, {}
        self._cycles += 1
        if self._cycles > EAGER_CYCLES and self._cycles % EVERY:
            return
        self._judged += [(p(i), drafted[first + i]) for i in range(judged) if first + i in drafted]

    @property
    def factor(self) -> float:
        """The present factor, after learning from the noted positions, which takes time."""
        for here, q in self._judged:
            self._kept = self._kept * DECAY + overlaps(here, q)
        self._seen += len(self._judged)
        if self._judged and self._seen >= ENOUGH:
            best = int(self._kept.argmax())
            better = self._kept[best] > BETTER * self._kept[FACTORS.index(self._factor)]
            self._factor = FACTORS[best] if better else self._factor
        self._judged = []
        return self._factor


def sharpened(q: Distribution, factor: float) -> Distribution:
    """Return q at `factor` times its temperature, over the same tokens: temperature is the last step of the chain."""
    return q if factor == 1.0 else Distribution(q.ids, _powers(np.log(q.probabilities), factor))


def _powers(logs: np.ndarray, factor: float | np.ndarray) -> np.ndarray:
    powers: np.ndarray = (logs - np.maximum.reduce(logs)) / factor
    np.exp(powers, out=powers)
    powers /= np.add.reduce(powers, axis=-1, keepdims=True)
    return powers


def overlaps(p: Distribution, q: Distribution) -> np.ndarray:
    """Return, for each of FACTORS, the chance that a draft token is accepted: the sum of min(p, q at this factor)."""
    shared = p.shares(q.ids)
    cold, logs = float(shared[int(q.probabilities.argmax())]), np.log(q.probabilities)
    return np.array([cold, *np.add.reduce(np.minimum(shared, _powers(logs, _WARM)), axis=-1)])
