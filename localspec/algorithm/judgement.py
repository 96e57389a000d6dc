"""The acceptance rules as pure functions, and the temperature of drafts.

A rule decides how many draft tokens are accepted, and from which distribution the next token is drawn.

p is the target's distribution after the whole sampler chain. q is the distribution from which a draft token was
drawn, or None if the token was not drawn at random. Accepted tokens and the next token follow p:
docs/developers/rules.md proves it, and tests/algorithm/test_lossless.py checks it by enumeration.

Any q is lossless if draft tokens are drawn from it. After a cycle p and q are known, so the overlap of p with q at
other temperatures can be computed. A draft whose distribution is flatter than the target's should be sampled at a
lower temperature, or by its likeliest token alone.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from localspec.sampler.chain import Distribution, Few, excess, excess_mass

Target = Callable[[int], Distribution]
"""A function from a number of draft tokens to the target's distribution p after them."""

Coin = Callable[[int, float], bool]
"""A function of a draft token's index and a probability: it returns True with this probability."""

Judge = Callable[[Sequence[int], Sequence[Distribution | None], Target, Coin], tuple[int, Distribution]]
"""A rule: it returns the number of accepted draft tokens, and the distribution of the next token."""

FACTORS = (0.0, 0.5, 0.7, 0.85, 1.0)  # factors of the request's temperature; 0: take the likeliest token
_WARM = np.array(FACTORS[1:])[:, None]
BETTER = 1.01  # another factor is used if with it p and q overlap this many times as much
ENOUGH = 4  # the factor may change after this many judged positions
EAGER_CYCLES, EVERY = 8, 4  # learn from the first eight cycles, then from every fourth
# Each new position multiplies the sums of overlaps by this factor, so about the latest 33 positions count.
DECAY = 0.97


def compare(tokens: Sequence[int], choose: Callable[[int], int]) -> tuple[int, int]:
    """Return how many leading tokens equal the target's choices `choose(i)`, and the choice after these tokens."""
    for i, token in enumerate(tokens):
        choice = choose(i)
        if choice != token:
            return i, choice
    return len(tokens), choose(len(tokens))


def reject(
    tokens: Sequence[int], q: Sequence[Distribution | None], p: Target, coin: Coin
) -> tuple[int, Distribution]:
    """Judge token by token, with rejection sampling (Leviathan et al. 2023, arXiv 2211.17192, algorithm 1)."""
    for i, token in enumerate(tokens):
        here = p(i)
        if not coin(i, min(1.0, here.of(token) / drawn_with(q[i], token))):
            return i, excess(here, q[i], token)
    return len(tokens), p(len(tokens))


def block(
    tokens: Sequence[int], q: Sequence[Distribution | None], p: Target, coin: Coin
) -> tuple[int, Distribution]:
    """Accept by block verification (Sun et al. 2024, arXiv 2403.10444, algorithm 2).

    `coin(i, chance)` returns True with this chance. Of the prefixes whose coins are True, the longest is accepted.
    `share` is c_i of the paper: the running product of p/q, capped at 1 after every token.
    """
    kept, kept_share, share = 0, 1.0, 1.0
    for i, token in enumerate(tokens, start=1):
        share = min(1.0, share * p(i - 1).of(token) / drawn_with(q[i - 1], token))
        if share == 0.0:
            break  # all later shares are 0, so no longer prefix can be accepted
        # The chance h_i is at most `share`. So a coin that is False for `share` is False for h_i: p(i) is not needed.
        if coin(i - 1, share) and coin(i - 1, _kept_at(i, share, tokens, q, p)):
            kept, kept_share = i, share
        # p/q is at most 1/q, so these shares are upper bounds: coins that are False for them are False for any p.
        most = accumulate(
            map(drawn_with, q[i:], tokens[i:]), lambda c, here: min(1.0, c / here), initial=share
        )
        if kept < i and not any(coin(j, c) for j, c in enumerate(most, i - 1) if j >= i):
            break
    here = p(kept)
    if kept == len(tokens):
        return kept, here
    return kept, excess(here, q[kept], tokens[kept], kept_share)


def _kept_at(
    i: int, share: float, tokens: Sequence[int], q: Sequence[Distribution | None], p: Target
) -> float:
    """Return h_i of block verification: the chance that i tokens are accepted if no longer prefix is accepted."""
    if i == len(tokens) or share == 1.0:
        return share
    left = excess_mass(p(i), q[i], tokens[i], share)
    return left / (left + 1.0 - share)


def drawn_with(q: Distribution | None, token: int) -> float:
    """Return the probability with which q drew a draft token; 1 if the token was not drawn at random."""
    probability = 1.0 if q is None else q.of(token)
    assert probability > 0.0, "q gives the token that was drawn from it a probability above 0"
    return probability


class DraftTemperature:
    """The factor of the request's temperature that gives the drafts of one reply the highest acceptance rate.

    Each reply starts with the factor 1, so that the same seed repeats the reply.
    """

    def __init__(self) -> None:
        self._factor = 1.0
        self._kept = np.zeros(len(FACTORS))  # sum of overlaps for each factor; older positions count less
        self._seen = 0
        self._cycles = 0
        self._drafted: dict[int, Distribution] = {}  # q at factor 1, by position in the present cycle
        self._judged: list[tuple[Distribution, Distribution]] = []  # p and q that `factor` has not used yet

    def shape(self, q: Distribution, position: int) -> Distribution | None:
        """Return the distribution for the draft token at a position; None: take the likeliest token."""
        self._drafted[position] = q
        return sharpened(q, factor) if (factor := self.factor) else None

    def learn(self, first: int, judged: int, p: Callable[[int], Distribution]) -> None:
        """Record the target's p at `judged` positions from `first` on, if `shape` has recorded a q there."""
        drafted, self._drafted = self._drafted, {}
        self._cycles += 1
        if self._cycles > EAGER_CYCLES and self._cycles % EVERY:
            return
        self._judged += [(p(i), drafted[first + i]) for i in range(judged) if first + i in drafted]

    @property
    def factor(self) -> float:
        """The present factor. It learns from the recorded positions first, which takes time."""
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
    if factor == 1.0:
        return q
    if isinstance(q, Few):
        return Few.of_weights([(token, chance ** (1.0 / factor)) for token, chance in q.chances.items()])
    return Distribution(q.ids, _powers(np.log(q.probabilities), factor))


def _powers(logs: np.ndarray, factor: float | np.ndarray) -> np.ndarray:
    powers: np.ndarray = (logs - np.maximum.reduce(logs)) / factor
    np.exp(powers, out=powers)
    powers /= np.add.reduce(powers, axis=-1, keepdims=True)
    return powers


def overlaps(p: Distribution, q: Distribution) -> np.ndarray:
    """Return, for each of FACTORS, the chance that a draft token is accepted: the sum of min(p, q at this factor)."""
    shared = p.shares(q.ids)
    cold, logs = p.of(q.likeliest()[0]), np.log(q.probabilities)
    return np.array([cold, *np.add.reduce(np.minimum(shared, _powers(logs, _WARM)), axis=-1)])
