"""What a request may ask of the sampler, and what a model file may."""

import math

import pytest

from localspec.errors import BadSetting
from localspec.sampler.sampling import Sampling


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "warm"),
        ("temperature", True),
        ("top_k", -1),
        ("top_k", 40.5),
        ("top_p", -0.1),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("min_p", 1.5),
        ("repeat_penalty", 0.0),
        ("repeat_penalty", math.nan),
        ("repeat_last_n", -2),
        ("presence_penalty", math.inf),
        ("frequency_penalty", math.nan),
        ("logit_bias", ((-1, 1.0),)),
        ("logit_bias", ((1, math.nan),)),
        ("logit_bias", ((1, math.inf),)),
    ],
)
def test_a_value_out_of_range_is_named_with_a_way_out(name, value):
    with pytest.raises(BadSetting, match=name) as caught:
        Sampling(**{name: value})
    assert caught.value.hint


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0},
        {"top_k": 0, "top_p": 1, "min_p": 0},
        {"top_p": 0.0, "min_p": 1.0},
        {"repeat_last_n": -1},
        {"logit_bias": ((3, -math.inf),)},
    ],
)
def test_the_edges_of_the_ranges_are_allowed(settings):
    Sampling(**settings)


def test_a_file_without_wishes_gives_the_defaults():
    assert Sampling.from_metadata({"general.name": "x"}) == (Sampling(), ())


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


def test_negative_numbers_that_mean_off_in_llama_cpp_mean_off_here():
    sampling, troubles = Sampling.from_metadata(
        {"general.sampling.temp": "-1.0", "general.sampling.top_k": "-1"}
    )
    assert (sampling.temperature, sampling.top_k, troubles) == (0.0, 0, ())


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("top_p", "abc", "abc"),
        ("top_p", "7.0", "7.0"),
        ("temp", "nan", "nan"),
        ("top_k", "1e9", "1e9"),
    ],
)
def test_what_cannot_be_met_is_said_in_a_sentence(key, value, word):
    sampling, (sentence,) = Sampling.from_metadata({f"general.sampling.{key}": value})
    assert word in sentence
    assert sampling == Sampling()
