"""The depth of replies with a seed: decided once, from what passes cost and how often drafts are kept."""

import pytest

from localspec.control.acceptance import MANY, AcceptanceModel
from localspec.control.cost_table import CostTable
from localspec.control.costs import Costs
from localspec.drafters.arbiter import best_depth
from localspec.models.drafting import DEPTHS, Drafting
from tests.drafters.machine import Machine

TABLE = CostTable((1, 2, 9), (1.0, 1.02, 1.16), {"model": 0.1})


def test_a_good_draft_is_given_more_and_a_useless_one_nothing():
    depths = [
        best_depth(Costs(TABLE), chance, lambda depth: 0.1 * depth, DEPTHS)
        for chance in (0.0, 0.4, 0.8, 0.95)
    ]
    assert depths == sorted(depths)
    assert depths[0] == 0 < depths[1] < depths[2] < depths[3]


@pytest.mark.parametrize("chance", [0.0, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("step", [0.02, 0.3, 1.5])
def test_no_depth_brings_more_tokens_a_second(chance, step):
    table = CostTable((1, 2, 9), (1.0, 1.1, 2.5), {"model": step})

    def rate(depth):
        tokens = sum(chance**i for i in range(depth + 1))
        return tokens / (table.verify(depth + 1) + step * depth)

    best = best_depth(Costs(table), chance, lambda depth: step * depth, DEPTHS)
    assert rate(best) == pytest.approx(max(map(rate, (0, *DEPTHS))))


def test_the_share_of_kept_tokens_is_known_after_many():
    chances = AcceptanceModel()
    for _ in range(MANY // 4 - 1):
        chances.learn((0.5,) * 5, 3, 4)  # three kept, one rejected, one never judged
    assert chances.usual is None
    chances.learn((0.5,) * 5, 3, 4)
    chances.begin()
    assert chances.usual == 0.75


def test_it_is_decided_once_and_stays():
    machine = Machine(TABLE.verify, 0.1, lambda position: position % 5 != 4 and position < 1000)
    drafting = Drafting([machine], TABLE, DEPTHS, most=32, lookup=False)
    strategy = drafting.strategy_at(None, None, sampled=True)
    machine.step(strategy)
    assert drafting.lessons.seeded_depth is None
    while machine.position < 900:
        machine.step(strategy)
    decided = drafting.lessons.seeded_depth
    assert decided in DEPTHS
    while machine.position < 4000:  # where nothing is kept any more
        machine.step(strategy)
    assert drafting.lessons.seeded_depth == decided
    later = Drafting([machine], TABLE, DEPTHS, most=32, lessons=drafting.lessons)
    assert later.seeded_depth == decided


def test_costs_that_no_pass_has_confirmed_decide_nothing():
    """It stays, so it must not come from stored costs of a moment in which the machine was held up."""
    machine = Machine(TABLE.verify, 0.1, lambda position: True)
    drafting = Drafting([machine], CostTable((1, 2, 9), (1.0, 4.0, 4.6), {"model": 0.1}), DEPTHS, most=32)
    control = next(c for c in drafting._contenders[True] if not c.is_free)
    for _ in range(MANY):
        control.chances.learn((0.5,) * 5, 4, 5)
    assert drafting.lessons.seeded_depth is None
    for _ in range(20):
        drafting.costs.learn_verify(2, 1.02)
    assert drafting.lessons.seeded_depth in DEPTHS
