"""Intervals cover what they claim with a handful of prompts, and a bench claims in words what they allow."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.measure.bench import Category
from localspec.measure.summary import (
    BenchRow,
    Finding,
    Interval,
    Summary,
    finding,
    headlines,
    hint,
    mean_ratio,
    overview,
    student_quantile,
)
from localspec.measure.verify import SampledResult

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
    with pytest.raises(ValueError, match="no ratios"):
        mean_ratio([[[]], []])


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


def bernstein(total, variance, bound):
    return SampledResult(surplus=total, variance=variance, largest=bound).excess_p


@pytest.mark.parametrize("chance", [0.5, 0.1, 0.002])
def test_bernstein_is_never_below_the_exact_tail(chance):
    draws = 2000
    for distance in (3, 10, 30, 60, 120):
        bound = bernstein(distance, draws * chance * (1 - chance), max(chance, 1 - chance))
        assert bound >= binomial_tail(draws, chance, distance) * (1 - 1e-9)


def test_bernstein_is_tight_enough_to_be_of_use():
    assert bernstein(8.0 * math.sqrt(50_000), 50_000, 1.0) < 1e-12
    assert bernstein(0.0, 0.0, 1.0) == 1.0
    assert bernstein(1.0, 0.0, 1.0) == 0.0


CODE, CHAT = Category.CODE, Category.CHAT


def row(category, low, middle, high, **changes):
    row = BenchRow(category, 0.0, "auto", 10.0, 10.0 * middle, Interval(middle, low, high), 0.7, 2.4, 4, 8)
    return replace(row, **changes)


@pytest.mark.parametrize(
    ("low", "middle", "high", "expected"),
    [
        (1.5, 1.8, 2.1, Finding.FASTER),
        (1.01, 1.03, 1.06, Finding.FASTER),
        (0.99, 1.0, 1.01, Finding.SAME),
        (0.975, 0.985, 0.995, Finding.SAME),
        (0.7, 0.8, 0.9, Finding.SLOWER),
        (0.8, 1.1, 1.6, Finding.UNSURE),
        (0.0, 3.0, float("inf"), Finding.UNSURE),
    ],
)
def test_a_finding_is_never_stronger_than_its_interval(low, middle, high, expected):
    assert finding(Interval(middle, low, high)) is expected


@pytest.mark.parametrize(
    ("low", "middle", "high", "begins"),
    [
        (1.1, 1.3, 1.5, "Drafting pays at T=0: 1.30x (1.10 to 1.50), acceptance rate 70%."),
        (0.7, 0.8, 0.9, "Drafting does not pay at T=0: 0.80x"),
        (0.8, 1.1, 1.5, "Undecided at T=0: 1.10x"),
        (0.0, 3.0, float("inf"), "Undecided at T=0: 3.00x (too few"),
    ],
)
def test_the_verdict_is_that_of_the_mix(low, middle, high, begins):
    found = Summary((row(CODE, 1.7, 1.9, 2.1), row(None, low, middle, high)), 0)
    (words,) = headlines(found).splitlines()
    assert words.startswith(begins)
    assert len(words) <= 80
    assert ("Measure for longer" in hint(found)) is begins.startswith("Undecided")


def test_the_overview_fits_a_screen_and_has_the_fixed_depths_over_all_categories_alone():
    rows = [
        row(kind, 0.7, 0.8, 0.9, arm=arm, temperature=t)
        for t in (0.0, 0.8)
        for kind in (*Category, None)
        for arm in ("auto", "depth 2", "depth 16")
    ]
    lines = overview(Summary(tuple(rows), 0)).splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        *([kind, "auto"] for kind in Category),
        *(["all", depth] for depth in ("auto", "2", "16")),
    ]
    assert all(line.count("0.80x  0.70 to 0.90") == 0 or line.count("0.70 to 0.90") == 2 for line in lines)
    assert max(map(len, lines)) < 80
    del rows[3 * (len(Category) + 1)]  # code at T=0.8 was not measured
    assert overview(Summary(tuple(rows), 0)).count("0.80x") == 2 * (len(Category) + 3) - 1


def test_the_speed_of_the_demo_pair_is_left_out():
    text = overview(Summary((row(CODE, 0.5, 0.6, 0.7), row(None, 0.5, 0.6, 0.7)), 0), is_demo=True)
    assert "70%" in text
    assert not re.search(r"0\.[67]|slower|speed", text)
