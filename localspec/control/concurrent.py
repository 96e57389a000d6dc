"""The draft depth of replies that share target passes: one depth for all, which maximises their total speed.

Every reply requests a plan before each cycle. The plan depends on costs and expected acceptance, not on the tokens.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from localspec.control.costs import Costs, CostsByContext
from localspec.control.depth import SHARE, PlainProbes
from localspec.events import Cycle

FLOOR = 0.92  # a plan must give each reply at least this share of its expected speed without drafts


@dataclass(slots=True, eq=False)
class SlotState:
    """The state of one reply with automatic depth. The plan for all replies is made from their states."""

    replies: int = 1  # number of replies in its latest pass
    survivals: tuple[float, ...] = ()  # chances that its next 1, 2, ... draft tokens are all accepted
    step_seconds: float = 0.0  # time of one draft step
    draft_seconds: float = 0.0  # time of drafting its latest proposal


@dataclass(frozen=True, slots=True)
class DepthPlan:
    """The plan for the next cycle of all replies: their common draft depth, and their expected total speed."""

    depth: int = 0
    speed: float = 1.0  # expected tokens per second of all replies, divided by those of plain decoding
    is_probe: bool = False  # whether the next pass is plain only to measure the cost of a plain pass


def best_shared_depth(
    slots: Sequence[SlotState], replies: int, verify: Callable[[int], float], step_seconds: float
) -> DepthPlan:
    """Return the plan with the highest total speed among those that slow no reply below FLOOR of its plain speed.

    Assume that all replies draft at the same time and to the same depth. `slots`: the replies with automatic depth.
    `replies`: the number of all replies. `verify`: returns the seconds of a pass over a number of tokens.
    """
    others, best, tokens = replies - len(slots), DepthPlan(), [1.0] * len(slots)
    for depth in range(1, 1 + max((len(slot.survivals) for slot in slots), default=0)):
        tokens = [
            count + sum(slot.survivals[depth - 1 : depth]) for slot, count in zip(slots, tokens, strict=True)
        ]
        steps = (depth * step_seconds + verify(replies * (depth + 1))) / verify(replies)
        speed = (others + sum(tokens)) / replies / steps
        if speed > best.speed and min(1.0 if others else tokens[0], *tokens) >= FLOOR * steps:
            best = DepthPlan(depth, speed)
    return best


def verify_among_others(costs: Costs, depth: int, width: int) -> float:
    """Return a plain step's seconds, plus the delay of all replies by draft tokens beyond the planned `depth`.

    A shared pass pads all batches to the widest one, so tokens within the planned depth cost nothing more.
    """
    beyond, replies = max(width - 1, depth), costs.replies
    delay = costs.verify(1 + replies * beyond) - costs.verify(1 + replies * depth)
    return costs.verify(1) + replies * delay


@dataclass(slots=True)
class ConcurrentReplies:
    """The replies that share passes, and the costs that they learn together."""

    buckets: CostsByContext
    probes: PlainProbes = field(default_factory=PlainProbes)
    # The lock of the pair's passes, held while a depth is planned and while costs are learned.
    lock: AbstractContextManager[object] = field(default_factory=nullcontext)
    _slots: list[SlotState] = field(default_factory=list)  # replies that share passes, sorted by last cycle
    _learned: list[SlotState] = field(default_factory=list)  # replies that have learned from the latest pass
    _plain_passes: int = 0  # number of plain passes since the last pass with draft tokens

    def plan(self, costs: Costs) -> DepthPlan:
        slots, replies = self._slots, costs.replies
        step = max((slot.step_seconds for slot in slots), default=0.0)
        plan = best_shared_depth(slots, replies, lambda tokens: costs.verify(tokens - replies + 1), step)
        if self.probes.due(costs, plan.speed - 1):
            return DepthPlan(is_probe=True)
        lost = (costs.verify(1 + replies) + step) / costs.verify(1) - 1
        # Depth 1 is tried now and then, because only passes with draft tokens show what such passes cost.
        return plan if plan.depth or self._plain_passes * SHARE < lost else DepthPlan(1)

    def learn(self, slot: SlotState, cycle: Cycle, costs: Costs) -> None:
        """Learn from a cycle in a shared pass; the cost of the pass counts once for all its replies."""
        self._slots = [*[other for other in self._slots if other is not slot][1 - cycle.replies :], slot]
        if self._learned and slot not in self._learned:
            self._learned.append(slot)
            return
        self._learned = [slot]
        width = max(cycle.pass_width, cycle.width) - cycle.replies + 1
        waited = max(other.draft_seconds for other in self._slots) - cycle.draft_seconds
        seconds = cycle.verify_seconds + max(cycle.other_seconds - max(waited, 0.0), 0.0)
        costs.learn_verify(width, seconds, drafted=width > 1, deciding_seconds=cycle.deciding_seconds)
        self.probes.learn(len(cycle.tokens), is_plain=cycle.width == 1)
        self._plain_passes = self._plain_passes + 1 if width == 1 else 0
