"""Costs belong to a length of context and a number of threads."""

import pytest

from localspec.control.cost_table import CostTable
from localspec.control.costs import CostsByContext, doublings
from localspec.control.depth import PlainProbes

TABLE = CostTable((1, 2, 9), (1.0, 1.1, 1.8), {"model": 0.1})


def at(places, tokens):
    places.move(tokens)
    return places.costs


@pytest.mark.parametrize(
    ("tokens", "found"), [(0, 0), (2048, 0), (2049, 1), (4096, 1), (5000, 2), (32768, 4)]
)
def test_every_doubling_of_the_context_is_a_place(tokens, found):
    assert doublings(tokens) == found


def test_what_a_short_context_costs_is_no_measurement_of_a_long_one():
    places = CostsByContext([TABLE])
    for _ in range(20):
        at(places, 100).learn_verify(1, 1.0)
        at(places, 9000).learn_verify(1, 3.0)
    assert at(places, 100).plain_step_seconds == pytest.approx(1.0)
    assert at(places, 9000).plain_step_seconds == pytest.approx(3.0)


def test_a_new_place_begins_with_a_plain_step_and_the_nearest_proportions():
    places = CostsByContext([TABLE])
    there = at(places, 9000)
    assert there.plain_step_seconds is None
    assert there.verify(9) / there.verify(1) == pytest.approx(1.8)
    assert PlainProbes().due(there, gain=0.1)


def test_fewer_threads_are_another_place_that_is_not_stored():
    threads = 4
    places = CostsByContext([TABLE], lambda: threads)
    for _ in range(20):
        at(places, 10).learn_verify(1, 1.0)
    threads = 1
    for _ in range(20):
        at(places, 10).learn_verify(1, 4.0)
    assert at(places, 10).plain_step_seconds == pytest.approx(4.0)
    (stored,) = places.tables()
    assert stored.verify(1) == pytest.approx(1.0)
    threads = 4
    assert at(places, 10).plain_step_seconds == pytest.approx(1.0)


def test_what_was_learned_in_every_length_comes_back():
    places = CostsByContext([TABLE])
    for _ in range(20):
        for length, seconds in ((10, 1.0), (9000, 3.0)):
            at(places, length).learn_verify(1, seconds)
            at(places, length).learn_verify(4, 1.2 * seconds)
    again = CostsByContext(places.tables())
    assert at(again, 10).plain_step_seconds == pytest.approx(1.0)
    assert at(again, 9000).plain_step_seconds == pytest.approx(3.0)


def test_a_measurement_replaces_what_was_known_where_it_was_made():
    places = CostsByContext([TABLE])
    at(places, 9000)
    places.calibrated(CostTable((1, 2), (7.0, 8.0), {"model": 0.1}, context_tokens=9000))
    assert places.costs.plain_step_seconds == 7.0
    assert at(places, 10).plain_step_seconds == 1.0
