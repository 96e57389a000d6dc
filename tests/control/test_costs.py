"""Costs: interpolation, robustness to wild measurements, and a plain step that only plain steps move."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.control.cost_table import CostTable
from localspec.control.costs import STALE_CYCLES, Costs

TABLE = CostTable((1, 2, 4, 8), (1.0, 1.2, 1.6, 2.4), {"model": 0.1})
GUESS = CostTable((1, 2, 4, 8), (1.0, 1.2, 1.6, 2.4), {"model": 0.1}, measured=False)


@pytest.mark.parametrize(("width", "seconds"), [(1, 1.0), (3, 1.4), (6, 2.0), (8, 2.4), (16, 4.0)])
def test_a_table_interpolates_and_goes_on_with_its_last_slope(width, seconds):
    assert TABLE.verify(width) == pytest.approx(seconds)


def test_unmeasured_costs_are_the_table_s():
    costs = Costs(TABLE)
    assert costs.verify(4) + costs.draft("model", 3) == pytest.approx(1.6 + 3 * 0.1)


def test_measurements_replace_the_table():
    costs = Costs(TABLE)
    for _ in range(20):
        costs.learn_verify(4, 3.2)
        costs.learn_draft("model", 3, 0.6)
    assert costs.verify(4) == pytest.approx(3.2, rel=0.05)
    assert costs.draft("model", 1) == pytest.approx(0.2, rel=0.05)


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
    assert costs.plain_step_seconds == pytest.approx(1.0)


def test_a_wild_first_plain_step_is_found_out_by_the_first_wider_pass():
    costs = Costs(GUESS)
    costs.learn_verify(1, 4.5)
    assert not costs.plain_is_doubtful
    costs.learn_verify(4, 0.6)
    assert costs.verify(1) <= 0.75
    assert costs.plain_is_doubtful


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
    assert costs.verify(8) > costs.verify(1)


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
@pytest.mark.parametrize(
    "name", ["verify_seconds", "run_seconds", "direct_extra_seconds", "capture_extra_seconds"]
)
def test_a_table_of_costs_is_finite(name, wrong):
    values = {"verify_seconds": (0.1, 0.2), "run_seconds": {"model": 0.01}}
    of = {"verify_seconds": (0.1, wrong), "run_seconds": {"model": wrong}}
    values[name] = of.get(name, wrong)
    with pytest.raises(ValueError, match="finite"):
        CostTable((1, 2), **values)
