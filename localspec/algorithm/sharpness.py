"""The draft temperature: the share of the request's temperature at which the target keeps most.

Any q is lossless if tokens are drawn from it. The best q can be computed: after a cycle p and q are known, so their
overlap at other temperatures is known too.
A draft that is flatter than its target should be sampled colder, down to its likeliest token.
"""

from collections.abc import Callable

import numpy as np

from localspec.sampler.chain import Distribution

FACTORS = (0.0, 0.5, 0.7, 0.85, 1.0)  # of the request's temperature; 0 is the likeliest token
_WARM = np.array(FACTORS[1:])[:, None]
BETTER = 1.01  # another factor must promise this much more than the present one
ENOUGH = 4  # positions that must have been seen before the factor changes
EAGER_CYCLES, EVERY = 8, 4  # every cycle counts at first, later every fourth
DECAY = 0.97  # per position: about 33 positions of memory


class DraftTemperature:
    """The factor of one reply; it begins at 1, so that a seed reproduces the reply."""

    def __init__(self) -> None:
        self.factor = 1.0
        self._kept = np.zeros(len(FACTORS))  # discounted sums of overlaps
        self._seen = 0
        self._cycles = 0
        self._drafted: dict[int, Distribution] = {}  # q at factor 1, by position, since the last verification

    def shape(self, q: Distribution, position: int) -> Distribution | None:
        """The distribution to draw from at a position; None: take the likeliest token."""
        self._drafted[position] = q
        return sharpened(q, self.factor) if self.factor else None

    def learn(self, first: int, judged: int, p: Callable[[int], Distribution]) -> None:
        """The target's p at `judged` positions from `first` on; positions that were not drawn here are passed over."""
        drafted, self._drafted = self._drafted, {}
        self._cycles += 1
        if self._cycles > EAGER_CYCLES and self._cycles % EVERY:
            return
        for i in range(judged):
            if (q := drafted.get(first + i)) is not None:
                self._kept = self._kept * DECAY + overlaps(p(i), q)
                self._seen += 1
        best = int(self._kept.argmax())
        if self._seen >= ENOUGH and self._kept[best] > BETTER * self._kept[FACTORS.index(self.factor)]:
            self.factor = FACTORS[best]


def sharpened(q: Distribution, factor: float) -> Distribution:
    """q at `factor` times its temperature; temperature comes last in the chain, so the tokens stay the same."""
    return q if factor == 1.0 else Distribution(q.ids, _powers(np.log(q.probabilities), factor))


def _powers(logs: np.ndarray, factor: float | np.ndarray) -> np.ndarray:
    """The distribution with these logarithms of probabilities at `factor` times its temperature; a row for each."""
    powers: np.ndarray = (logs - np.maximum.reduce(logs)) / factor
    np.exp(powers, out=powers)
    powers /= np.add.reduce(powers, axis=-1, keepdims=True)
    return powers


def overlaps(p: Distribution, q: Distribution) -> np.ndarray:
    """For each factor, the chance that a token drawn from q at that factor is kept: the sum of min(p, q)."""
    shared = p.shares(q.ids)
    cold, logs = float(shared[int(q.probabilities.argmax())]), np.log(q.probabilities)
    return np.array([cold, *np.add.reduce(np.minimum(shared, _powers(logs, _WARM)), axis=-1)])
