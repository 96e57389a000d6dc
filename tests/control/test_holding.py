"""The width that verify batches are held at, where a pass of another width takes long."""

from dataclasses import replace

import pytest

from localspec.control.chances import Chances
from localspec.control.costs import Costs, CostTable
from localspec.control.holding import held_width

TABLE = CostTable((1, 2, 9), (1.0, 1.02, 1.16), {"model": 0.1})
RECORDED = replace(TABLE, direct_extra_seconds=0.25, capture_extra_seconds=0.75)
DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8)


def after(accepted, drafted, cycles=40):
    """What a draft is thought of that kept so many of its tokens in every cycle."""
    chances = Chances()
    for _ in range(cycles):
        chances.learn((0.8,) * drafted, accepted, accepted + 1)
    return chances


def width(costs, chances):
    return held_width(costs, chances, lambda depth: 0.1 * depth, DEPTHS)


def test_no_width_is_held_where_a_change_costs_nothing():
    assert width(Costs(TABLE), after(4, 4)) == 0


def test_a_good_draft_is_given_a_wider_batch():
    costs = Costs(RECORDED)
    assert width(costs, after(0, 3)) == 2 < width(costs, after(6, 6))


def test_a_little_better_is_not_worth_a_change():
    costs, chances = Costs(RECORDED), after(3, 4)
    best = width(costs, chances)
    costs.held = best - 1
    assert width(costs, chances) == best - 1
    costs.held = 2
    assert width(costs, chances) == best


def test_batches_of_the_held_width_and_below_cost_what_it_costs():
    costs = Costs(RECORDED)
    assert costs.verify(4) == pytest.approx(RECORDED.verify(4) + 0.25)
    costs.held = 6
    assert costs.verify(2) == costs.verify(6) == pytest.approx(RECORDED.verify(6))
    assert [costs.padding(n) for n in (2, 6, 9)] == [4, 0, 0]
    assert costs.verify(1) == 1.0
