"""The sampler chain against llama.cpp's own samplers, and its short cuts against the long way."""

from dataclasses import replace

import llama_cpp as lib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.errors import BackendFailure
from localspec.sampler import chain as chain_module
from localspec.sampler.chain import SPARE, Chain, largest
from localspec.sampler.passes import Candidates, Continued
from localspec.sampler.sampling import Sampling

VOCABULARY = 3000
DEFAULT = Sampling()
OPEN = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
PENALTIES = {"repeat_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2, "repeat_last_n": 20}
BOOSTS = {"repeat_penalty": 0.8, "presence_penalty": -0.5, "frequency_penalty": -0.3, "repeat_last_n": 20}
BIAS = ((5, 3.0), (17, -2.0), (2999, -np.inf), (40, 1.5))

CHAINS = {
    "default": DEFAULT,
    "hot": replace(DEFAULT, temperature=1.7),
    "open": OPEN,
    "top-k": replace(OPEN, top_k=17),
    "top-k beyond the vocabulary": replace(OPEN, top_k=5000),
    "top-p": replace(OPEN, top_p=0.8),
    "top-p nearly all": replace(OPEN, top_p=0.999),
    "min-p": replace(OPEN, min_p=0.1),
    "top-p and min-p": replace(OPEN, top_p=0.9, min_p=0.02, temperature=0.6),
    "penalties": replace(DEFAULT, **PENALTIES),
    "penalties without top-k": replace(DEFAULT, top_k=0, **PENALTIES),
    "penalties with much weight": replace(DEFAULT, top_k=5, **{**PENALTIES, "presence_penalty": 9.0}),
    "boosts": replace(DEFAULT, **BOOSTS),
    "bias": replace(DEFAULT, logit_bias=BIAS),
    "bans": replace(DEFAULT, logit_bias=tuple((token, -np.inf) for token in range(60))),
    "everything": replace(DEFAULT, top_k=30, logit_bias=BIAS, **PENALTIES),
}


def row_of(seed, size=VOCABULARY):
    random = np.random.default_rng(seed)
    return (random.normal(size=size) * random.choice([0.5, 2.0, 5.0])).astype(np.float32)


def history_of(seed, size=60):
    """A text with repetitions that is likely to touch the largest logits of the row with the same seed."""
    random = np.random.default_rng([seed, 1])
    favourites = (-row_of(seed)).argsort()[:15]
    return [
        int(t)
        for t in np.where(
            random.random(size) < 0.5, random.choice(favourites, size), random.integers(0, VOCABULARY, size)
        )
    ]


def by_llama_cpp(row, sampling, history):
    """Ids ascending and probabilities after llama.cpp's samplers in its default order."""
    s, size = sampling, len(row)
    chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    biases = (lib.llama_logit_bias * len(s.logit_bias))(*s.logit_bias)
    for sampler in (
        lib.llama_sampler_init_logit_bias(size, len(biases), biases),
        lib.llama_sampler_init_penalties(
            size, s.repeat_last_n, s.repeat_penalty, s.frequency_penalty, s.presence_penalty
        ),
        lib.llama_sampler_init_top_k(s.top_k),
        lib.llama_sampler_init_top_p(s.top_p, 0),
        lib.llama_sampler_init_min_p(s.min_p, 0),
        lib.llama_sampler_init_temp(s.temperature),
    ):
        lib.llama_sampler_chain_add(chain, sampler)
    for token in history:
        lib.llama_sampler_accept(chain, token)
    data = (lib.llama_token_data * size)(*((i, float(z), 0.0) for i, z in enumerate(row)))
    array = lib.llama_token_data_array(data, size, -1, False)
    lib.llama_sampler_apply(chain, array)
    left = sorted((array.data[i].id, array.data[i].logit) for i in range(array.size))
    lib.llama_sampler_free(chain)
    ids, logits = (np.array(column) for column in zip(*left, strict=True))
    weights = np.exp(logits - logits.max())
    return ids[weights > 0], (weights / weights.sum())[weights > 0]


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("seed", range(6))
def test_the_same_distribution_and_greedy_token_as_llama_cpp(chain, seed):
    row, history = row_of(seed), history_of(seed)
    ids, probabilities = by_llama_cpp(row, CHAINS[chain], history)
    ours = Chain(CHAINS[chain]).distribution(row, history)
    assert ours.ids.tolist() == ids.tolist()
    assert ours.probabilities == pytest.approx(probabilities, rel=2e-4)
    greedy = Chain(replace(CHAINS[chain], temperature=0.0))
    token = ids[probabilities.argmax()]
    assert greedy.best(row, history) == greedy.likeliest(row, history)[0] == token


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("most", [None, 2, 30])
@pytest.mark.parametrize("seed", range(4))
def test_a_cut_row_gives_what_the_whole_row_gives(chain, temperature, most, seed):
    sampling = replace(CHAINS[chain], temperature=temperature)
    row, history, asked = row_of(seed), history_of(seed), []
    enough = most is None and (sampling.logits_needed or VOCABULARY) < VOCABULARY
    ids = largest(row, sampling.logits_needed + 1 if enough else most or 50)[0]
    ids = np.random.default_rng(seed).permutation(ids).astype(np.int32)
    few = Candidates(ids, row[ids], lambda: asked.append(True) or row)
    if temperature == 0.0:
        assert Chain(sampling).best(few, history) == Chain(sampling).best(row, history)
    else:
        one, other = Chain(sampling).distribution(few, history), Chain(sampling).distribution(row, history)
        assert one.ids.tolist() == other.ids.tolist()
        assert one.probabilities.tolist() == other.probabilities.tolist()
    assert not (enough and asked)
    assert asked or enough or sampling.logits_needed is not None


def test_a_cut_row_whose_least_logit_others_may_equal_is_too_short():
    row = np.repeat(np.array([3.0, 2.0, 1.0], np.float32), 40)
    few = Candidates(np.arange(60, 20, -1), row[60:20:-1], lambda: row)
    chain = Chain(replace(DEFAULT, temperature=1.0, top_k=30, top_p=1.0, min_p=0.0))
    assert chain.distribution(few, ()).ids.tolist() == list(range(30))


@pytest.mark.parametrize(
    ("sampling", "needed"),
    [
        (DEFAULT, 40),
        (replace(DEFAULT, temperature=0.0), 1),
        (replace(DEFAULT, temperature=0.0, top_k=0), 1),
        (replace(DEFAULT, top_k=0), None),
        (replace(DEFAULT, **PENALTIES), 60),
        (replace(DEFAULT, **BOOSTS), None),
        (replace(DEFAULT, **{**PENALTIES, "repeat_last_n": -1}), None),
        (replace(DEFAULT, logit_bias=((1, -1.0), (2, -np.inf))), 42),
        (replace(DEFAULT, logit_bias=((1, 1.0),)), None),
    ],
)
def test_how_many_logits_are_needed(sampling, needed):
    assert sampling.logits_needed == needed


@given(
    seed=st.integers(0, 2**32),
    size=st.integers(1, 400),
    top_k=st.integers(0, 30),
    top_p=st.one_of(st.just(1.0), st.floats(0.0, 1.0)),
    min_p=st.one_of(st.just(0.0), st.floats(0.0, 1.0)),
    temperature=st.floats(0.01, 3.0),
    spread=st.sampled_from([0.0, 0.1, 3.0, 200.0]),
)
def test_whatever_the_settings_a_proper_distribution_comes_out(
    seed, size, top_k, top_p, min_p, temperature, spread
):
    row = (np.random.default_rng(seed).normal(size=size) * spread).astype(np.float32)
    found = Chain(Sampling(temperature, top_k, top_p, min_p)).distribution(row, [])
    assert found.probabilities.sum() == pytest.approx(1.0, abs=1e-12)
    assert (found.probabilities > 0.0).all()
    assert (np.diff(found.ids) > 0).all()
    assert row[found.ids].max() == row.max()
    assert len(found.ids) <= (top_k or size)


def test_the_row_is_left_alone():
    row = row_of(1)
    before = row.copy()
    for sampling in CHAINS.values():
        Chain(sampling).distribution(row, history_of(1))
        Chain(replace(sampling, temperature=0.0)).best(row, history_of(1))
    assert (row == before).all()


def test_penalties_see_the_history_and_only_its_tail():
    chain = Chain(replace(OPEN, presence_penalty=1.0, repeat_last_n=2))
    row = np.zeros(4, np.float32)
    assert chain.distribution(row, [0, 1, 2]).probabilities.argmin() in (1, 2)
    assert chain.distribution(row, [0, 1, 2]).of(0) == chain.distribution(row, [3, 1, 2]).of(3)
    whole = Chain(replace(OPEN, presence_penalty=1.0, repeat_last_n=-1))
    assert whole.distribution(row, [0, 1, 2]).probabilities.argmax() == 3


def test_equal_logits_are_settled_by_the_lowest_id():
    row = np.array([0.0, 2.0, 2.0, 1.0, 2.0], np.float32)
    assert Chain(Sampling(temperature=0.0)).best(row, []) == 1
    assert Chain(Sampling(temperature=0.0)).best(Candidates(np.array([4, 2, 1]), row[[4, 2, 1]]), []) == 1
    assert Chain(replace(OPEN, top_k=2)).distribution(row, []).ids.tolist() == [1, 2]


def test_tokens_that_only_the_draft_or_only_the_target_knows_are_passed_over():
    chain = Chain(replace(OPEN, presence_penalty=1.0, logit_bias=((9, -1.0),)))
    assert len(chain.distribution(np.zeros(4, np.float32), [7, 2]).ids) == 4


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("top_k", [0, 40])
@pytest.mark.parametrize("size", [10, 5000])
def test_a_row_that_is_not_finite_is_an_error(bad, temperature, top_k, size):
    row = row_of(3, size)
    row[7] = bad
    chain = Chain(Sampling(temperature=temperature, top_k=top_k))
    with pytest.raises(BackendFailure):
        chain.distribution(row, []) if temperature else chain.best(row, [])
    with pytest.raises(BackendFailure):
        chain.likeliest(row, [])


def test_a_row_of_bans_is_an_error():
    with pytest.raises(BackendFailure):
        Chain(DEFAULT).distribution(np.full(5000, -np.inf, np.float32), [])


WHOLE_TEXT = replace(
    DEFAULT, repeat_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.1, repeat_last_n=-1
)


@given(
    st.lists(st.lists(st.integers(0, 40), max_size=12), min_size=1, max_size=6),
    st.lists(st.integers(0, 40), max_size=5),
    st.sampled_from([WHOLE_TEXT, replace(WHOLE_TEXT, repeat_last_n=7), replace(WHOLE_TEXT, temperature=0.0)]),
)
def test_a_chain_that_counted_other_texts_finds_the_same(texts, more, sampling):
    chain, row = Chain(sampling), np.random.default_rng(1).normal(size=32).astype(np.float32)
    for text in texts:
        continued = (Continued(text, more), Continued(text, more[:2]))
        for history in (text, *continued, [*text, *more], text[:3], more):
            fresh = Chain(sampling)
            assert chain.likeliest(row, history) == fresh.likeliest(row, history)
            if not sampling.greedy:
                one, other = chain.distribution(row, history), fresh.distribution(row, history)
                assert one.ids.tolist() == other.ids.tolist()
                assert one.probabilities.tolist() == other.probabilities.tolist()


def test_a_long_text_is_counted_once_and_no_row_is_sorted_for_it(monkeypatch):
    counted, wanted = [], []
    count, select = np.bincount, chain_module.largest
    monkeypatch.setattr(np, "bincount", lambda tokens: counted.append(len(tokens)) or count(tokens))
    monkeypatch.setattr(chain_module, "largest", lambda row, n: wanted.append(n) or select(row, n))
    chain, text = Chain(WHOLE_TEXT), list(range(3000)) * 2
    row = np.random.default_rng(1).normal(size=20_000).astype(np.float32)
    for _ in range(10):
        for drafted in range(4):
            chain.distribution(row, Continued(text, range(drafted)))
        text += [5, 6, 7]
    assert counted == [6000]
    assert max(wanted) == WHOLE_TEXT.top_k + SPARE


def test_a_growing_text_has_the_penalties_of_the_whole_one():
    sampling = replace(WHOLE_TEXT, top_k=0, top_p=1.0, min_p=0.0)
    chain, text = Chain(sampling), list(range(3000)) * 2
    row = np.random.default_rng(1).normal(size=20_000).astype(np.float32)
    for step in range(5):
        for drafted in range(4):
            history = Continued(text, range(drafted))
            found, wanted = (each.distribution(row, history) for each in (chain, Chain(sampling)))
            assert found.probabilities.tolist() == wanted.probabilities.tolist()
        text += [7000 + step, 7]


def test_banned_tokens_that_min_p_removes_do_not_count_in_top_p():
    row = np.full(200, -10.0, np.float32)
    row[:3], row[3:33] = (10.0, 8.0, 7.1), 6.9
    assert Chain(DEFAULT).distribution(row, ()).ids.tolist() == [0, 1, 2]
    banned = replace(DEFAULT, logit_bias=tuple((token, -np.inf) for token in range(3, 33)))
    assert Chain(banned).distribution(row, ()).ids.tolist() == [0, 1]
