"""The keyed generator: uniform where it should be, independent across everything that a key is made of."""

import functools
import itertools

import numpy as np
import pytest

from localspec.algorithm.noise import Keyed, Purpose, fresh_seed, gumbel, uniform
from localspec.sampler.chain import Distribution

ONE_IN_A_MILLION = 4.9  # standard errors


def chi_square_excess(counts, expected):
    """How far Pearson's statistic lies above its mean, in standard deviations."""
    degrees = counts.size - 1
    return (((counts - expected) ** 2 / expected).sum() - degrees) / np.sqrt(2 * degrees)


# Series of uniforms in which one part of the key counts up and the others stay.
FAMILIES = {
    "positions": lambda i: uniform(7, i, Purpose.DRAFT, 3),
    "seeds": lambda i: uniform(i, 5, Purpose.DRAFT, 3),
    "starts": lambda i: uniform(7, 5, Purpose.ACCEPT, i),
    "distant seeds": lambda i: uniform(i << 40, 5, Purpose.TARGET),
    "a cycle": lambda i: uniform(7, i, Purpose.ACCEPT, i - i % 5),
}


@functools.cache
def series(family):
    return np.array([FAMILIES[family](i) for i in range(20_000)])


@pytest.mark.parametrize("family", FAMILIES)
def test_uniforms_fill_the_interval_evenly(family):
    values = series(family)
    assert values.min() >= 0.0
    assert values.max() < 1.0
    counts = np.histogram(values, bins=100, range=(0, 1))[0]
    assert abs(chi_square_excess(counts, len(values) / 100)) < ONE_IN_A_MILLION


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("lag", [1, 2, 5, 64])
def test_neighbours_are_independent(family, lag):
    values = series(family)
    pairs = np.histogram2d(values[:-lag], values[lag:], bins=10, range=((0, 1), (0, 1)))[0]
    assert abs(chi_square_excess(pairs, (len(values) - lag) / 100)) < ONE_IN_A_MILLION


@pytest.mark.parametrize(("one", "other"), [(a, b) for a in Purpose for b in Purpose if a < b])
def test_purposes_are_independent(one, other):
    count = 5_000
    first = [uniform(3, i, one) for i in range(count)]
    second = [uniform(3, i, other) for i in range(count)]
    pairs = np.histogram2d(first, second, bins=8, range=((0, 1), (0, 1)))[0]
    assert abs(chi_square_excess(pairs, count / 64)) < ONE_IN_A_MILLION


def test_swapping_two_parts_of_a_key_gives_another_draw():
    values = {
        uniform(*key)
        for key in [(1, 2, Purpose.DRAFT, 3), (2, 1, Purpose.DRAFT, 3), (1, 3, Purpose.DRAFT, 2)]
    }
    assert len(values) == 3


def test_gumbel_noise_is_gumbel_distributed_and_independent_between_tokens_and_positions():
    noise = np.concatenate([gumbel(11, position, np.arange(1000)) for position in range(40)])
    heights = np.exp(-np.exp(-noise))  # uniform if the noise is standard Gumbel
    counts = np.histogram(heights, bins=100, range=(0, 1))[0]
    assert abs(chi_square_excess(counts, len(heights) / 100)) < ONE_IN_A_MILLION
    for lag in (1, 1000):
        pairs = np.histogram2d(heights[:-lag], heights[lag:], bins=10, range=((0, 1), (0, 1)))[0]
        assert abs(chi_square_excess(pairs, (len(heights) - lag) / 100)) < ONE_IN_A_MILLION


def test_gumbel_noise_of_a_token_does_not_depend_on_its_company():
    alone = gumbel(5, 9, np.array([70_000]))
    together = gumbel(5, 9, np.arange(69_990, 70_010))
    assert alone[0] == together[10]


def test_draws_do_not_change_between_versions():
    """A seed that reproduced a reply yesterday does so tomorrow."""
    assert uniform(42, 7, Purpose.DRAFT, 3) == 0.8800718792458276
    assert gumbel(42, 7, np.array([5]))[0] == pytest.approx(2.096238313941441, rel=1e-12)


P = Distribution(np.array([2, 5, 9, 11]), np.array([0.5, 0.25, 0.2, 0.05]))


@pytest.mark.parametrize("draw", ["chosen", "drafted", "loudest"])
@pytest.mark.parametrize("vary", ["seed", "position"])
def test_draws_follow_the_distribution(draw, vary):
    count = 20_000
    extra = (0,) if draw == "drafted" else ()
    keys = [(i, 3) if vary == "seed" else (3, i) for i in range(count)]
    tokens = [getattr(Keyed(seed), draw)(P, position, *extra) for seed, position in keys]
    counts = np.array([tokens.count(token) for token in P.ids.tolist()])
    assert counts.sum() == count
    assert abs(chi_square_excess(counts, count * P.probabilities)) < ONE_IN_A_MILLION


def test_coins_fall_with_their_probability_and_never_against_certainty():
    noise = Keyed(8)
    assert all(noise.coin(1.0, i, 0) and not noise.coin(0.0, i, 0) for i in range(1000))
    heads = sum(noise.coin(0.3, i, i - i % 4) for i in range(20_000))
    assert heads == pytest.approx(6000, abs=ONE_IN_A_MILLION * np.sqrt(20_000 * 0.21))


EVEN = Distribution(np.array([0, 1]), np.array([0.5, 0.5]))
DECISIONS = {
    "coin": lambda noise, i: noise.coin(0.5, i, i - i % 4),
    "coin of a later cycle": lambda noise, i: noise.coin(0.5, i, i),
    "drafted": lambda noise, i: noise.drafted(EVEN, i, i - i % 4),
    "drafted in a later cycle": lambda noise, i: noise.drafted(EVEN, i, i),
    "chosen": lambda noise, i: noise.chosen(EVEN, i),
    "loudest": lambda noise, i: noise.loudest(EVEN, i),
}


@pytest.mark.parametrize(("one", "other"), itertools.combinations(DECISIONS, 2))
def test_what_is_decided_at_one_position_says_nothing_about_what_else_is(one, other):
    """Also where a later cycle decides it again: what the enumeration of the distributions takes for granted."""
    noise, positions = Keyed(12), [i for i in range(8_000) if i % 4]
    pairs = np.zeros((2, 2))
    for i in positions:
        pairs[int(DECISIONS[one](noise, i)), int(DECISIONS[other](noise, i))] += 1
    assert abs(chi_square_excess(pairs, len(positions) / 4)) < ONE_IN_A_MILLION


def test_the_loudest_token_is_the_winner_of_an_exponential_race():
    """exp(-Gumbel) is a standard exponential E, and P(E_x / p_x is smallest) = p_x: why coupling works."""
    for position in range(200):
        race = np.exp(-gumbel(4, position, P.ids)) / P.probabilities
        assert Keyed(4).loudest(P, position) == P.ids[race.argmin()]


def test_shared_noise_makes_similar_distributions_agree():
    """Daliri et al.: agreement is at least (1 - TV) / (1 + TV); for two given distributions its value is known."""
    q = Distribution(P.ids, np.array([0.4, 0.35, 0.15, 0.1]))
    ratios = [d.probabilities[None] / d.probabilities[:, None] for d in (P, q)]
    exact = (1.0 / np.maximum(*ratios).sum(axis=1)).sum()
    count = 20_000
    agreed = sum(Keyed(6).loudest(P, i) == Keyed(6).loudest(q, i) for i in range(count))
    assert agreed / count == pytest.approx(exact, abs=ONE_IN_A_MILLION * np.sqrt(exact * (1 - exact) / count))


def test_fresh_seeds_differ_and_fit_63_bits():
    seeds = {fresh_seed() for _ in range(100)}
    assert len(seeds) == 100
    assert all(0 <= seed < 2**63 for seed in seeds)
