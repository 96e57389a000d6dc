"""Random numbers that depend on a seed and a key, not on earlier draws.

The generator is splitmix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014)
used as a hash: each part of a key is added to the state, which then passes the generator's finaliser.
"""

import os
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from math import log

import numpy as np

from localspec.sampler.chain import BELOW_ONE, COLDEST, Distribution, Few, finite, pick

_WORD = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_MIX1 = 0xBF58476D1CE4E5B9
_MIX2 = 0x94D049BB133111EB
_AT_ONCE = 8192  # number of tokens hashed at once, so that they fit into a processor's cache
_STEPS = np.arange(1, _AT_ONCE + 1, dtype=np.uint64) * np.uint64(_STEP)
_LOUDNESS = 5.55  # 255 of 256 tokens have less noise: at most -log(-log(1 - 1 / 256)) = 5.543


class Purpose(IntEnum):
    """The purpose of a draw; draws of different purposes are independent."""

    DRAFT = 1  # a draw that chooses a draft token
    ACCEPT = 2  # a draw that accepts or rejects a draft token
    TARGET = 3  # a draw that chooses the target's own token
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
    state = np.uint64(_absorb(_key(seed, Purpose.NOISE), position))
    _mix_all(hashed := state + np.uint64(_STEP) * (ids.astype(np.uint64) + np.uint64(1)))
    hashed ^= hashed >> np.uint64(31)
    u = np.minimum(((hashed >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53, BELOW_ONE)
    noise: np.ndarray = -np.log(-np.log(u))
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
        if isinstance(distribution, Few):
            state, pairs = _absorb(_key(self.seed, Purpose.NOISE), position), distribution.chances.items()
            return -max((log(p) - log(-log(_open(_absorb(state, token)))), -token) for token, p in pairs)[1]
        scores = np.log(distribution.weights) + gumbel(self.seed, position, distribution.ids)
        return int(distribution.ids[scores.argmax()])

    def loudest_of_all(self, logits: np.ndarray, temperature: float, position: int) -> int:
        """Return the `loudest` token of a softmax: one with loud noise, or one whose logit is near the largest."""
        likeliest, temperature = np.array([logits.argmax()]), max(temperature, COLDEST)
        top = finite(logits[likeliest].item())
        lead = gumbel(self.seed, position, likeliest).item() - _LOUDNESS
        near = (logits >= top + temperature * lead).nonzero()[0]
        loud, noise = loud_tokens(self.seed, position, len(logits))
        ids, noise = np.append(loud, near), np.append(noise, gumbel(self.seed, position, near))
        return int(ids[((logits[ids] - np.float64(top)) / temperature + noise).argmax()])


@lru_cache(64)
def loud_tokens(seed: int, position: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens below `size` whose noise is among the loudest at a position, 1 of 256, and their noise."""
    state, found = _absorb(_key(seed, Purpose.NOISE), position), list[np.ndarray]()
    for at in range(0, max(size, 1), _AT_ONCE):
        _mix_all(mixed := _STEPS[: size - at] + np.uint64((state + _STEP * at) & _WORD))
        found.append(at + (mixed >= np.uint64(0xFF << 56)).nonzero()[0])
    ids = np.concatenate(found)
    return ids, gumbel(seed, position, ids)


@lru_cache(64)
def _key(seed: int, purpose: Purpose) -> int:
    return _absorb(_absorb(0, seed), purpose)


def _absorb(state: int, value: int) -> int:
    x = (state + _STEP * (value + 1)) & _WORD
    x = ((x ^ (x >> 30)) * _MIX1) & _WORD
    x = ((x ^ (x >> 27)) * _MIX2) & _WORD
    return x ^ (x >> 31)


def _open(hashed: int) -> float:
    """Turn a hash into a number above 0 and below 1, because the logarithm of 0 is infinite."""
    return min(((hashed >> 11) + 0.5) * 2.0**-53, BELOW_ONE)


def _mix_all(x: np.ndarray) -> None:
    """Apply the finaliser to an array, in place, without its last step, which leaves the 31 high bits as they are."""
    for shift, factor in ((30, _MIX1), (27, _MIX2)):
        x ^= x >> np.uint64(shift)
        x *= np.uint64(factor)
