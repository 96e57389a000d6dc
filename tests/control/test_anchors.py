"""Plain steps that claims rest on: single ones, and runs on a device that records its passes."""

from dataclasses import replace

import pytest

from localspec.algorithm.protocols import Proposal
from localspec.control.cost_table import CostTable
from localspec.control.costs import SETTLING, Costs
from localspec.control.depth import COUNTED, PlainProbes
from tests.drafters.machine import cycle_of

TABLE = CostTable((1, 2, 9), (1.0, 1.02, 1.16), {"model": 0.1})
RECORDED = replace(TABLE, direct_extra_seconds=0.25, capture_extra_seconds=0.75)


def drive(table, tokens, *, gain=0.1):
    """Which cycles of a text were plain, on a device that costs what the table says, and what was learned."""
    costs, anchors, plain = Costs(table), PlainProbes(), []
    extras = {1: table.direct_extra_seconds, 2: table.capture_extra_seconds}
    width, run, position = 0, 0, 0
    while position < tokens:
        depth = 0 if anchors.due(costs, gain) else 3
        run = run + 1 if width == depth + 1 else 1
        width = depth + 1
        cycle = cycle_of(Proposal((1,) * depth), depth, verify=table.verify(width) + extras.get(run, 0.0))
        costs.learn_verify(width, cycle.verify_seconds)
        anchors.learn(cycle, costs)
        plain.append(depth == 0)
        position += len(cycle.tokens)
    return plain, costs


def runs(plain):
    return [len(run) for run in "".join("p" if p else " " for p in plain).split()]


def test_one_step_is_enough_where_equal_passes_cost_the_same():
    plain, costs = drive(TABLE, 1000)
    assert set(runs(plain)) == {1}
    assert costs.plain_step_seconds == pytest.approx(1.0)


def test_the_first_steps_of_a_run_do_not_count_where_passes_are_recorded():
    plain, costs = drive(RECORDED, 5000)
    assert set(runs(plain)) == {SETTLING + COUNTED}
    assert costs.plain_steps == COUNTED * len(runs(plain))
    assert costs.plain_step_seconds == pytest.approx(1.0)


def test_a_run_comes_more_rarely_than_a_step():
    assert len(runs(drive(RECORDED, 5000)[0])) < 0.5 * len(runs(drive(TABLE, 5000)[0]))


def test_nothing_known_is_measured_at_once():
    for table, length in ((TABLE, 1), (RECORDED, SETTLING + COUNTED)):
        plain, _ = drive(replace(table, measured=False), 40)
        assert plain[:length] == [True] * length
        assert not plain[length]


def test_a_stretch_that_is_plain_anyway_counts_once_it_has_settled():
    costs, anchors = Costs(RECORDED), PlainProbes()
    for extra in (0.25, 0.75, *[0.0] * 200):
        cycle = cycle_of(Proposal(), 0, verify=1.0 + extra)
        costs.learn_verify(1, cycle.verify_seconds)
        anchors.learn(cycle, costs)
        assert not anchors.due(costs, 0.1)
    assert costs.plain_steps == 200


def test_passes_that_turn_out_to_be_recorded_by_nobody_end_the_runs():
    """A guess says that passes are recorded; the plain steps say that the first ones cost no more."""
    costs = Costs(replace(RECORDED, measured=False))
    assert costs.settling == SETTLING
    for _ in range(4):
        costs.learn_verify(4, 1.1)
        for _ in range(SETTLING + COUNTED):
            costs.learn_verify(1, 1.0)
    assert costs.settling == 0
