"""Acceptance by position: unbiased under censoring, quick to notice change, storable."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.speculation.hazards import PRIOR_RATE, REMEMBERED, HazardCounts, Hazards

CYCLES = st.lists(st.integers(0, 8).flatmap(lambda d: st.tuples(st.just(d), st.integers(0, d))), max_size=80)


def feed(hazards, rates, cycles, depth, seed=0):
    chance = random.Random(seed)
    for _ in range(cycles):
        kept = 0
        while kept < depth and chance.random() < rates[kept]:
            kept += 1
        hazards.learn(depth, kept, kept + 1)


@given(CYCLES, st.floats(0, 3))
def test_rates_are_probabilities(cycles, optimism):
    hazards = Hazards(8)
    for drafted, accepted in cycles:
        hazards.learn(drafted, accepted, accepted + 1)
    assert all(0 <= rate <= 1 for rate in hazards.rates(optimism))
    assert all(bold >= rate for bold, rate in zip(hazards.rates(optimism), hazards.rates(), strict=True))


def test_an_unknown_draft_is_believed_to_be_ordinary():
    assert Hazards(4).rates() == pytest.approx([PRIOR_RATE] * 4)


def test_positions_behind_a_rejection_are_not_counted_against_the_draft():
    """The second token is always right when it is reached, which is rarely."""
    hazards = Hazards(3)
    feed(hazards, [0.3, 1.0, 1.0], cycles=300, depth=3)
    first, second, _ = hazards.rates()
    assert first == pytest.approx(0.3, abs=0.12)
    assert second > 0.85


def test_a_change_of_text_is_noticed_within_thirty_tokens():
    hazards = Hazards(3)
    feed(hazards, [0.95] * 3, cycles=100, depth=3)
    assert hazards.rates()[0] > 0.85
    feed(hazards, [0.0] * 3, cycles=30, depth=3)
    assert hazards.rates()[0] < 0.25


def test_tokens_left_out_for_doubt_count_as_their_chance():
    """A draft that proposes only what it is sure of must not look as if it were always right."""
    flattering, honest = Hazards(1), Hazards(1)
    chance = random.Random(1)
    for _ in range(300):
        sure = chance.random() < 0.5
        flattering.learn(int(sure), int(sure), 1 + int(sure))
        honest.learn(int(sure), int(sure), 1 + int(sure), dropped=None if sure else 0.2)
    assert flattering.rates()[0] > 0.9
    assert honest.rates()[0] == pytest.approx(0.6, abs=0.1)


@given(CYCLES)
def test_counts_survive_storage(cycles):
    hazards = Hazards(8)
    for drafted, accepted in cycles:
        hazards.learn(drafted, accepted, accepted + 1)
    again = Hazards(8, hazards.counts())
    assert again.counts() == hazards.counts()


def test_another_reply_may_contradict_the_ones_before_it():
    hazards = Hazards(3)
    feed(hazards, [0.9] * 3, cycles=200, depth=3)
    believed = hazards.rates()[0]
    hazards.begin()
    assert hazards.rates()[0] == pytest.approx(believed, abs=0.05)
    assert hazards.samples == pytest.approx(REMEMBERED)
    feed(hazards, [0.0] * 3, cycles=20, depth=3)
    assert hazards.rates()[0] < 0.4


def test_counts_of_a_deeper_controller_fit_a_shallower_one():
    deep = Hazards(8)
    feed(deep, [0.9] * 8, cycles=50, depth=8)
    assert Hazards(3, deep.counts()).rates()[0] == pytest.approx(deep.rates()[0], abs=0.05)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
def test_counts_are_finite_and_not_negative(wrong):
    for kept, rejected in [(wrong, 1.0), (1.0, wrong)]:
        with pytest.raises(ValueError, match="finite and not negative"):
            HazardCounts((kept,), (rejected,))
