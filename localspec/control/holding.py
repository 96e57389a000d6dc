"""The one width that verify batches are filled up to, on devices where a pass of another width takes long."""

from collections.abc import Callable, Sequence

from localspec.control.chances import Chances
from localspec.control.costs import Costs

HOLDING_PAYS = 0.25  # plain steps that a change of width costs: from here on it is avoided
HORIZON = 64  # tokens within which another width has to win back what changing to it costs


def held_width(costs: Costs, chances: Chances, price: Callable[[int], float], depths: Sequence[int]) -> int:
    """The width of the depth with the most tokens per second if every proposal had it; 0: none is to be held.

    `price`: seconds of drafting by depth; `depths`: those that may be verified, ascending.
    """
    if costs.change_seconds < HOLDING_PAYS * costs.replayed(1):
        return 0
    values: dict[int, float] = {}
    expected, survival = 1.0, 1.0
    for depth in range(1, depths[-1] + 1):
        survival *= chances.ahead(depth - 1)
        expected += survival
        if depth in depths:
            values[depth + 1] = expected / (costs.replayed(depth + 1) + price(depth))
    best = max(values, key=lambda width: values[width])
    held = costs.held if costs.held in values else depths[0] + 1
    won = HORIZON / values[held] - HORIZON / values[best]
    return best if won > costs.change_seconds else held
