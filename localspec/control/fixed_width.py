"""One width for all verify batches, where a device takes longer after a change of width."""

from collections.abc import Callable, Sequence

from localspec.control.acceptance import AcceptanceModel
from localspec.control.costs import Costs

HOLDING_PAYS = 0.25  # plain steps that a change of width costs: from here on it is avoided


class FixedWidth:
    """Changes the width once the gain of another width has paid for the change.

    The gain is summed over cycles and never falls below 0: recent acceptance is uncertain, but the errors of many
    cycles cancel out.
    """

    def __init__(self) -> None:
        self._won: dict[int, float] = {}  # seconds, by width, since the latest change

    def width(
        self,
        costs: Costs,
        chances: AcceptanceModel,
        price: Callable[[int], float],
        depths: Sequence[int],
        tokens: int,
    ) -> int:
        """The width to hold after `tokens` more tokens at the present one; 0: hold none.

        `price`: seconds of drafting by depth; `depths`: those that may be verified, ascending.
        """
        if costs.change_seconds < HOLDING_PAYS * costs.replayed(1):
            return 0
        rates = rates_of(costs, chances, price, depths)
        held = costs.held
        if held not in rates:
            self._won = {}
            return max(rates, key=lambda width: rates[width])
        for width, rate in rates.items():
            won = tokens / rates[held] - tokens / rate
            self._won[width] = max(self._won.get(width, 0.0) + won, 0.0)
        best = max(rates, key=lambda width: self._won[width])
        if self._won[best] <= costs.change_seconds:
            return held
        self._won = {}
        return best


def rates_of(
    costs: Costs, chances: AcceptanceModel, price: Callable[[int], float], depths: Sequence[int]
) -> dict[int, float]:
    """Tokens per second by width, if every proposal had it."""
    rates: dict[int, float] = {}
    expected, survival = 1.0, 1.0
    for depth in range(1, depths[-1] + 1):
        survival *= chances.ahead(depth - 1)
        expected += survival
        if depth in depths:
            rates[depth + 1] = expected / (costs.replayed(depth + 1) + price(depth))
    return rates
