"""Ending a proposal early: the chance of a token against what it costs.

Maximising tokens per second is a renewal-reward problem: with `rate`, the tokens per second of the run as a
whole, another token is worth its time when its chance of being kept exceeds `rate` times the seconds it adds.
"""

import math
from collections.abc import Callable

from localspec.control.chances import Chances
from localspec.control.costs import Costs


class Stopper:
    """The `Stopping` of one cycle."""

    def __init__(
        self,
        chances: Chances,
        costs: Costs,
        price: Callable[[int], float],
        *,
        rate: float,
        depths: tuple[int, ...],
        limit: int,
    ) -> None:
        """`price`: seconds of drafting by depth; `rate`: the run's tokens/s."""
        self._chances = chances
        self._costs = costs
        self._price = price
        self._rate = rate
        self._depths = tuple(d for d in depths if d <= limit)
        self._survival = 1.0

    def keeps(self, confidence: float, drafted: int) -> bool:
        chance = self._chances.of(confidence, drafted)
        kept = self._must_go_on(drafted) or self._gain(drafted, first=chance, draw_first=False) > 0
        self._survival *= chance
        return kept

    def goes_on(self, drafted: int) -> bool:
        first = self._chances.ahead(drafted)
        return self._must_go_on(drafted) or self._gain(drafted, first=first, draw_first=True) > 0

    def _must_go_on(self, drafted: int) -> bool:
        """Where only some depths may be used, a proposal ends only at one of them (or before the first)."""
        return drafted > 0 and drafted not in self._depths

    def _gain(self, drafted: int, *, first: float, draw_first: bool) -> float:
        """Tokens won by going on to the best later depth, less the tokens its seconds are worth."""
        best, won, survival = -math.inf, 0.0, self._survival * first
        width = drafted + 1
        here = self._costs.verify(width + self._costs.padding(width))
        spent = self._price(drafted if draw_first else drafted + 1)
        for depth in range(drafted + 1, self._depths[-1] + 1):
            won += survival
            survival *= self._chances.ahead(depth)
            if depth in self._depths:
                seconds = self._costs.verify(depth + 1) - here + self._price(depth) - spent
                best = max(best, won - self._rate * seconds)
        return best
