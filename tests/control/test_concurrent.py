"""The depths of replies that share passes: the best ones together, fair, and honest about plain decoding."""

from dataclasses import replace
from types import SimpleNamespace

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
from localspec.control.costs import Costs, CostsByContext, CostTable
from localspec.control.depth import DepthControl, DepthPlan
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


def slot(chances, curve, step=STEP):
    """A reply that knows what a token takes at its best depth alone."""
    found, verify = survivals(chances), CURVES[curve]
    seconds = [
        (verify(1 + depth) + step * depth) / (1 + sum(found[:depth])) for depth in range(1 + len(found))
    ]
    return SlotState(found, step, min(seconds))


def best(slots, curve, step=STEP, replies=None):
    return best_shared_depth(slots, replies or len(slots), CURVES[curve], step)


@given(
    st.lists(chances, min_size=1, max_size=4),
    st.integers(0, 2),
    st.sampled_from(list(CURVES)),
)
def test_the_shared_depth_is_the_best_of_all_that_keep_each_reply_above_the_floor(replies, others, curve):
    slots = [slot(of, curve) for of in replies]
    count, plain = len(slots) + others, CURVES[curve](len(slots) + others)

    def shares(depth):
        """The share of its plain speed of the slowest reply, and the time in turn divided by the time of the cycle."""
        seconds, written = CURVES[curve](count * (1 + depth)) + STEP * depth, [1.0] * others
        written += [1 + sum(slot.survivals[:depth]) for slot in slots]
        in_turn = others * CURVES[curve](1) + sum(
            tokens * slot.token_seconds for tokens, slot in zip(written[others:], slots, strict=True)
        )
        return min(written) * plain / seconds, in_turn / seconds

    plan = best(slots, curve, replies=count)
    allowed = [shares(depth) for depth in range(1 + max(len(slot.survivals) for slot in slots))]
    assert plan.gain == pytest.approx(max(gain for least, gain in allowed if least >= FLOOR - 1e-9))
    assert shares(plan.depth) == (pytest.approx(max(shares(plan.depth)[0], FLOOR)), pytest.approx(plan.gain))


def test_a_kernel_with_a_limit_is_passed_in_one_jump_or_not_at_all():
    """Four replies of code fill it to 8 rows, or jump far beyond where a draft step costs little."""
    expensive, cheap = (
        best([slot([0.9] * 8, "cliff", step)] * 4, "cliff", step).depth for step in (0.6, 0.02)
    )
    assert 4 * (1 + expensive) <= 8 < 16 < 4 * (1 + cheap)


def test_the_floor_holds_for_replies_that_draft_badly_and_for_those_that_do_not_draft():
    """The other reply gains more than this one loses, so without a floor it would be slowed for ever."""
    sure, lost = slot([0.95] * 8, "smooth"), slot([0.02] * 8, "smooth")
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
            cycle = replace(cycle, verify_seconds=verify(width), pass_width=width)
            reply.learn(replace(cycle, replies=count, running=count))


def fixed(texts, verify, passes, depth):
    """Tokens of each reply at a fixed depth."""
    machines, proposal = [Machine(verify, STEP, agrees) for agrees in texts], Proposal((1,) * depth)
    seconds = STEP * depth + verify(len(texts) * (1 + depth))
    for _ in range(int(passes * verify(len(texts)) / seconds)):
        for machine in machines:
            machine.cycle(proposal)
    return [machine.position for machine in machines]


@pytest.mark.parametrize(
    ("curve", "rates"),
    [("cliff", (0.9, 0.6, 0.9, 0.6)), ("smooth", (0.9, 0.6)), ("CPU", (0.9,) * 4), ("CPU", (0.6,) * 2)],
)
def test_nearly_the_best_fixed_depth_and_nobody_is_starved(curve, rates):
    texts, verify = [iid(rate, seed) for seed, rate in enumerate(rates, start=1)], CURVES[curve]
    found = automatic(texts, verify, 400)

    def seconds_in_turn(tokens):
        return sum(
            count * slot([rate] * 12, curve).token_seconds for count, rate in zip(tokens, rates, strict=True)
        )

    best_fixed = max(seconds_in_turn(fixed(texts, verify, 400, depth)) for depth in range(13))
    assert seconds_in_turn(found) >= 0.9 * best_fixed
    assert sum(found) >= 0.98 * len(rates) * 400
    assert min(found) >= 0.88 * 400


def company(measured=True):
    return ConcurrentReplies(CostsByContext([replace(TABLE, measured=measured)]))


def share(company, slots, widths, verify, *, replies=None, **cycle):
    """These replies share a pass, with others that are no slots, and learn from it; returns the next plan."""
    replies, costs = replies or len(slots), company.buckets.at(100)
    for slot, width in zip(slots, widths, strict=True):
        found = cycle_of(
            Proposal((1,) * (width - 1)), 0, verify=verify, replies=replies, pass_width=replies * max(widths)
        )
        company.learn(slot, replace(found, **cycle), costs, runs=width - 1)
    return company.plan(slots[0], costs, replies)


def two(**state):
    return [SlotState(token_seconds=1.0, **state), SlotState(token_seconds=1.0, **state)]


def test_tokens_within_the_planned_depth_cost_nothing_and_those_beyond_delay_every_reply():
    costs = company().buckets.at(100)
    plain, planned, beyond = (verify_among_others(costs, DepthPlan(2, 3), width) for width in (1, 4, 5))
    assert plain == planned == costs.verify(2) < beyond
    assert beyond - planned == pytest.approx(2 * (costs.verify(10) - costs.verify(8)))


def test_a_pass_is_learned_once_and_a_plain_step_in_the_same_company():
    """Alone 1 second, with another one 1.5: a claim beside one compares with the second."""
    together, slots = company(), two()
    for _ in range(20):
        share(together, slots, [1, 1], 1.5)
    costs = together.buckets.at(100)
    assert (costs.measurements(1), costs.measurements(2)) == (0, 20)
    assert costs.plain_step_seconds(2) == pytest.approx(1.5)
    assert costs.plain_step_seconds() == pytest.approx(1.0)


def test_a_pass_in_which_another_one_drafts_is_no_plain_step():
    together, slots = company(), two()
    share(together, slots, [1, 1], 1.1)
    for _ in range(5):
        share(together, slots, [1, 4], 2.0)
    assert together.buckets.at(100).measurements(2) == 1
    assert not cycle_of(Proposal(), 0, verify=2.0, replies=2, pass_width=5).is_plain


def test_a_reply_that_has_ended_is_planned_for_no_more():
    together, slots = company(), two(survivals=(0.9,))
    share(together, slots, [1, 1], 1.1)
    share(together, [slots[0], newer := SlotState(token_seconds=1.0)], [1, 1], 1.1)
    share(together, [slots[0], newer], [1, 1], 1.1)
    assert together._slots == [slots[0], newer]


def test_trials_of_drafting_take_little_time():
    """A pass at depth 1 loses at most a third of a plain one: so it may be one of a hundred."""
    together, slots = company(), two(survivals=(0.05,), step_seconds=STEP)
    depths = [share(together, slots, [1, 1], 1.1).depth]
    for _ in range(600):
        depths.append(share(together, slots, [1 + depths[-1]] * 2, 1.1 + 0.2 * depths[-1]).depth)
    assert 3 <= sum(depths) <= 9
    assert set(depths) == {0, 1}


def test_a_first_pass_of_so_many_replies_is_plain_and_is_not_waited_for_where_others_draft():
    together, slots = company(measured=False), two(survivals=(0.99,))
    plans = [together.plan(slots[0], together.buckets.at(100), 2).is_probe]
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
    assert (places.at(100).measurements(1), places.at(100).measurements(2)) == (2, 1)


def test_replies_that_save_nothing_in_shared_passes_take_turns():
    together = company()
    together.buckets = CostsByContext([CostTable((1, 2, 4), (1.0, 2.1, 4.2))])
    for _ in range(3):  # they still run at the same time
        assert share(together, two(), [1, 1], 2.1) is None


def test_a_shared_pass_must_beat_each_reply_at_its_best_depth_alone():
    """Two replies that draft well alone lose by a shared plain pass, though it is cheaper than two plain ones."""
    verify = {1: 1.0, 2: 1.1, 4: 1.3, 8: 4.0, 10: 5.0}.__getitem__
    alone = SlotState(survivals=(0.9, 0.8, 0.7), token_seconds=1.4 / 3.4)
    plan = best_shared_depth([alone, alone], 2, lambda width: verify(width if width != 6 else 8), 0.1)
    assert plan.depth == 1
    assert plan.gain == pytest.approx(2 * 1.9 * 1.4 / 3.4 / 1.4)


def test_a_pass_of_two_replies_costs_what_one_of_as_many_tokens_costs():
    """So a reply alone teaches what a shared pass takes, and no shared width is a guess for ever."""
    together, slots, costs = company(), two(), company().buckets.at(100)
    for width in [2, 4] * 9:
        costs.learn_verify(width, 9.0 if width == 4 else 1.1)
    assert best_shared_depth([SlotState((0.9,), 0.0, 1.0)] * 2, 2, costs.verify, 0.0).depth == 0
    for _ in range(9):
        share(together, slots, [2, 2], 7.0)
    assert together.buckets.at(100).verify(4) == pytest.approx(7.0)


def test_a_reply_in_turn_decides_as_if_it_were_alone_although_others_run():
    together = company()
    reply = DrafterSelection(together, [], None)
    reply.learn(cycle_of(reply.propose(range(100), 9), 0, replies=1, running=2))
    assert (reply._running, reply.plain_step.replies) == (2, 1)
    assert reply.propose(range(101), 9).tokens == ()
    assert reply._plan is not None, "a shared plain pass takes 1.1 of the time of one"
    together.buckets = CostsByContext([CostTable((1, 2), (1.0, 2.2))])
    reply.propose(range(102), 9)
    assert reply._plan is None


class Sure:
    """Chances of a draft that is sure of its tokens or not, whatever their place."""

    def __init__(self, chance):
        self.chance = chance

    def ahead(self, drafted):
        return self.chance

    def of(self, confidence, drafted):
        return confidence


def shared_stopper(chance, others, *, tokens=0.02):
    control = DepthControl(Costs(TABLE), Machine(None, STEP, None), Sure(chance), 8)
    control.plan = DepthPlan(2, 4, step_seconds=0.05, rate=2.0, others=others)
    control.costs = SimpleNamespace(verify=lambda width: 1 + tokens * width)
    return control.stopping(8)


def test_in_a_shared_pass_a_draft_goes_on_as_far_as_it_and_the_others_gain():
    assert shared_stopper(0.9, ()).goes_on(1)
    assert not shared_stopper(0.05, ()).goes_on(1)
    assert shared_stopper(0.05, (0.9, 0.8)).goes_on(1), (
        "the others draft a second token, so its place is paid for"
    )
    assert not shared_stopper(0.05, (0.9, 0.8)).goes_on(2)
    assert not shared_stopper(0.9, (), tokens=1.0).goes_on(1), "each token adds one for every reply"


def test_the_first_draft_token_of_a_shared_pass_is_verified():
    """The plan counts on it. A token that is drawn and dropped would teach nothing, again and again."""
    stopper = shared_stopper(0.5, ())
    assert stopper.keeps(0.01, 0)
    assert not stopper.keeps(0.01, 1)
