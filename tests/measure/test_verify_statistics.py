"""P-values are never too small under the law, and very small beside it."""

import math

import numpy as np
import pytest

from localspec.measure.verify.law_statistics import LEAST_EXPECTED, Pearson, bernstein, merged

RANDOM = np.random.default_rng(3)


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


def p_values(law, draws, tables, truth=None):
    for _ in range(2000):
        found = Pearson()
        for _ in range(tables):
            found.add(RANDOM.multinomial(draws, law if truth is None else truth), law)
        yield found.p_value()


@pytest.mark.parametrize(("cells", "draws", "tables"), [(4, 400, 1), (40, 2000, 1), (12, 300, 6)])
def test_pearson_raises_alarms_as_rarely_as_it_says(cells, draws, tables):
    law = RANDOM.dirichlet(np.full(cells, 0.4))
    p = np.array(list(p_values(law, draws, tables)))
    assert np.mean(p < 0.05) < 0.075
    assert np.mean(p < 0.001) < 0.006
    assert np.mean(p < 0.5) > 0.4


def test_pearson_finds_a_law_that_moved():
    law = np.array([0.4, 0.3, 0.2, 0.1])
    moved = law + np.array([0.03, 0.0, -0.03, 0.0])
    assert max(p_values(law, 20_000, 1, truth=moved)) < 1e-6


def test_rare_outcomes_share_a_cell_and_nothing_is_lost():
    law = np.array([0.5, 0.4, 0.05, 0.03, 0.02])
    counts = np.array([100.0, 80.0, 9.0, 7.0, 4.0])
    for draws in (1.0, 50.0, 200.0, 1e6):
        seen, chances = merged(counts.copy(), law.copy(), draws)
        assert seen.sum() == counts.sum()
        assert chances.sum() == pytest.approx(1.0)
        assert len(chances) == 1 or (chances * draws >= LEAST_EXPECTED - 1e-9).all()
