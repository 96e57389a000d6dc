"""When a step is plain only to know what plain decoding costs, because every claim of being faster rests on that."""

from localspec.control.costs import Costs
from localspec.events import Cycle

COUNTED = 3  # steps of a run that count, where the first ones do not
LEAST_TOKENS = 48  # between two anchors
SHARE = 0.003  # of the time that anchors may take
MOST_TOKENS = 1024  # however large the gain: it may be large because a plain step was measured wrongly
FIRST, FIRST_GAP = 2, 24  # with no measured table: so many plain steps soon, so many tokens apart


class Anchors:
    """Plain steps among drafting cycles: single ones, or runs where a device takes longer after a change of width."""

    def __init__(self) -> None:
        self._tokens = 0  # since a plain step that counted
        self._left = 0  # steps of the run under way

    def due(self, costs: Costs, gain: float) -> bool:
        """Whether the coming step is to be plain; `gain`: of drafting's tokens per second on plain ones, minus 1."""
        if not self._left and self._tokens >= gap(costs, gain):
            self._left = costs.settling + COUNTED if costs.settling else 1
        return self._left > 0

    def learn(self, cycle: Cycle, costs: Costs) -> None:
        """A cycle, after the costs have learned it."""
        plain = cycle.is_plain
        self._left = max(self._left - 1, 0) if plain else 0
        self._tokens = 0 if plain and costs.settled else self._tokens + len(cycle.tokens)


def gap(costs: Costs, gain: float) -> float:
    """Tokens between two anchors, for a share of the time that they gain on them."""
    if not costs.measured and costs.plain_steps < FIRST:
        return FIRST_GAP * costs.plain_steps
    if costs.plain_is_doubtful:
        return FIRST_GAP
    lost = gain  # plain steps that a run of anchors costs
    if costs.settling:
        lost = (costs.settling + COUNTED) * gain + 2 * costs.change_seconds / costs.verify(1)
    return min(max(LEAST_TOKENS, lost / SHARE), MOST_TOKENS)
