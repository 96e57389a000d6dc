"""Random numbers that depend on a seed and a key, not on earlier draws.

The generator is splitmix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014)
used as a hash: each part of a key is added to the state, which then passes the generator's finaliser.
"""

import os
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from math import inf, log

import numpy as np

from localspec.sampler.chain import BELOW_ONE, Distribution, Few, pick

_WORD = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_MIX1 = 0xBF58476D1CE4E5B9
_MIX2 = 0x94D049BB133111EB
_AT_ONCE = 8192  # number of tokens hashed at once, so that they fit into a processor's cache


class Purpose(IntEnum):
    """The purpose of a draw; draws of different purposes are independent."""

    DRAFT = 1  # to choose a draft token
    ACCEPT = 2  # to accept or reject a draft token
    TARGET = 3  # to choose the target's own token
    NOISE = 4  # one Gumbel variable for each token of the vocabulary, shared by target and draft


def fresh_seed() -> int:
    """Return a random seed of the operating system. It has 63 bits, and so fits a signed integer of 64 bits."""
    return int.from_bytes(os.urandom(8), "little") >> 1


def uniform(seed: int, position: int, purpose: Purpose, start: int = 0) -> float:
    """Return a pseudo-random number in [0, 1), a multiple of 2^-53.

    `position`: index of the token in the text. `start`: position where the cycle began, if draws of different
    cycles at one position must differ.
    """
    return (_absorb(_absorb(_key(seed, purpose), position), start) >> 11) * 2.0**-53


def gumbel(seed: int, position: int, ids: np.ndarray) -> np.ndarray:
    """Return standard Gumbel noise, float64 [n], for the tokens `ids` [n] at a position of the text."""
    noise: np.ndarray = -np.log(-np.log(_open_all(_absorb(_key(seed, Purpose.NOISE), position), ids)))
    return noise


@dataclass(frozen=True, slots=True)
class Keyed:
    """The random decisions of a reply: each depends only on the seed, its purpose and a position in the text.

    Draft tokens and coins also depend on `start`, the position where the cycle began. Under block verification their
    random numbers influence how many earlier tokens are accepted. A later cycle with the same numbers would be biased.
    """

    seed: int

    def coin(self, probability: float, position: int, start: int) -> bool:
        return uniform(self.seed, position, Purpose.ACCEPT, start) < probability

    def drafted(self, q: Distribution, position: int, start: int) -> int:
        return pick(q, uniform(self.seed, position, Purpose.DRAFT, start))

    def chosen(self, p: Distribution, position: int) -> int:
        """Return the target's own token, drawn from p. The target draws once at a position, so it needs no `start`."""
        return pick(p, uniform(self.seed, position, Purpose.TARGET))

    def loudest(self, distribution: Distribution, position: int) -> int:
        """Return the token with the largest sum of log probability and Gumbel noise: a draw from the distribution."""
        state = _absorb(_key(self.seed, Purpose.NOISE), position)
        if isinstance(distribution, Few):
            pairs = distribution.chances.items()
            return -max((log(p) - log(-log(_open(_absorb(state, token)))), -token) for token, p in pairs)[1]
        loudest, token, least = -inf, -1, 0.0
        for at in range(0, len(distribution.ids), _AT_ONCE):
            ids, weights = distribution.ids[at : at + _AT_ONCE], distribution.weights[at : at + _AT_ONCE]
            u = _open_all(state, ids)
            # exp(score) is weight / -log(u), and -log(u) is at least 1 - u.
            most = weights / (1.0 - u)
            if most[first := int(most.argmax())] >= least:
                least = max(least, float(weights[first]) / -log(u[first]) * (1.0 - 1e-9))
                able = (most >= least).nonzero()[0]
                scores = np.log(weights[able], dtype=np.float64) + gumbel(self.seed, position, ids[able])
                if scores[best := int(scores.argmax())] > loudest:
                    loudest, token = float(scores[best]), int(ids[able[best]])
        return token


@lru_cache(64)
def _key(seed: int, purpose: Purpose) -> int:
    return _absorb(_absorb(0, seed), purpose)


def _absorb(state: int, value: int) -> int:
    return _finalise((state + _STEP * (value + 1)) & _WORD)


def _open(hashed: int) -> float:
    """Turn a hash into a number above 0 and below 1, because the logarithm of 0 is infinite."""
    return min(((hashed >> 11) + 0.5) * 2.0**-53, BELOW_ONE)


def _open_all(state: int, ids: np.ndarray) -> np.ndarray:
    """Return a pseudo-random number above 0 and below 1 for each of the tokens `ids`, float64 [n]."""
    hashed = _finalise_all(np.uint64(state) + np.uint64(_STEP) * (ids.astype(np.uint64) + np.uint64(1)))
    return np.minimum(((hashed >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53, BELOW_ONE)


def _finalise(x: int) -> int:
    x = ((x ^ (x >> 30)) * _MIX1) & _WORD
    x = ((x ^ (x >> 27)) * _MIX2) & _WORD
    return x ^ (x >> 31)


def _finalise_all(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_MIX1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_MIX2)
    mixed: np.ndarray = x ^ (x >> np.uint64(31))
    return mixed
