"""Replies that run at the same time: whether they share passes or take turns, and their draft depth in shared passes.

Every reply requests a plan before each cycle. The plan depends on costs and expected acceptance, not on the tokens.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from localspec.control.costs import Costs, CostsByContext, Recent
from localspec.control.depth import SHARE, DepthPlan, PlainProbes
from localspec.events import Cycle

FLOOR = 0.92  # a plan must give each reply at least this share of its expected speed without drafts


@dataclass(slots=True, eq=False)
class SlotState:
    """The state of one reply with automatic depth. The plan for all replies is made from their states."""

    survivals: tuple[float, ...] = ()  # chances that the next 1, 2, ... draft tokens are all accepted
    step_seconds: float = 0.0  # time of one draft step while the reply is alone
    token_seconds: float = 0.0  # expected time of a token while the reply is alone, at its best depth

    def expect(self, survivals: tuple[float, ...], step_seconds: float, costs: Costs) -> None:
        alone = best_shared_depth([SlotState(survivals, 0.0, 1.0)], 1, costs.verify, step_seconds)
        self.survivals, self.step_seconds, self.token_seconds = survivals, step_seconds, 1 / alone.gain


def best_shared_depth(
    slots: Sequence[SlotState], replies: int, verify: Callable[[int], float], step_seconds: float
) -> DepthPlan:
    """Return the plan that saves most time among those that slow no reply below FLOOR of its plain speed.

    Assume that all replies draft at the same time and to the same depth. `slots`: the replies with automatic depth.
    `replies`: the number of all replies. `verify`: returns the seconds of a pass over a number of tokens.
    """
    best, others, tokens = DepthPlan(replies, gain=0.0), replies - len(slots), [1.0] * len(slots)
    for depth in range(1 + max((len(slot.survivals) for slot in slots), default=0)):
        if depth:
            chances = [sum(slot.survivals[depth - 1 : depth]) for slot in slots]
            tokens = [count + chance for count, chance in zip(tokens, chances, strict=True)]
        seconds = depth * step_seconds + verify(replies * (depth + 1))
        alone = [count * slot.token_seconds for slot, count in zip(slots, tokens, strict=True)]
        gain = (sum(alone) + others * verify(1)) / seconds
        least = min([1.0] * others + tokens) * verify(replies)
        if gain > best.gain and least >= FLOOR * seconds:
            best = DepthPlan(replies, depth, gain, step_seconds)
    return best


def verify_among_others(costs: Costs, plan: DepthPlan, width: int) -> float:
    """Return a plain step's seconds, plus the time that tokens beyond the planned depth cost all replies.

    A shared pass pads all batches to the widest one, so tokens within the planned depth add no time.
    """
    planned = 1 + plan.depth
    delay = costs.verify(plan.replies * max(width, planned)) - costs.verify(plan.replies * planned)
    return costs.verify(plan.replies) + plan.replies * delay


@dataclass(slots=True)
class ConcurrentReplies:
    """The replies that run at the same time, and the costs that they learn together."""

    buckets: CostsByContext
    probes: PlainProbes = field(default_factory=PlainProbes)
    # The lock of the pair's passes, held while a depth is planned and while costs are learned.
    lock: AbstractContextManager[object] = field(default_factory=nullcontext)
    _slots: list[SlotState] = field(default_factory=list)  # replies that run, sorted by last cycle
    _learned: list[SlotState] = field(default_factory=list)  # replies that have learned from the latest pass
    _steps: dict[int, Recent] = field(default_factory=dict)  # by number of replies: seconds of a draft step
    _plain_passes: int = 0  # number of shared plain passes since the last one with draft tokens

    def plan(self, slot: SlotState, costs: Costs, replies: int) -> DepthPlan | None:
        """Return the plan of this reply among `replies` replies; None if the reply decides as if it were alone.

        Replies share passes if this takes less time than the same tokens in turn, each reply alone at its best depth.
        """
        if replies == 1:
            return None
        alone = max((each.step_seconds for each in self._slots), default=0.0)
        step = self._steps[replies].value if replies in self._steps else alone
        plan = best_shared_depth(self._slots, replies, costs.verify, step)
        if plan.gain <= 1:
            return None
        if self.probes.due(costs, plan.gain - 1, replies):
            return DepthPlan(replies, is_probe=True)
        lost = (costs.verify(2 * replies) + step) / costs.verify(replies) - 1
        # Depth 1 is tried now and then, because only passes with draft tokens show what these passes cost.
        if not plan.depth and self._plain_passes * SHARE >= lost:
            plan = replace(plan, depth=1)
        others = [other for other in self._slots if other is not slot]
        own = slot.token_seconds or costs.verify(1)
        gains = (
            sum(o.token_seconds * sum(o.survivals[n : n + 1]) for o in others) / own
            for n in range(plan.depth)
        )
        return replace(plan, rate=plan.gain / own, others=tuple(gains))

    def learn(self, slot: SlotState, cycle: Cycle, costs: Costs, runs: int) -> None:
        """Learn from a cycle. The cost of a shared pass counts once for all its replies. `runs`: of the draft model."""
        others = [other for other in self._slots if other is not slot]
        self._slots = [*others[max(len(others) + 1 - cycle.running, 0) :], slot]
        seconds = cycle.verify_seconds + cycle.other_seconds
        if cycle.replies == 1:
            is_plain, deciding = cycle.is_plain, cycle.deciding_seconds
            costs.learn_verify(cycle.width, seconds, drafted=not is_plain, deciding_seconds=deciding)
            self.probes.learn(len(cycle.tokens), is_plain=is_plain)
            return
        if runs:
            step = (cycle.draft_seconds - cycle.prefill_seconds) / runs
            self._steps.setdefault(cycle.replies, Recent()).add(step, 0)
        if self._learned and slot not in self._learned:
            self._learned.append(slot)
            return
        self._learned = [slot]
        costs.learn_verify(width := max(cycle.pass_width, cycle.width), seconds)
        self.probes.learn(len(cycle.tokens), is_plain=cycle.width == 1)
        self._plain_passes = self._plain_passes + 1 if width == cycle.replies else 0
