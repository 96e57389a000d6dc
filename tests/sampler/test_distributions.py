"""Drawing from a sparse distribution and subtracting one from another."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.sampler.chain import Chain, Distribution, excess, excess_mass, pick
from localspec.sampler.sampling import Sampling

BELOW_ONE = 1.0 - 2.0**-53

weights = st.lists(st.one_of(st.just(0.0), st.floats(1e-9, 1.0)), min_size=1, max_size=12).filter(any)


def distribution(values, ids=None):
    shares = np.array(values, dtype=np.float64)
    return Distribution(np.arange(len(values)) if ids is None else np.array(ids), shares / shares.sum())


@given(weights, st.one_of(st.floats(0.0, BELOW_ONE), st.sampled_from([0.0, BELOW_ONE])))
def test_a_pick_is_the_token_at_that_height(values, u):
    p = distribution(values)
    token = pick(p, u)
    heights = np.concatenate(([0.0], np.cumsum(p.probabilities)))
    assert p.probabilities[token] > 0.0
    assert heights[token] - 1e-12 <= u <= heights[token + 1] + 1e-12


@given(st.integers(0, 2**32), st.lists(st.floats(0.0, BELOW_ONE), min_size=1, max_size=20))
def test_wide_distributions_are_picked_from_alike(seed, heights):
    random = np.random.default_rng(seed)
    values = random.exponential(size=10_007) * (random.random(10_007) < 0.5)
    p = distribution(values)
    edges = np.concatenate(([0.0], np.cumsum(p.probabilities)))
    for u in (*heights, 0.0, BELOW_ONE):
        token = pick(p, u)
        assert p.probabilities[token] > 0.0
        assert edges[token] - 1e-12 <= u <= edges[token + 1] + 1e-12


@given(weights, weights, st.integers(0, 6), st.floats(1e-6, 1.0))
def test_the_excess_is_what_p_has_and_q_has_not(p_values, q_values, shift, share):
    p = distribution(p_values)
    q = distribution(q_values, ids=range(shift, shift + len(q_values)))
    expected = np.array([max(share * p.of(token) - q.of(token), 0.0) for token in range(len(p_values))])
    assert excess_mass(p, q, drafted=0, share=share) == pytest.approx(expected.sum(), abs=1e-15)
    if expected.sum() > 1e-9 * share:
        found = excess(p, q, drafted=0, share=share)
        assert found.probabilities == pytest.approx(expected / expected.sum(), abs=1e-6)


def test_the_excess_over_a_chosen_token_is_everything_else():
    p = distribution([1, 2, 1])
    assert excess(p, None, drafted=1).probabilities.tolist() == [0.5, 0.0, 0.5]
    assert excess(p, None, drafted=7).probabilities.tolist() == [0.25, 0.5, 0.25]
    assert (excess_mass(p, None, 1, 0.5), excess_mass(p, None, 7, 0.5)) == (0.25, 0.5)


def test_no_excess_at_all_falls_back():
    p = distribution([1, 3])
    assert excess(p, p, drafted=0) is p


@pytest.mark.parametrize("size", [3, 700, 152_064])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_a_whole_row_is_what_its_softmax_is(size, temperature):
    """Of a row that keeps every token no weight is kept: each way of asking gives what float64 gives."""
    random = np.random.default_rng(size)
    row = random.normal(0.0, 3.0, size).astype(np.float32)
    exact = np.exp((row - row.max()).astype(np.float64) / temperature)
    exact /= exact.sum()
    chain = Chain(Sampling(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0))
    p, few = chain.distribution(row, ()), random.choice(size, 3, replace=False)
    chain.distribution(row[::-1].copy(), ())  # another row changes nothing
    assert p.probabilities == pytest.approx(exact, rel=1e-5)
    assert p.shares(few) == pytest.approx(exact[few], rel=1e-5)
    assert p.of(int(few[0])) == pytest.approx(exact[few[0]], rel=1e-5)
    assert p.shares(np.array([size + 5])).tolist() == [0.0] == [p.of(size + 5)]
    edges = np.concatenate(([0.0], np.cumsum(exact)))
    for u in (0.0, *random.random(200), BELOW_ONE):
        token = pick(p, u)
        assert edges[token] - 1e-6 <= u <= edges[token + 1] + 1e-6
    q = chain.distribution(row[::-1].copy(), (), drafts=True)
    missing = np.maximum(exact - q.shares(np.arange(size)), 0.0)
    assert excess_mass(p, q, 0, 1.0) == pytest.approx(missing.sum(), abs=1e-6)
    assert excess(p, q, 0).probabilities == pytest.approx(missing / missing.sum(), abs=1e-6)


def test_a_draft_from_a_whole_row_lacks_only_unlikely_tokens():
    row = np.random.default_rng(1).normal(0.0, 3.0, 32_000).astype(np.float32)
    for temperature in (0.5, 1.0, 2.0):
        chain = Chain(Sampling(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0))
        p, q = chain.distribution(row, ()), chain.distribution(row, (), drafts=True)
        assert len(q.ids) < len(p.ids) == 32_000
        assert p.shares(q.ids).min() > p.probabilities.max() * 4e-5
        assert p.shares(np.setdiff1d(p.ids, q.ids)).max() < p.probabilities.max() * 5e-5


def test_probabilities_of_absent_tokens_are_zero():
    p = distribution([1, 3], ids=[4, 8])
    assert [p.of(token) for token in (3, 4, 5, 8, 9)] == [0.0, 0.25, 0.0, 0.75, 0.0]
