"""How many draft tokens are kept, and the distribution of the next one, as pure functions.

p is the target's distribution after the whole sampler chain, q the one that a draft token was actually drawn
from; a chosen token (q None) has all its mass on itself. For any q, kept tokens and the next one follow the law of p:
docs/developers/rules.md has the argument, tests/algorithm/test_lossless.py enumerates it.
"""

from collections.abc import Callable, Sequence

from localspec.sampler.chain import Distribution, excess, excess_mass

Target = Callable[[int], Distribution]
"""p after 0 to all draft tokens."""

Coin = Callable[[int, float], bool]
"""True with the given probability: is the draft token at this index kept?"""

Judge = Callable[[Sequence[int], Sequence[Distribution | None], Target, Coin], tuple[int, Distribution]]
"""From draft tokens, their q, p and coins: how many are kept, and the distribution of the next token."""


def compare(tokens: Sequence[int], choose: Callable[[int], int]) -> tuple[int, int]:
    """Keep draft tokens while they equal the target's `choose(i)`; its first other choice comes next."""
    for i, token in enumerate(tokens):
        choice = choose(i)
        if choice != token:
            return i, choice
    return len(tokens), choose(len(tokens))


def reject(
    tokens: Sequence[int], q: Sequence[Distribution | None], p: Target, coin: Coin
) -> tuple[int, Distribution]:
    """Token-level rejection (Leviathan et al. 2023, arXiv 2211.17192, algorithm 1)."""
    for i, token in enumerate(tokens):
        here = p(i)
        if not coin(i, min(1.0, here.of(token) / drawn_with(q[i], token))):
            return i, excess(here, q[i], token)
    return len(tokens), p(len(tokens))


def block(
    tokens: Sequence[int], q: Sequence[Distribution | None], p: Target, coin: Coin
) -> tuple[int, Distribution]:
    """Block verification (Sun et al. 2024, arXiv 2403.10444, algorithm 2): the last success counts.

    `share` is c_i of the paper: the smallest of 1 and the running product of p/q, capped at every step.
    """
    kept, kept_share, share = 0, 1.0, 1.0
    for i, token in enumerate(tokens, start=1):
        share = min(1.0, share * p(i - 1).of(token) / drawn_with(q[i - 1], token))
        if share == 0.0:
            break  # every later share and probability is 0 as well
        if coin(i - 1, _kept_at(i, share, tokens, q, p)):
            kept, kept_share = i, share
    here = p(kept)
    if kept == len(tokens):
        return kept, here
    return kept, excess(here, q[kept], tokens[kept], kept_share)


def _kept_at(
    i: int, share: float, tokens: Sequence[int], q: Sequence[Distribution | None], p: Target
) -> float:
    """The probability h_i that the first i tokens are kept, given that no later prefix is."""
    if i == len(tokens) or share == 1.0:
        return share
    left = excess_mass(p(i), q[i], tokens[i], share)
    return left / (left + 1.0 - share)


def drawn_with(q: Distribution | None, token: int) -> float:
    """The probability with which a drafted token was drawn."""
    probability = 1.0 if q is None else q.of(token)
    assert probability > 0.0, "a draft token comes from the distribution that travels with it"
    return probability
