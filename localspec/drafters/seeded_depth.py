"""The depth of replies with a seed: no clock may decide what a seed is to reproduce, so it is decided once."""

from collections.abc import Callable, Sequence

from localspec.control.costs import Costs


def best_depth(costs: Costs, chance: float, price: Callable[[int], float], depths: Sequence[int]) -> int:
    """The depth with the most tokens per second where every draft token is kept with this chance; 0 is plain.

    `price`: seconds of drafting by depth. Leviathan et al., "Fast inference from transformers via speculative
    decoding", section 3: depth d brings 1 + chance + ... + chance ** d tokens.
    """

    def rate(depth: int) -> float:
        if not depth:
            return 1 / costs.verify(1)
        tokens = sum(chance**kept for kept in range(depth + 1))
        return tokens / (costs.verify(depth + 1) + price(depth))

    return max((0, *depths), key=rate)
