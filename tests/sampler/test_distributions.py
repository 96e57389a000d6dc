"""The largest logits of a row, drawing from a sparse distribution, and subtracting one from another."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.algorithm.judgement import sharpened
from localspec.algorithm.noise import Keyed, gumbel, loud_tokens
from localspec.errors import BackendFailure
from localspec.sampler.chain import Chain, Distribution, Few, excess, excess_mass, largest, pick
from localspec.sampler.passes import Candidates
from localspec.sampler.sampling import Sampling

BELOW_ONE = 1.0 - 2.0**-53

weights = st.lists(st.one_of(st.just(0.0), st.floats(1e-9, 1.0)), min_size=1, max_size=12).filter(any)


def wide(seed):
    random = np.random.default_rng(seed)
    return random.exponential(size=10_007) * (random.random(10_007) < 0.5)


def distribution(values, ids=None):
    shares = np.array(values, dtype=np.float64)
    return Distribution(np.arange(len(values)) if ids is None else np.array(ids), shares / shares.sum())


@given(
    weights | st.integers(0, 2**32).map(wide),
    st.lists(st.floats(0.0, BELOW_ONE), min_size=1, max_size=20),
)
def test_a_pick_is_the_token_at_that_height(values, us):
    p = distribution(values)
    heights = np.concatenate(([0.0], np.cumsum(p.probabilities)))
    for u in (*us, 0.0, BELOW_ONE):
        token = pick(p, u)
        assert p.probabilities[token] > 0.0
        assert heights[token] - 1e-12 <= u <= heights[token + 1] + 1e-12


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


@pytest.mark.process
@pytest.mark.parametrize("size", [3, 700, 152_064])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("shift", [0.0, 300.0, -300.0])
def test_a_whole_row_is_what_its_softmax_is(size, temperature, shift):
    """Every method returns what float64 gives, also after the row is overwritten: it is weighed once."""
    random = np.random.default_rng(size)
    row = (random.normal(0.0, 3.0, size) + shift).astype(np.float32)
    exact = np.exp((row - row.max()).astype(np.float64) / temperature)
    exact /= exact.sum()
    chain = Chain(Sampling(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0))
    p, few = chain.distribution(row, ()), random.choice(size, 3, replace=False)
    other = row[::-1].copy()
    chain.distribution(other, ())  # another row changes nothing
    row[:] = np.nan
    assert p.probabilities == pytest.approx(exact, rel=1e-5)
    assert p.shares(few) == pytest.approx(exact[few], rel=1e-5)
    assert p.of(int(few[0])) == pytest.approx(exact[few[0]], rel=1e-5)
    assert p.shares(np.array([size + 5])).tolist() == [0.0] == [p.of(size + 5)]
    edges = np.concatenate(([0.0], np.cumsum(exact)))
    for u in (0.0, *random.random(200), BELOW_ONE):
        token = pick(p, u)
        assert edges[token] - 1e-6 <= u <= edges[token + 1] + 1e-6
    q = chain.distribution(other, (), drafts=True)
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


def by_sorting(row, count):
    order = np.lexsort((np.arange(len(row)), -row))[:count]
    return np.sort(order)


@given(
    seed=st.integers(0, 2**32),
    size=st.integers(1, 9000),
    count=st.integers(1, 200),
    levels=st.sampled_from([3, 50, 10**6]),
)
def test_the_same_tokens_as_a_full_sort_ties_by_lowest_id(seed, size, count, levels):
    random = np.random.default_rng(seed)
    row = random.integers(0, levels, size).astype(np.float32) - 1.0
    row[random.random(size) < 0.1] = -np.inf
    row[random.integers(size)] = 1.0
    ids, logits = largest(row, count)
    assert ids.tolist() == by_sorting(row, count).tolist()
    assert logits.tolist() == row[ids].tolist()


@pytest.mark.parametrize("size", [128_256, 151_936, 151_937, 262_144])
def test_real_vocabularies(size):
    row = np.random.default_rng(size).normal(size=size).astype(np.float32)
    assert largest(row, 40)[0].tolist() == by_sorting(row, 40).tolist()


@pytest.mark.parametrize("size", [1, 63, 5000, 45_000, 128_256, 151_937])
@pytest.mark.parametrize("levels", [2, 10**6])
def test_the_likeliest_token_is_the_argmax_and_its_share_is_that_among_the_ten_largest(size, levels):
    for seed in range(20):
        row = np.random.default_rng([seed, size]).integers(0, levels, size).astype(np.float32) / levels * 8
        token, share = Chain(Sampling(temperature=0.0)).likeliest(row, [])
        ten = np.sort(row)[-10:].astype(float)
        assert token == int(row.argmax())
        assert share == pytest.approx(1 / np.exp(ten - ten[-1]).sum())


@given(seed=st.integers(0, 2**32), count=st.integers(1, 60))
def test_unsorted_candidates_give_what_the_row_gives(seed, count):
    random = np.random.default_rng(seed)
    row = random.normal(size=5000).astype(np.float32)
    ids = random.permutation(by_sorting(row, 60)).astype(np.int32)
    found = largest(Candidates(ids, row[ids]), count)
    wanted = largest(row, count)
    assert found[0].tolist() == wanted[0].tolist()
    assert found[1].tolist() == wanted[1].tolist()


@given(seed=st.integers(0, 2**32), share=st.sampled_from([0.3, 0.9, 1.0]), drawn=st.booleans())
def test_few_tokens_have_the_sums_and_draws_that_arrays_have(seed, share, drawn):
    random = np.random.default_rng(seed)
    ids = [np.sort(random.choice(12, random.integers(1, 9), replace=False)) for _ in range(2)]
    p, q = (Distribution(each, random.dirichlet(np.ones(len(each)))) for each in ids)
    few_p, few_q = (Few(dict(zip(d.ids.tolist(), d.weights.tolist(), strict=True))) for d in (p, q))
    token = int(random.choice(q.ids))
    wanted = excess_mass(p, q if drawn else None, token, share)
    for one, other in ((few_p, few_q), (few_p, q), (p, few_q)):
        assert excess_mass(one, other if drawn else None, token, share) == pytest.approx(wanted, abs=1e-12)
        left = excess(one, other if drawn else None, token, share)
        if wanted > 1e-9:
            long_way = excess(p, q if drawn else None, token, share)
            assert left.shares(np.arange(12)) == pytest.approx(long_way.shares(np.arange(12)), abs=1e-9)
    assert (few_p.likeliest()[0], few_p.ids.tolist()) == (p.likeliest()[0], p.ids.tolist())
    assert [pick(few_p, u) for u in (0.0, 0.5, 1 - 2**-53)] == [pick(p, u) for u in (0.0, 0.5, 1 - 2**-53)]
    assert [Keyed(seed).loudest(few_p, n) for n in range(9)] == [Keyed(seed).loudest(p, n) for n in range(9)]
    assert sharpened(few_q, 0.5).probabilities == pytest.approx(sharpened(q, 0.5).probabilities)


@pytest.mark.parametrize("spread", [0.1, 3.0, 9.0])
@pytest.mark.parametrize("temperature", [1e-9, 0.3, 0.8, 2.0])
def test_the_loudest_of_a_whole_vocabulary_is_found_without_the_noise_of_all(spread, temperature):
    logits = np.random.default_rng(1).normal(0.0, spread, 40_000).astype(np.float32)
    logits[5:9] = logits.max()
    for position in range(20):
        scores = logits.astype(float) / temperature + gumbel(7, position, np.arange(40_000))
        assert Keyed(7).loudest_of_all(logits, temperature, position) == scores.argmax()


@pytest.mark.parametrize("size", [0, 1, 8192, 20_001])
def test_loud_tokens_are_those_whose_noise_is_above_a_bound(size):
    ids, noise = loud_tokens(7, 3, size)
    every = gumbel(7, 3, np.arange(size))
    assert noise.tolist() == every[ids].tolist()
    assert ids.tolist() == np.flatnonzero(every >= -np.log(-np.log(1 - 1 / 256))).tolist()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_broken_row_without_filters_is_an_error(bad):
    row = np.full(5000, bad, np.float32)
    row[:100] = 1.0 if np.isnan(bad) or bad > 0 else bad
    with pytest.raises(BackendFailure):
        Chain(Sampling(top_k=0, top_p=1.0, min_p=0.0)).distribution(row, ())
    with pytest.raises(BackendFailure):
        Keyed(1).loudest_of_all(row, 0.8, 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("at", [0, 4990, 4999])  # the last tokens fit into no column
def test_a_broken_row_is_an_error_also_where_one_logit_leads(bad, at):
    row = np.random.default_rng(1).normal(size=5000).astype(np.float32)
    row[7], row[at] = 99.0, bad
    for logits in (row, Candidates(np.arange(5000), row)):
        with pytest.raises(BackendFailure):
            largest(logits, 10)


def test_weights_of_whole_rows_use_the_memory_of_those_that_are_gone():
    chain = Chain(Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0))
    rows = np.random.default_rng(1).normal(size=(4, 5000)).astype(np.float32)
    for _ in range(5):
        kept = [chain.distribution(row, ()) for row in rows]
        fresh = [Chain(chain.sampling).distribution(row, ()) for row in rows]
        assert all((p.weights == q.weights).all() for p, q in zip(kept, fresh, strict=True))
        del kept
    assert len(chain._buffers) <= len(rows) + 1
