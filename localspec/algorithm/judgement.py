"""The number of accepted draft tokens and the distribution of the next token, as pure functions.

p is the target's distribution after the whole sampler chain. q is the distribution from which a draft token was
drawn, or None if the token was not drawn at random. Accepted tokens and the next token follow p:
docs/developers/rules.md proves it, and tests/algorithm/test_lossless.py checks it by enumeration.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate

from localspec.sampler.chain import Distribution, excess, excess_mass

Target = Callable[[int], Distribution]
"""A function from a number of draft tokens to the target's distribution p after them."""

Coin = Callable[[int, float], bool]
"""A function of a draft token's index and a probability: it returns True with this probability."""

Judge = Callable[[Sequence[int], Sequence[Distribution | None], Target, Coin], tuple[int, Distribution]]
"""A rule: it returns the number of accepted draft tokens, and the distribution of the next token."""


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
        # The chance h_i is at most `share`. So a coin that is False for `share` is False for h_i; p(i) is not needed.
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
