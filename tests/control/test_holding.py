"""The width that verify batches are held at, where a pass of another width takes long."""

from dataclasses import replace

import pytest

from localspec.control.acceptance import AcceptanceModel
from localspec.control.cost_table import CostTable
from localspec.control.costs import Costs
from localspec.control.fixed_width import FixedWidth, rates_of

TABLE = CostTable((1, 2, 9), (1.0, 1.02, 1.16), {"model": 0.1})
RECORDED = replace(TABLE, direct_extra_seconds=0.25, capture_extra_seconds=0.75)
DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8)


def after(accepted, drafted, cycles=40):
    """What a draft is thought of that kept so many of its tokens in every cycle."""
    chances = AcceptanceModel()
    for _ in range(cycles):
        chances.learn((0.8,) * drafted, accepted, accepted + 1)
    return chances


def price(depth):
    return 0.1 * depth


def width(costs, chances):
    return FixedWidth().width(costs, chances, price, DEPTHS, 0)


def test_no_width_is_held_where_a_change_costs_nothing():
    assert width(Costs(TABLE), after(4, 4)) == 0


def test_a_good_draft_is_given_a_wider_batch():
    costs = Costs(RECORDED)
    assert width(costs, after(0, 3)) == 2 < width(costs, after(6, 6))


@pytest.mark.parametrize("held", [2, 5])
def test_another_width_is_taken_when_it_would_have_won_what_the_change_costs(held):
    costs, chances, holding = Costs(RECORDED), after(6, 6), FixedWidth()
    rates = rates_of(costs, chances, price, DEPTHS)
    best = max(rates, key=rates.get)
    needed = costs.change_seconds / (1 / rates[held] - 1 / rates[best])  # tokens
    costs.held, written = held, 0
    while holding.width(costs, chances, price, DEPTHS, 1) == held:
        written += 1
    assert written == int(needed)


def test_a_width_that_is_better_only_now_and_then_is_not_taken():
    costs, holding = Costs(RECORDED), FixedWidth()
    good, bad = after(6, 6), after(1, 4)
    rates = [rates_of(costs, chances, price, DEPTHS) for chances in (good, bad)]
    costs.held = min(rates[0], key=lambda width: sum(1 / each[width] for each in rates))
    assert width(costs, bad) == costs.held, "nothing was won yet"
    widths = {holding.width(costs, good if i % 2 else bad, price, DEPTHS, 2) for i in range(400)}
    assert widths == {costs.held}
    assert max(rates[1], key=rates[1].get) < costs.held < max(rates[0], key=rates[0].get)


def test_batches_of_the_held_width_and_below_cost_what_it_costs():
    costs = Costs(RECORDED)
    assert costs.verify(4) == pytest.approx(RECORDED.verify(4) + 0.25)
    costs.held = 6
    assert costs.verify(2) == costs.verify(6) == pytest.approx(RECORDED.verify(6))
    assert [costs.padding(n) for n in (2, 6, 9)] == [4, 0, 0]
    assert costs.verify(1) == 1.0
