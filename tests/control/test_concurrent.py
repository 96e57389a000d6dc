"""The depths of replies that share passes: the best ones together, fair, and honest about plain decoding."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.algorithm.protocols import Proposal
from localspec.control.acceptance import AcceptanceModel
from localspec.control.concurrent import (
    FLOOR,
    ConcurrentReplies,
    SlotState,
    best_shared_depth,
    verify_among_others,
)
from localspec.control.costs import CostsByContext, CostTable
from localspec.control.depth import DepthControl
from localspec.drafters.selection import DrafterSelection
from tests.drafters.conftest import steady_decisions  # noqa: F401  its steps decide too
from tests.drafters.machine import Machine, cycle_of
from tests.drafters.test_depth import iid

TABLE = CostTable((1, 2, 8, 9, 32), (1.0, 1.1, 1.5, 2.6, 2.9), {"model": 0.08})
STEP = 0.08
CURVES = {
    "cliff": lambda width: 1 + 0.07 * (width - 1) if width <= 8 else 2.6 + 0.01 * (width - 9),
    "smooth": lambda width: 1 + 0.04 * (width - 1),
    "CPU": lambda width: 1 + 0.45 * (width - 1),
}
chances = st.lists(st.floats(0.05, 0.99), max_size=4)


def survivals(chances):
    found, survival = [], 1.0
    for chance in chances:
        survival *= chance
        found.append(survival)
    return tuple(found)


def best(slots, curve, step=STEP, replies=None):
    return best_shared_depth(slots, replies or len(slots), CURVES[curve], step)


@given(
    st.lists(chances, min_size=1, max_size=4),
    st.integers(0, 2),
    st.sampled_from(list(CURVES)),
)
def test_the_shared_depth_is_the_best_of_all_that_keep_each_reply_above_the_floor(replies, others, curve):
    slots = [SlotState(survivals=survivals(of)) for of in replies]
    count = len(slots) + others

    def speeds(depth):
        steps = (CURVES[curve](count * (1 + depth)) + STEP * depth) / CURVES[curve](count)
        each = [(1 + sum(slot.survivals[:depth])) / steps for slot in slots] + [1 / steps] * others
        return min(each), sum(each) / count

    plan = best(slots, curve, replies=count)
    allowed = [speeds(depth) for depth in range(1 + max(len(slot.survivals) for slot in slots))]
    fair = max(speed for least, speed in allowed if least >= FLOOR - 1e-9)
    assert fair == pytest.approx(plan.speed)
    assert speeds(plan.depth) == (pytest.approx(max(speeds(plan.depth)[0], FLOOR)), pytest.approx(plan.speed))


def test_a_kernel_with_a_limit_is_passed_in_one_jump_or_not_at_all():
    """Four replies of code fill it to 8 rows, or jump far beyond where a draft step costs little."""
    code = [SlotState(survivals=survivals([0.9] * 8)) for _ in range(4)]
    expensive, cheap = (best(code, "cliff", step).depth for step in (0.6, 0.02))
    assert 4 * (1 + expensive) <= 8 < 16 < 4 * (1 + cheap)


def test_the_floor_holds_for_replies_that_draft_badly_and_for_those_that_do_not_draft():
    """The other reply gains more than this one loses, so without a floor it would be slowed for ever."""
    sure, lost = SlotState(survivals=survivals([0.95] * 8)), SlotState(survivals=survivals([0.02] * 8))
    assert best([sure], "smooth").depth > 0
    assert best([sure, lost], "smooth").depth == best([sure], "smooth", replies=2).depth == 0


def automatic(texts, verify, passes):
    """Tokens of each reply in the time of so many plain passes; draft steps are taken together."""
    widths = tuple(range(1, 33))
    together = ConcurrentReplies(
        CostsByContext([CostTable(widths, tuple(map(verify, widths)), {"model": STEP})])
    )
    machines, count, left = (
        [Machine(verify, STEP, agrees) for agrees in texts],
        len(texts),
        passes * verify(len(texts)),
    )
    controls = [DepthControl(together.buckets.costs, machine, AcceptanceModel(), 12) for machine in machines]
    replies = [DrafterSelection(together, [control], None) for control in controls]
    while True:
        busy = [machine.busy_seconds for machine in machines]
        proposals = [
            one.propose(range(of.position + 1), 12) for one, of in zip(replies, machines, strict=True)
        ]
        drafting = max(of.busy_seconds - before for of, before in zip(machines, busy, strict=True))
        width = count * max(1 + len(proposal.tokens) for proposal in proposals)
        left -= drafting + verify(width)
        if left < 0:
            return [machine.position for machine in machines]
        for reply, machine, proposal in zip(replies, machines, proposals, strict=True):
            cycle = machine.cycle(proposal, drafting)
            reply.learn(replace(cycle, verify_seconds=verify(width), replies=count, pass_width=width))


def fixed(texts, verify, passes, depth):
    """Tokens of all at a fixed depth."""
    machines, proposal = [Machine(verify, STEP, agrees) for agrees in texts], Proposal((1,) * depth)
    seconds = STEP * depth + verify(len(texts) * (1 + depth))
    for _ in range(int(passes * verify(len(texts)) / seconds)):
        for machine in machines:
            machine.cycle(proposal)
    return sum(machine.position for machine in machines)


@pytest.mark.parametrize(
    ("curve", "rates"),
    [("cliff", (0.9, 0.6, 0.9, 0.6)), ("smooth", (0.9, 0.6)), ("CPU", (0.9,) * 4), ("CPU", (0.6,) * 2)],
)
def test_nearly_the_best_fixed_depth_and_nobody_is_starved(curve, rates):
    texts, verify = [iid(rate, seed) for seed, rate in enumerate(rates, start=1)], CURVES[curve]
    found = automatic(texts, verify, 400)
    assert sum(found) >= 0.9 * max(fixed(texts, verify, 400, depth) for depth in range(13))
    assert sum(found) >= 0.98 * len(rates) * 400
    assert min(found) >= 0.88 * 400


def company():
    return ConcurrentReplies(CostsByContext([TABLE]))


def share(company, slots, widths, verify, *, replies=None, **cycle):
    """These replies share a pass, with others that are no slots, and learn from it; returns the next plan."""
    replies = replies or len(slots)
    costs = company.buckets.at(100, replies)
    for slot, width in zip(slots, widths, strict=True):
        found = cycle_of(
            Proposal((1,) * (width - 1)), 0, verify=verify, replies=replies, pass_width=replies * max(widths)
        )
        company.learn(slot, replace(found, **cycle), costs)
    return company.plan(costs)


def two(**state):
    return [SlotState(**state), SlotState(**state)]


def test_tokens_within_the_planned_depth_cost_nothing_and_those_beyond_delay_every_reply():
    costs = company().buckets.at(100, 2)
    plain, planned, beyond = (verify_among_others(costs, 3, width) for width in (1, 4, 5))
    assert plain == planned == costs.verify(1) < beyond
    assert beyond - planned == pytest.approx(2 * (costs.verify(1 + 8) - costs.verify(1 + 6)))


def test_a_pass_is_learned_once_and_a_plain_step_in_the_same_company():
    """Alone 1 second, with another one 1.5: a claim beside one compares with the second."""
    together, slots = company(), two()
    for _ in range(20):
        share(together, slots, [1, 1], 1.5)
    assert together.buckets.at(100, 2).plain_steps == 20
    assert together.buckets.at(100, 2).plain_step_seconds == pytest.approx(1.5)
    assert together.buckets.at(100, 1).plain_step_seconds == pytest.approx(1.0)


def test_a_pass_in_which_another_one_drafts_is_no_plain_step():
    together, slots = company(), two()
    share(together, slots, [1, 1], 1.1)
    for _ in range(5):
        share(together, slots, [1, 4], 2.0)
    assert together.buckets.at(100, 2).plain_steps == 1
    assert not cycle_of(Proposal(), 0, verify=2.0, replies=2, pass_width=5).is_plain


def test_the_draft_steps_of_another_reply_are_no_part_of_the_price_of_a_pass():
    together, slots = company(), two(draft_seconds=0.5)
    for _ in range(20):
        share(together, slots, [1, 1], 1.5, other_seconds=0.6)
    assert together.buckets.at(100, 2).verify(1) == pytest.approx(1.6)


def test_a_reply_that_has_ended_is_planned_for_no_more():
    together, slots = company(), two(survivals=(0.9,))
    share(together, slots, [1, 1], 1.1)
    share(together, [slots[0], newer := SlotState()], [1, 1], 1.1)
    share(together, [slots[0], newer], [1, 1], 1.1)
    assert together._slots == [slots[0], newer]


def test_trials_of_drafting_take_little_time():
    """A pass at depth 1 loses at most a third of a plain one: so it may be one of a hundred."""
    together, slots = company(), two(survivals=(0.05,), step_seconds=STEP)
    depths = [share(together, slots, [1, 1], 1.1).depth]
    for _ in range(600):
        depths.append(share(together, slots, [1 + depths[-1]] * 2, 1.1 + 0.2 * depths[-1]).depth)
    assert 3 <= sum(depths) <= 8
    assert set(depths) == {0, 1}


def test_a_first_pass_of_so_many_replies_is_plain_and_is_not_waited_for_where_others_draft():
    together, slots = company(), two(survivals=(0.99,))
    plans = [together.plan(together.buckets.at(100, 2)).is_probe]
    for _ in range(40):  # a third reply drafts at a fixed depth
        plans.append(share(together, slots, [1, 1] if plans[-1] else [2, 2], 1.5, replies=3).is_probe)
    assert plans[0]
    assert sum(plans) < 10


def test_who_is_alone_decides_and_learns_as_if_it_had_always_been_alone():
    together = company()
    alone, places = DrafterSelection(together, [], None), together.buckets
    for replies in (1, 2, 1):
        proposal = alone.propose(range(100), 9)
        alone.learn(cycle_of(proposal, 0, replies=replies, pass_width=replies))
        assert alone.plain_step.replies == replies
    assert (places.at(100, 1).plain_steps, places.at(100, 2).plain_steps) == (2, 1)
