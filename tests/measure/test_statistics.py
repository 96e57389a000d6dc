"""Intervals cover what they claim, even with the handful of prompts that a bench has time for."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.measure.intervals import (
    bernstein,
    mean_ratio,
    student_quantile,
)

logs = st.lists(st.lists(st.floats(-2, 2), min_size=1, max_size=3), min_size=1, max_size=5)
groups = st.lists(logs, min_size=1, max_size=4)


def test_the_mean_is_geometric_over_medians_and_every_group_weighs_the_same():
    one_prompt = [[math.log(2), math.log(2), math.log(100)]]  # the wild repetition does not count
    three_prompts = [[math.log(0.5)]] * 3
    assert mean_ratio([one_prompt, three_prompts]).middle == pytest.approx(1.0)


@pytest.mark.parametrize(("categories", "prompts"), [(1, 4), (1, 12), (3, 4), (6, 2)])
def test_19_of_20_intervals_contain_the_truth(categories, prompts):
    """A bootstrap covers 80 % at four prompts, and was never the wider interval."""
    random = np.random.default_rng(3)
    covered = 0
    for _ in range(300):
        values = random.normal(math.log(1.5), 0.2, (categories, prompts, 1))
        found = mean_ratio(values.tolist())
        covered += found.low <= 1.5 <= found.high
    assert 0.91 <= covered / 300 <= 0.985


def test_categories_that_differ_do_not_widen_the_interval_of_the_mix():
    near, far = [[0.0], [0.01], [-0.01], [0.0]], [[1.0], [1.01], [0.99], [1.0]]
    apart = mean_ratio([near, far])
    assert apart.high / apart.low < 1.05
    thrown_together = mean_ratio([near + far])
    assert thrown_together.high / thrown_together.low > 1.5


@given(groups)
def test_the_middle_is_inside_and_swapping_the_sides_mirrors_it(found):
    there = mean_ratio(found)
    back = mean_ratio([[[-x for x in prompt] for prompt in group] for group in found])
    assert there.low <= there.middle * (1 + 1e-9)
    assert there.middle <= there.high * (1 + 1e-9)
    assert back.middle == pytest.approx(1 / there.middle)


def test_two_prompts_are_too_few_for_an_interval():
    assert not mean_ratio([[[0.1], [0.2]]]).known
    assert mean_ratio([[[0.1], [0.2], [0.3]]]).known
    assert not mean_ratio([[[0.1]], [[0.1]], [[0.1]]]).known


def test_nothing_measured_has_no_mean():
    with pytest.raises(ValueError, match="no ratios"):
        mean_ratio([[[]], []])


def test_the_same_measurements_give_the_same_interval():
    values = [[[0.1, 0.3], [0.2], [0.5, 0.4]]]
    assert mean_ratio(values) == mean_ratio(values)


def test_students_quantiles_are_those_of_the_tables():
    for freedom, expected in ((2, 4.303), (3, 3.182), (5, 2.571), (10, 2.228), (30, 2.042), (1000, 1.962)):
        assert student_quantile(freedom) == pytest.approx(expected, rel=0.035)


def binomial_tail(draws, chance, distance):
    """P(|count - expected| >= distance), exactly."""
    log_share = [
        math.lgamma(draws + 1)
        - math.lgamma(k + 1)
        - math.lgamma(draws - k + 1)
        + k * math.log(chance)
        + (draws - k) * math.log1p(-chance)
        for k in range(draws + 1)
        if abs(k - draws * chance) >= distance - 1e-9
    ]
    return sum(map(math.exp, log_share))


@pytest.mark.parametrize("chance", [0.5, 0.1, 0.002])
def test_bernstein_is_never_below_the_exact_tail(chance):
    draws = 2000
    for distance in (3, 10, 30, 60, 120):
        bound = bernstein(distance, draws * chance * (1 - chance), max(chance, 1 - chance))
        assert bound >= binomial_tail(draws, chance, distance) * (1 - 1e-9)


def test_bernstein_is_tight_enough_to_be_of_use():
    assert bernstein(8.0 * math.sqrt(50_000), 50_000, 1.0) < 1e-12


def test_without_variance_any_distance_is_impossible():
    assert bernstein(0.0, 0.0, 1.0) == 1.0
    assert bernstein(1.0, 0.0, 1.0) == 0.0
