"""Ending proposals early: worth against cost; tests/drafters/test_law.py has the law."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.algorithm.verification import make_rule
from localspec.control.cost_table import CostTable
from localspec.control.costs import Costs
from localspec.control.depth import Stopper
from localspec.sampler.sampling import Sampling
from tests.drafters.machine import propose

TABLE = CostTable(
    (1, 2, 9), (1.0, 1.3, 3.4), {"model": 0.1}
)  # a token more costs 0.3 to verify and 0.1 to draft


class Believing:
    """AcceptanceModel without learning: a confidence is a probability, and all that is known of tokens ahead is one."""

    def __init__(self, ahead):
        self._ahead = ahead

    def of(self, confidence, drafted):
        return confidence

    def ahead(self, drafted):
        return self._ahead


def stopper(rate=1.0, depths=tuple(range(1, 9)), ahead=0.7, table=TABLE):
    return Stopper(
        Believing(ahead),
        Costs(table),
        lambda depth: table.run_seconds["model"] * depth,
        rate=rate,
        depths=depths,
    )


def proposed(stopping, confidences):
    return propose(stopping, confidences)[0]


def test_sure_tokens_are_kept_and_doubtful_ones_end_the_proposal():
    assert proposed(stopper(), [0.99] * 8) == 8
    assert proposed(stopper(), [0.99, 0.99, 0.05, 0.99]) == 2


def test_a_doubtful_first_token_means_plain_decoding():
    assert proposed(stopper(), [0.02]) == 0


def test_a_token_is_worth_no_more_than_the_chance_that_all_before_it_are_kept():
    assert proposed(stopper(), [0.99, 0.99, 0.99, 0.7]) == 4
    assert proposed(stopper(), [0.8, 0.8, 0.8, 0.7]) == 3


def test_the_faster_the_run_the_more_a_token_must_promise():
    counts = [proposed(stopper(rate), [0.8] * 8) for rate in (0.5, 1.0, 1.5, 3.0)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1]


@given(st.lists(st.floats(0.01, 0.99), min_size=8, max_size=8), st.sets(st.integers(1, 8), min_size=1))
def test_where_few_depths_are_allowed_proposals_end_only_there(confidences, depths):
    allowed = tuple(sorted(depths))
    stopping = stopper(depths=allowed)
    assert proposed(stopping, confidences[: allowed[-1]]) in {0, *allowed}


def test_a_stair_in_the_costs_is_looked_beyond():
    """Width 3 is dear and width 4 costs nothing more: stopping at the foot of the stair would be wrong."""
    stairs = CostTable((1, 2, 3, 4, 9), (1.0, 1.02, 1.9, 1.92, 2.0), {"model": 0.01})
    assert proposed(stopper(rate=2.0, ahead=0.95, table=stairs), [0.95] * 8) == 8


@pytest.mark.parametrize("rule", ["greedy", "block", "coupled"])
def test_the_confidence_of_a_draw_does_not_depend_on_the_token_drawn(rule):
    row = np.array([1.0, 0.9, 0.5, 0.2], dtype=np.float32)
    sampling = Sampling(temperature=0 if rule == "greedy" else 1.0)
    draws = [make_rule(rule, sampling, seed).draw(row, [1, 2], 2) for seed in range(40)]
    assert len({draw.confidence for draw in draws}) == 1
    assert rule == "greedy" or len({draw.token for draw in draws}) > 1
