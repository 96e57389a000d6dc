"""The largest logits of a row, exactly, without sorting it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.sampler.chain import Chain, largest
from localspec.sampler.passes import Candidates
from localspec.sampler.sampling import Sampling


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
