"""The depth controller keeps to its set and its room, finds the best depth, and its losses are bounded."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.events import Mode, Source
from localspec.speculation.chances import Chances
from localspec.speculation.costs import Costs, CostTable
from localspec.speculation.depth import ANCHOR_TOKENS, Auto
from localspec.speculation.hazards import Hazards
from localspec.speculation.ledger import CREDIT, LIMIT, Ledger

from .worlds import Machine, cycle_of

FLAT = CostTable(tuple(range(1, 10)), tuple(1 + 0.02 * n for n in range(9)), 0.08)
STEEP = CostTable((1, 2, 9), (1.0, 1.6, 5.8), 0.1)


DEPTHS = tuple(range(1, 9))


def make(table, depths=DEPTHS):
    return Auto(Costs(table), Hazards(max(depths)), Chances(), depths)


def run(auto, machine, tokens):
    """The modes of the cycles until so many tokens are written."""
    modes = []
    while machine.position < tokens:
        modes.append(machine.step(auto).mode)
    return modes


def seconds_at(depth, table, agrees, tokens):
    """What a text takes at a fixed depth."""
    machine = Machine(table.verify, table.draft_step_seconds, agrees)
    while machine.position < tokens:
        machine.cycle(depth, Mode.DRAFTING, depth, depth)
    return machine.seconds


def iid(rate, seed=1):
    draws = [random.Random(seed * 1_000_003 + i).random() < rate for i in range(4000)]
    return lambda position: draws[position % 4000]


@given(
    depths=st.sets(st.integers(1, 12), min_size=1, max_size=5),
    rooms=st.lists(st.integers(0, 14), min_size=1, max_size=60),
    rate=st.floats(0, 1),
    seed=st.integers(0, 10**6),
)
@settings(deadline=None)
def test_depths_come_from_the_set_and_fit_the_room(depths, rooms, rate, seed):
    auto = make(FLAT, tuple(depths))
    machine = Machine(FLAT.verify, 0.08, iid(rate, seed), noise=0.3, seed=seed)
    for room in rooms:
        cycle = machine.step(auto, room)
        assert cycle.drafted == 0 or cycle.drafted in depths
        assert cycle.drafted <= room


@pytest.mark.parametrize(("rate", "table"), [(0.9, FLAT), (0.5, FLAT), (0.8, STEEP), (0.3, STEEP)])
def test_it_is_about_as_fast_as_the_best_fixed_depth(rate, table):
    """Confidence says nothing here, and nothing is known in the beginning."""
    best = min(seconds_at(depth, table, iid(rate), 3000) for depth in (0, *DEPTHS))
    machine = Machine(table.verify, table.draft_step_seconds, iid(rate), noise=0.05)
    run(make(table), machine, 3000)
    assert machine.seconds < 1.05 * best


def test_confidence_that_tells_the_tokens_apart_beats_every_fixed_depth():
    agrees = iid(0.7)
    machine = Machine(
        FLAT.verify, 0.08, agrees, noise=0.05, confidence=lambda position: 0.95 if agrees(position) else 0.4
    )
    run(make(FLAT), machine, 3000)
    assert machine.seconds < 0.9 * min(seconds_at(depth, FLAT, agrees, 3000) for depth in DEPTHS)


def test_another_reply_is_judged_by_itself_soon():
    """Replies in which nothing is kept, and between them some in which everything is."""
    auto, easy = make(FLAT), 0.0
    for reply in range(20):
        kept = bool(reply % 2)
        auto.begin()
        machine = Machine(FLAT.verify, 0.08, lambda position, kept=kept: kept, noise=0.05, seed=reply)
        run(auto, machine, 100)
        easy += machine.seconds if kept else 0.0
    assert easy < 1.5 * 10 * seconds_at(8, FLAT, lambda position: True, 100)


def test_a_useless_draft_is_switched_off_and_costs_little():
    machine = Machine(STEEP.verify, 0.1, iid(0.0), noise=0.05)
    auto = make(STEEP)
    run(auto, machine, 512)
    assert not auto.on
    assert machine.seconds < 1.015 * machine.plain_seconds


def test_why_it_is_off_is_said_with_numbers():
    auto = make(CostTable((1, 2, 9), (0.1, 0.16, 0.58), 0.01))
    assert auto.why_off is None
    run(auto, Machine(lambda n: 0.04 + 0.06 * n, 0.01, iid(0.0)), 200)
    assert auto.why_off is not None
    assert "10.0 without" in auto.why_off
    assert "10% of a plain step" in auto.why_off


def test_drafting_comes_back_when_the_text_becomes_easy():
    auto = make(FLAT)
    machine = Machine(FLAT.verify, 0.08, lambda position: position > 600, noise=0.05)
    run(auto, machine, 600)
    assert not auto.on
    run(auto, machine, 1200)
    assert auto.on
    assert machine.seconds < 600 * 1.02 + 0.5 * 600


@given(
    seed=st.integers(0, 10**6),
    slope=st.floats(0.0, 1.0),
    step=st.floats(0.0, 0.6),
    blocks=st.lists(st.tuples(st.integers(1, 80), st.floats(0, 1)), min_size=1, max_size=8),
)
@settings(deadline=None, max_examples=60)
def test_the_loss_against_plain_decoding_is_bounded_whatever_happens(seed, slope, step, blocks):
    """Adversarial acceptance, costs that the table is wrong about: ledger and probing budget hold."""
    chance = random.Random(seed)
    agrees = [chance.random() < rate for length, rate in blocks for _ in range(length)]
    table = CostTable((1, 2, 9), (1.0, 1.05, 1.4), 0.05)
    machine = Machine(lambda n: 1 + slope * (n - 1), step, lambda p: agrees[p % len(agrees)])
    run(make(table), machine, 1000)
    worst_cycle = 1 + slope * 8 + step * 8
    # One ledger, the credit that may be lost again, a last cycle for each trip, and 2 % for probes.
    assert machine.seconds - machine.plain_seconds <= LIMIT + CREDIT + 3 * worst_cycle + 0.03 * 1000


def test_losses_that_the_estimates_cannot_see_are_stopped_by_the_ledger():
    """Every fourth cycle is far dearer than the others: typical costs look fine, the total does not."""
    auto, spent, tokens, cycles = make(FLAT), 0.0, 0, 0
    while auto.on and cycles < 400:
        plan = auto.plan(8)
        cycles += 1
        hidden = 6.0 if plan.depth and cycles % 4 == 0 else 0.0
        cycle = cycle_of(
            plan.depth,
            min(plan.depth, 1),
            mode=plan.mode,
            verify=FLAT.verify(plan.depth + 1) + hidden,
            draft=0.08 * plan.depth,
        )
        auto.learn(cycle)
        spent, tokens = spent + cycle.seconds, tokens + len(cycle.tokens)
    assert not auto.on
    assert spent - tokens < 6 * LIMIT


def test_the_ledger_forgives_no_more_than_its_credit():
    ledger = Ledger()
    for _ in range(100):
        ledger.learn(1.0, 4, 1.0)
    assert ledger.debt == -CREDIT
    for _ in range(int(CREDIT + LIMIT)):
        assert not ledger.broken
        ledger.learn(2.0, 1, 1.0)
    assert ledger.broken
    ledger.probation()
    assert not ledger.broken


def test_plain_steps_anchor_the_claim_of_being_faster():
    auto = make(FLAT)
    modes = run(auto, Machine(FLAT.verify, 0.08, iid(0.6), noise=0.05), 1000)
    assert 1 <= modes.count(Mode.ANCHOR) <= 1000 / 48


def test_with_no_table_the_first_step_is_plain():
    table = CostTable((1, 2, 9), (1.0, 1.1, 1.8), 0.1, measured=False)
    assert make(table).plan(100).mode is Mode.ANCHOR


def anchors_of(table, *, hiccups):
    """Where plain steps come on a machine whose first plain steps take far longer than any other."""
    auto, position, found = make(table), 0, []
    while position < 400:
        plan = auto.plan(100)
        if plan.mode is Mode.ANCHOR:
            found.append(position)
        plain = 4.5 if plan.depth == 0 and len(found) <= hiccups else 1.0
        cycle = cycle_of(plan.depth, plan.depth, mode=plan.mode, verify=plain + 0.1 * plan.depth)
        auto.learn(cycle)
        position += len(cycle.tokens)
    return found


def test_a_plain_step_that_was_dearer_than_wider_ones_is_measured_again_soon():
    guess = CostTable((1, 2, 9), (1.0, 1.1, 1.8), 0.1, measured=False)
    _, second, third = anchors_of(guess, hiccups=2)
    assert third - second < ANCHOR_TOKENS
    assert len(anchors_of(guess, hiccups=0)) == 2


def test_cycles_of_another_drafter_teach_costs_but_not_acceptance():
    auto = make(FLAT)
    before = auto.hazards.rates()
    for _ in range(20):
        auto.learn_elsewhere(cycle_of(7, 0, verify=3.0, source=Source.LOOKUP))
    assert auto.hazards.rates() == before
    assert auto.costs.verify(8) == pytest.approx(3.0, rel=0.1)


def test_reading_up_on_what_it_missed_does_not_make_the_draft_look_slow():
    auto = make(FLAT)
    auto.plan(8, unread=500)
    auto.learn(cycle_of(4, 4, verify=1.1, draft=30.0))
    for _ in range(5):
        auto.plan(8)
        auto.learn(cycle_of(4, 4, verify=1.1, draft=0.32))
    assert auto.costs.draft(1) == pytest.approx(0.08, rel=0.05)
    assert auto.on


def probes_within(tokens, *, reading):
    """How often a draft that is off probes, when reading a token costs it `reading` plain steps."""
    auto = make(STEEP)
    run(auto, Machine(STEEP.verify, 0.1, iid(0.0)), 50)
    assert not auto.on
    probes = unread = 0
    for _ in range(tokens):
        plan = auto.plan(8, unread)
        unread += 1
        probes += plan.mode is Mode.PROBE
        draft = 0.1 * plan.depth + reading * unread if plan.depth else 0.0
        auto.learn(cycle_of(plan.depth, 0, mode=plan.mode, verify=STEEP.verify(plan.depth + 1), draft=draft))
        unread = 0 if plan.depth else unread
    return probes


def test_a_draft_that_has_much_to_read_first_is_probed_less_often():
    assert probes_within(2000, reading=0.0) > 2
    assert 0 < probes_within(2000, reading=0.05) < probes_within(2000, reading=0.0)


def test_catching_up_does_not_spoil_a_probe():
    """Reading 600 missed tokens takes as long as 60 plain steps; the draft comes back all the same."""
    auto = make(FLAT)
    run(auto, Machine(FLAT.verify, 0.08, iid(0.0)), 50)
    unread = 600
    for _ in range(4000):
        plan = auto.plan(8, unread)
        draft = 0.08 * plan.depth + (0.1 * unread if unread > 8 else 0.0) if plan.depth else 0.0
        auto.learn(
            cycle_of(plan.depth, plan.depth, mode=plan.mode, verify=FLAT.verify(plan.depth + 1), draft=draft)
        )
        unread = 0 if plan.depth else unread + 1
        if auto.on:
            return
    raise AssertionError("drafting never came back")
