"""Costs: interpolation, wild measurements, plain steps, and tables by length of context and threads."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.algorithm.protocols import Proposal
from localspec.control.costs import (
    STALE_CYCLES,
    TARGET,
    UNSURE,
    WIDE,
    WITH_LOGITS,
    Costs,
    CostsByContext,
    CostTable,
    doublings,
    interpolate,
)
from localspec.control.depth import PlainProbes
from tests.drafters.machine import cycle_of

TABLE = CostTable((1, 2, 4, 8), (1.0, 1.2, 1.6, 2.4), {"model": 0.1})
GUESS = CostTable((1, 2, 4, 8), (1.0, 1.2, 1.6, 2.4), {"model": 0.1}, measured=False)


@pytest.mark.parametrize(("width", "seconds"), [(1, 1.0), (3, 1.4), (6, 2.0), (8, 2.4), (16, 4.0)])
def test_a_table_interpolates_and_goes_on_with_its_last_slope(width, seconds):
    assert TABLE.verify(width) == pytest.approx(seconds)


def test_measurements_replace_the_table():
    costs = Costs(TABLE)
    for _ in range(20):
        costs.learn_verify(4, 3.2)
        costs.learn_draft("model", 3, 0.6)
    assert costs.verify(4) == pytest.approx(3.2, rel=0.05)
    assert costs.draft("model", 1) == pytest.approx(0.2, rel=0.05)


def test_a_wide_pass_that_never_ran_costs_at_most_what_a_prompt_says():
    costs = Costs(GUESS)
    for width, seconds in ((1, 1.0), (2, 1.9), (4, 3.7)) * 4:
        costs.learn_verify(width, seconds, drafted=width > 1)
    by_narrow_passes = costs.verify(32)
    costs.learn_prefill(TARGET, 512, 512 * 0.2)
    assert costs.verify(32) == pytest.approx(1.0 + 31 * 0.2 * WITH_LOGITS)
    assert costs.verify(32) < by_narrow_passes / 2
    assert costs.verify(8) > 5.0
    assert max(costs.table().widths) < WIDE  # what was not measured is not stored as a measurement
    for _ in range(9):
        costs.learn_verify(32, 12.0, drafted=True)
    assert costs.verify(32) == pytest.approx(12.0, rel=0.1)
    assert costs.table().verify(32) == costs.verify(32)


def test_one_measurement_in_four_may_be_wild():
    costs, chance = Costs(GUESS), random.Random(1)
    for i in range(40):
        costs.learn_verify(1, 9.0 if i % 4 == 3 else chance.gauss(1.0, 0.05))
    assert costs.verify(1) == pytest.approx(1.0, rel=0.06)


def test_a_lasting_change_is_followed():
    costs = Costs(TABLE)
    for seconds in [1.0] * 40 + [2.0] * 40:
        costs.learn_verify(1, seconds)
    assert costs.verify(1) == pytest.approx(2.0)


@given(st.lists(st.tuples(st.integers(2, 8), st.floats(0.01, 100)), max_size=60))
def test_the_plain_step_is_moved_by_plain_steps_only_and_bounded_by_wider_passes(measurements):
    costs = Costs(TABLE)
    for width, seconds in measurements:
        costs.learn_verify(width, seconds)
    assert costs.verify(1) <= 1.0
    if all(seconds >= 1.0 for _, seconds in measurements):
        assert costs.verify(1) == 1.0


@pytest.mark.parametrize("table", [TABLE, GUESS])
def test_the_price_of_plain_decoding_leaves_out_what_deciding_takes_and_decisions_do_not(table):
    costs = Costs(table)
    for deciding in (6.0, *[0.2] * 40):  # the first step indexes the text
        costs.learn_verify(1, 1.0 + deciding, deciding_seconds=deciding)
        costs.learn_verify(4, 1.6 + deciding, drafted=True, deciding_seconds=deciding)
    assert costs.verify(1) == pytest.approx(1.2)
    assert costs.plain_step_seconds() == pytest.approx(1.0)


def test_a_wild_first_plain_step_is_found_out_by_the_first_wider_pass():
    costs = Costs(GUESS)
    costs.learn_verify(1, 4.5)
    costs.learn_verify(4, 0.6)
    assert costs.verify(1) <= 0.75


def test_widths_that_were_hardly_measured_are_not_stored():
    costs = Costs(TABLE)
    costs.learn_verify(6, 50.0)
    assert 6 not in costs.table().widths


def test_a_measured_table_scales_widths_that_were_not_run():
    costs = Costs(TABLE)
    for _ in range(30):
        costs.learn_verify(4, 3.2)
    assert costs.verify(8) == pytest.approx(4.8, rel=0.05)


def test_a_guess_learns_the_slope_from_the_widths_that_were_run():
    costs = Costs(GUESS)
    for _ in range(30):
        costs.learn_verify(1, 0.010)
        costs.learn_verify(4, 0.0106)  # a tenth of the guessed slope
    assert costs.verify(8) == pytest.approx(0.0114, rel=0.02)


def test_noise_never_makes_wider_batches_of_a_guess_look_free():
    costs = Costs(GUESS)
    costs.learn_verify(1, 1.0)
    costs.learn_verify(2, 0.9)
    assert costs.verify(8) >= costs.verify(1)


def test_one_slow_first_pass_of_a_width_does_not_hide_it():
    """Nothing would run a width again that looks too expensive, so a stall would count until it expires."""
    costs = Costs(GUESS)
    for width, seconds in [(1, 1.0), *[(2, 1.2)] * 4, (3, 2.0)]:
        costs.learn_verify(width, seconds)
    assert costs.verify(3) == pytest.approx(1.4)
    for _ in range(2):
        costs.learn_verify(3, 2.0)
    assert costs.verify(3) == pytest.approx(2.0)  # it was no stall


def test_old_measurements_of_a_width_expire():
    costs = Costs(TABLE)
    costs.learn_verify(2, 50.0)
    for _ in range(STALE_CYCLES):
        costs.learn_verify(4, 1.6)
    assert costs.verify(2) == pytest.approx(1.2)


def test_the_learned_table_starts_another_run_where_this_one_ended():
    costs = Costs(GUESS)
    for _ in range(30):
        costs.learn_verify(1, 0.01)
        costs.learn_verify(4, 0.02)
        costs.learn_draft("model", 1, 0.003)
    again = Costs(costs.table())
    assert again.measured
    for depth in range(8):
        assert again.verify(depth + 1) == pytest.approx(costs.verify(depth + 1))
        assert again.draft("model", depth) == pytest.approx(costs.draft("model", depth))


def test_a_guess_is_not_stored_as_a_measurement():
    costs = Costs(GUESS)
    assert costs.table() == GUESS
    costs.learn_verify(1, 0.01)
    assert costs.table() == GUESS


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["verify_seconds", "run_seconds"])
def test_a_table_of_costs_is_finite(name, wrong):
    values = {"verify_seconds": (0.1, 0.2), "run_seconds": {"model": 0.01}}
    of = {"verify_seconds": (0.1, wrong), "run_seconds": {"model": wrong}}
    values[name] = of[name]
    with pytest.raises(ValueError, match="finite"):
        CostTable((1, 2), **values)


@pytest.mark.parametrize("wider", [1.0, 0.9, 1.0 + 1e-16])
def test_a_guess_that_wider_passes_cost_nothing_is_corrected_by_those_that_ran(wider):
    costs = Costs(CostTable((1, 2, 8), (1.0, wider, wider), measured=False))
    for _ in range(5):
        costs.learn_verify(1, 1.0)
        costs.learn_verify(2, 1.2)
    assert costs.verify(2) == pytest.approx(1.2)
    assert costs.verify(4) > 0


SLOW_DRAFT = CostTable((1, 2, 9), (1.0, 1.02, 1.16), {"model": 0.1})


def drive(table, tokens, *, gain=0.1):
    """Which cycles of a text were plain, on a device that costs what the table says, and what was learned."""
    costs, anchors, plain, position = Costs(table), PlainProbes(), [], 0
    while position < tokens:
        depth = 0 if anchors.due(costs, gain) else 3
        cycle = cycle_of(Proposal((1,) * depth), depth, verify=table.verify(depth + 1))
        costs.learn_verify(depth + 1, cycle.verify_seconds)
        anchors.learn(len(cycle.tokens), is_plain=cycle.is_plain)
        plain.append(depth == 0)
        position += len(cycle.tokens)
    return plain, costs


def test_a_plain_step_comes_alone_and_its_cost_is_learned():
    plain, costs = drive(SLOW_DRAFT, 1000)
    steps = "".join("p" if step else " " for step in plain)
    assert 2 < steps.count("p") < 30
    assert "pp" not in steps
    assert costs.plain_step_seconds() == pytest.approx(1.0)


def test_the_more_drafting_gains_the_rarer_it_is():
    assert sum(drive(SLOW_DRAFT, 5000, gain=1.0)[0]) < 0.5 * sum(drive(SLOW_DRAFT, 5000, gain=0.1)[0])


SHORT = CostTable((1, 2, 9), (1.0, 1.1, 1.8), {"model": 0.1})


@pytest.mark.parametrize(
    ("tokens", "found"), [(0, 0), (2048, 0), (2049, 1), (4096, 1), (5000, 2), (32768, 4)]
)
def test_every_doubling_of_the_context_is_a_place(tokens, found):
    assert doublings(tokens) == found


def test_a_new_place_begins_with_a_plain_step_and_the_nearest_proportions():
    places = CostsByContext([SHORT])
    there = places.at(9000)
    assert there.plain_step_seconds() is None
    assert there.verify(9) / there.verify(1) == pytest.approx(1.8)
    assert PlainProbes().due(there, gain=0.1)


def test_fewer_threads_are_another_place_that_is_not_stored():
    threads = 4
    places = CostsByContext([SHORT], lambda: threads)
    for _ in range(20):
        places.at(10).learn_verify(1, 1.0)
    threads = 1
    for _ in range(20):
        places.at(10).learn_verify(1, 4.0)
    assert places.at(10).plain_step_seconds() == pytest.approx(4.0)
    (stored,) = places.tables()
    assert stored.verify(1) == pytest.approx(1.0)
    threads = 4
    assert places.at(10).plain_step_seconds() == pytest.approx(1.0)


def test_what_was_learned_in_every_length_comes_back():
    places = CostsByContext([SHORT])
    for _ in range(20):
        for length, seconds in ((10, 1.0), (9000, 3.0)):
            places.at(length).learn_verify(1, seconds)
            places.at(length).learn_verify(4, 1.2 * seconds)
    again = CostsByContext(places.tables())
    assert again.at(10).plain_step_seconds() == pytest.approx(1.0)
    assert again.at(9000).plain_step_seconds() == pytest.approx(3.0)


def test_a_measurement_replaces_what_was_known_where_it_was_made():
    places = CostsByContext([SHORT])
    places.at(9000)
    places.calibrated(CostTable((1, 2), (7.0, 8.0), {"model": 0.1}, context_tokens=9000))
    assert places.costs.plain_step_seconds() == 7.0
    assert places.at(10).plain_step_seconds() == 1.0


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=8, unique=True), st.floats(0, 50), st.integers(0, 99)
)
def test_between_two_points_a_cost_lies_on_their_line(widths, x, seed):
    xs, ys = sorted(widths), np.random.default_rng(seed).random(len(widths)).tolist()
    assert interpolate(x, xs, ys, extend=False) == pytest.approx(np.interp(x, xs, ys), rel=1e-12)


def test_an_unmeasured_draft_prefills_in_the_ratio_of_its_run_to_a_plain_step():
    costs = Costs(CostTable((1, 2), (0.04, 0.06), {"model": 0.01}))
    costs.learn_prefill(TARGET, 100, 0.8)
    assert costs.reading("model") == pytest.approx(
        0.002
    )  # 8 ms of the target, and a run is a quarter of a step
    costs.learn_prefill("model", 10, 0.05)
    assert costs.reading("model") == pytest.approx(0.005)


def test_a_new_width_of_an_estimated_table_counts_as_less_for_copies_until_it_is_measured_often():
    costs = Costs(GUESS)
    for width in (1, 4):
        costs.learn_verify(width, float(width))
    assert costs.verify_for_copies(1) == costs.verify(1)
    assert costs.verify_for_copies(4) == pytest.approx(4 / (1 + UNSURE))
    for _ in range(3):
        costs.learn_verify(4, 4.0)
    assert costs.verify_for_copies(4) == pytest.approx(4 / (1 + UNSURE / 4))
    measured = Costs(replace(GUESS, measured=True))
    measured.learn_verify(4, 4.0)
    assert measured.verify_for_copies(4) == measured.verify_for_proposal(4)
