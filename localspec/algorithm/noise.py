"""Randomness as an argument: a draw depends on the seed and its own key, not on earlier draws.

The generator is splitmix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014)
used as a counter hash: the parts of a key are absorbed one after another, each through its finaliser.
"""

import os
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

import numpy as np

from localspec.sampler.chain import Distribution, pick

_WORD = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_MIX1 = 0xBF58476D1CE4E5B9
_MIX2 = 0x94D049BB133111EB


class Purpose(IntEnum):
    """The purpose of a draw; draws of different purposes are independent."""

    DRAFT = 1  # which token is drafted
    ACCEPT = 2  # whether a drafted token is kept
    TARGET = 3  # the target's own token
    NOISE = 4  # one Gumbel variable for every token, shared by target and draft


def fresh_seed() -> int:
    """A seed of 63 bits from the operating system, so that it fits any signed integer field."""
    return int.from_bytes(os.urandom(8), "little") >> 1


def uniform(seed: int, position: int, purpose: Purpose, start: int = 0) -> float:
    """A number in [0, 1), a multiple of 2^-53.

    `position` is the index in the text of the token that is decided; `start` is where the cycle began, given
    for draws that a later cycle over the same position must not meet again.
    """
    return (_absorb(_absorb(_key(seed, purpose), position), start) >> 11) * 2.0**-53


def gumbel(seed: int, position: int, ids: np.ndarray) -> np.ndarray:
    """Standard Gumbel noise, float64 [n], for tokens `ids` [n] at a position of the text."""
    state = _absorb(_key(seed, Purpose.NOISE), position)
    hashed = _finalise_all(np.uint64(state) + np.uint64(_STEP) * (ids.astype(np.uint64) + np.uint64(1)))
    # Half a unit away from both ends, so that no logarithm meets 0.
    u = ((hashed >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    noise: np.ndarray = -np.log(-np.log(u))
    return noise


@dataclass(frozen=True, slots=True)
class Keyed:
    """The random decisions of a run, keyed by position in the text; all follow from one seed.

    Draws of a cycle also carry its `start`. Under block verification the number of kept tokens depends on draft tokens
    and coins far behind the first rejected one. A cycle that used them again would be biased.
    """

    seed: int

    def coin(self, probability: float, position: int, start: int) -> bool:
        """The coin of the draft token at `position`: True with this probability keeps it."""
        return uniform(self.seed, position, Purpose.ACCEPT, start) < probability

    def drafted(self, q: Distribution, position: int, start: int) -> int:
        """A draft token from q."""
        return pick(q, uniform(self.seed, position, Purpose.DRAFT, start))

    def chosen(self, p: Distribution, position: int) -> int:
        """The target's own token from p; at most one is chosen at any position, so it needs no start."""
        return pick(p, uniform(self.seed, position, Purpose.TARGET))

    def loudest(self, distribution: Distribution, position: int) -> int:
        """argmax of log probability + noise(position, token): a draw from the distribution."""
        scores = np.log(distribution.probabilities) + gumbel(self.seed, position, distribution.ids)
        return int(distribution.ids[scores.argmax()])


@lru_cache(64)
def _key(seed: int, purpose: Purpose) -> int:
    return _absorb(_absorb(0, seed), purpose)


def _absorb(state: int, value: int) -> int:
    return _finalise((state + _STEP * (value + 1)) & _WORD)


def _finalise(x: int) -> int:
    x = ((x ^ (x >> 30)) * _MIX1) & _WORD
    x = ((x ^ (x >> 27)) * _MIX2) & _WORD
    return x ^ (x >> 31)


def _finalise_all(x: np.ndarray) -> np.ndarray:
    """`_finalise` for uint64 [n], modulo 2^64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_MIX1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_MIX2)
    mixed: np.ndarray = x ^ (x >> np.uint64(31))
    return mixed
