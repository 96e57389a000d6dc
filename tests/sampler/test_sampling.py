"""What a request may ask of the sampler, and what a model file may."""

import math
from contextlib import suppress
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec import options
from localspec.chat.request import biases_from
from localspec.errors import BadSetting
from localspec.sampler.chain import Chain
from localspec.sampler.passes import Candidates
from localspec.sampler.sampling import Sampling

WRONG = {
    "temperature": (-0.1, math.nan, math.inf, "warm", True),
    "top_k": (-1, 40.5),
    "top_p": (-0.1, 1.1, math.nan),
    "min_p": (1.5,),
    "repeat_penalty": (0.0, math.nan),
    "repeat_last_n": (-2,),
    "presence_penalty": (math.inf,),
    "frequency_penalty": (math.nan,),
    "logit_bias": (((-1, 1.0),), ((1, math.nan),), ((1, math.inf),)),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in WRONG for value in WRONG[name]])
def test_a_value_out_of_range_is_named_with_a_way_out(name, value):
    with pytest.raises(BadSetting, match=name) as caught:
        Sampling(**{name: value})
    assert caught.value.hint


@pytest.mark.parametrize(
    "allowed",
    [
        {"temperature": 0},
        {"top_k": 0, "top_p": 1, "min_p": 0},
        {"top_p": 0.0, "min_p": 1.0},
        {"repeat_last_n": -1},
        {"logit_bias": ((3, -math.inf),)},
    ],
)
def test_the_edges_of_the_ranges_are_allowed(allowed):
    Sampling(**allowed)


def test_the_wishes_of_a_file_become_the_defaults():
    metadata = {
        "general.sampling.temp": "0.600000",
        "general.sampling.top_k": "20",
        "general.sampling.top_p": "0.950000",
        "general.sampling.min_p": "0.000000",
        "general.sampling.penalty_last_n": "32",
        "general.sampling.penalty_repeat": "1.050000",
        "general.sampling.xtc_probability": "0.000000",
        "general.sampling.mirostat": "0",
        "general.sampling.mirostat_tau": "5.0",
    }
    sampling, troubles = Sampling.from_metadata(metadata)
    assert sampling == Sampling(0.6, 20, 0.95, 0.0, repeat_penalty=1.05, repeat_last_n=32)
    assert troubles == ()
    off = {"general.sampling.temp": "-1.0", "general.sampling.top_k": "-1"}  # as in llama.cpp
    assert Sampling.from_metadata(off) == (Sampling(0.0, 0), ())
    assert Sampling.from_metadata({"general.name": "x"}) == (Sampling(), ())


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("top_p", "abc", "abc"),
        ("top_p", "7.0", "7.0"),
        ("temp", "nan", "nan"),
        ("top_k", "1e9", "1e9"),
    ],
)
def test_what_cannot_be_met_is_reported_in_a_sentence(key, value, word):
    sampling, (sentence,) = Sampling.from_metadata({f"general.sampling.{key}": value})
    assert word in sentence
    assert sampling == Sampling()


ROW = np.random.default_rng(0).normal(size=300).astype(np.float32) * 5
HISTORY = [int(token) for token in np.random.default_rng(1).integers(0, 300, 80)]
# What float64 holds and float32 does not, whole numbers that neither holds, and the usual.
NUMBERS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([sign * 10.0**power for sign in (-1, 1) for power in (-320, -46, -39, -20, 20, 38, 39)]),
    st.integers(-(10**320), 10**320),
    st.integers(-2, 300),
    st.floats(0, 2),
)


def sampler_settings():
    """Every numeric option of the sampler, found by its declaration, and biases."""
    numeric = [field.name for field in fields(Sampling) if options.REPLY[field.name].kind in (int, float)]
    assert {"temperature", "top_p", "presence_penalty"} <= set(numeric)
    biases = st.tuples(st.just("logit_bias"), st.dictionaries(st.integers(0, 299), NUMBERS, max_size=2))
    each = st.one_of(biases, *(st.tuples(st.just(name), NUMBERS) for name in numeric))
    return st.lists(each, min_size=1, max_size=2).map(dict)


@given(sampler_settings())
@settings(max_examples=500)
def test_a_number_is_refused_or_the_sampler_can_work_with_it(chosen):
    with suppress(BadSetting):
        if "logit_bias" in chosen:
            chosen["logit_bias"] = biases_from(chosen["logit_bias"], None)
        sampling = Sampling(**{"top_k": 0, "temperature": 1.0} | chosen)
        works_with(sampling)


@pytest.mark.parametrize(
    "filters", [{"top_p": 1.0, "min_p": 0.0}, {"top_p": 0.95}, {"min_p": 0.05}, {"top_k": 40}]
)
@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-46, 1e-39, 1e-20, 1e-6])
def test_the_coldest_temperatures_are_greedy(temperature, filters):
    sampling = Sampling(temperature=temperature, **{"top_k": 0, "min_p": 0.0} | filters)
    assert works_with(sampling).of(int(ROW.argmax())) == pytest.approx(1.0)


def works_with(sampling):
    """The distribution of a row, which is one, without a warning of numpy's."""
    if all(bias == -math.inf for _, bias in sampling.logit_bias) and len(sampling.logit_bias) == len(ROW):
        return None
    with np.errstate(all="raise", under="ignore"):
        best = Chain(sampling).best(ROW, HISTORY)
        if sampling.greedy:
            return None
        order = (-ROW).argsort()
        for row in (ROW, Candidates(order, ROW[order], lambda: ROW)):
            for drafts in (False, True):
                found = Chain(sampling).distribution(row, HISTORY, drafts=drafts)
                shares = found.probabilities
                assert np.isfinite(shares).all()
                assert (shares > 0).all()
                assert shares.sum() == pytest.approx(1.0)
                assert found.of(best) == pytest.approx(shares.max())
    return found
