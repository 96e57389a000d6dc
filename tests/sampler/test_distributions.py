"""Drawing from a sparse distribution and subtracting one from another."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.sampler.chain import Distribution, excess, normalised, pick

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


@given(weights, weights, st.integers(0, 6), st.floats(0.0, 1.0))
def test_the_excess_is_what_p_has_and_q_has_not(p_values, q_values, shift, share):
    p = distribution(p_values)
    q = distribution(q_values, ids=range(shift, shift + len(q_values)))
    expected = [max(share * p.of(token) - q.of(token), 0.0) for token in range(len(p_values))]
    assert excess(p, q, drafted=0, share=share) == pytest.approx(expected, abs=1e-15)


def test_the_excess_over_a_chosen_token_is_everything_else():
    p = distribution([1, 2, 1])
    assert excess(p, None, drafted=1).tolist() == [0.25, 0.0, 0.25]
    assert excess(p, None, drafted=7).tolist() == [0.25, 0.5, 0.25]


def test_no_excess_at_all_falls_back():
    p = distribution([1, 3])
    assert normalised(p.ids, excess(p, p, drafted=0), otherwise=p) is p


def test_probabilities_of_absent_tokens_are_zero():
    p = distribution([1, 3], ids=[4, 8])
    assert [p.of(token) for token in (3, 4, 5, 8, 9)] == [0.0, 0.25, 0.0, 0.75, 0.0]
