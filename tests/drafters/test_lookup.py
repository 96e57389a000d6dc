"""Lookup: the index against brute force, the statistic, the trust in it, and conversations that change."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from localspec.drafters.lookup import PRIOR, GrowingIndex, LookupAcceptance, LookupDrafter, keys_of

TOKENS = st.lists(st.integers(0, 3), max_size=150)


def brute_force(tokens, gram):
    return [i for i in range(len(tokens) - 1, 1, -1) if tuple(tokens[i - 2 : i + 1]) == gram]


def grams(tokens):
    return {tuple(tokens[i : i + 3]) for i in range(len(tokens) - 2)} | {(9, 9, 9)}


@given(st.lists(st.tuples(TOKENS, st.integers(0, 150)), max_size=6))
@settings(deadline=None)
def test_the_growing_index_knows_every_place_whatever_came_and_went(steps):
    index, tokens = GrowingIndex(), []
    for more, length in steps:
        index.extend(more)
        tokens += more
        index.cut(length)
        del tokens[length:]
        assert index.length == len(tokens)
        assert index.tokens[: index.length].tolist() == tokens
        for gram in grams(tokens):
            assert index.places(int(keys_of(np.array(gram))[0]), 10**6) == brute_force(tokens, gram)


def trusting():
    """A drafter that has learned to believe what it finds."""
    drafter = LookupDrafter()
    for match in (3, 4, 6, 9, 17, 33):
        for _ in range(100):
            drafter.trust.learn(match, (1.0,) * 16, 16, 0)
            drafter.trust.learn(match, (0.6,) * 16, 16, 0)
    return drafter


def test_it_proposes_what_followed_before():
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]
    assert trusting().propose(text, 4).tokens == (4, 5, 6, 7)


def test_the_more_frequent_continuation_wins():
    text = [1, 2, 3, 7, 0, 1, 2, 3, 8, 0, 1, 2, 3, 8, 0, 1, 2, 3]
    assert trusting().find(text, 1).tokens == (8,)


def test_a_longer_match_outranks_a_more_frequent_short_one():
    text = [9, 1, 2, 3, 7, 0, 5, 1, 2, 3, 8, 0, 6, 1, 2, 3, 8, 0, 9, 1, 2, 3]
    assert LookupDrafter().find(text, 1).tokens == (7,)


@pytest.mark.parametrize("text", [[], [1], [1, 2], [1, 2, 3], [1, 2, 3, 4, 5]])
def test_nothing_is_proposed_where_nothing_repeats(text):
    assert LookupDrafter().propose(text, 8).tokens == ()


@given(st.lists(TOKENS, min_size=1, max_size=5), st.integers(0, 20))
@example([[1, 1, 1, 1], [0, 1, 0, 1, 0]], 1)
@settings(deadline=None)
def test_after_any_change_of_text_it_answers_like_a_fresh_one(texts, limit):
    """New prompts with a common prefix, shorter or edited conversations: nothing stale remains."""
    drafter = LookupDrafter()
    for text in texts:
        drafter.begin()
        drafter.find(text, 4)
        drafter.find(text, 4)
        assert drafter.find(text, limit) == LookupDrafter().find(text, limit)


def test_a_text_that_was_cut_and_went_on_differently_in_place_is_noticed():
    drafter, text = LookupDrafter(), [1, 2, 3, 4, 5, 6, 7, 8]
    drafter.find(text, 4)
    del text[3:]
    text += [9, 9, 9, 9, 9, 9, 1, 2, 3]
    assert drafter.find(text, 2) == LookupDrafter().find(text, 2)


def test_trust_follows_what_became_of_guesses():
    drafter = LookupDrafter()
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]
    before = drafter.find(text, 4).expected
    for _ in range(40):
        drafter.find(text, 4)
        drafter.find([*text, 99], 4)
    assert drafter.find(text, 4).expected < before / 3


def test_tokens_after_the_first_wrong_one_are_not_judged():
    trust = LookupAcceptance()
    for _ in range(50):
        trust.learn(40, (1.0,), 0, 1)
    assert trust.rate(40, 0, 1.0) < 0.2
    assert trust.rate(40, 5, 1.0) == PRIOR[-1]


def test_trust_survives_storage_and_a_very_long_conversation():
    trust = LookupAcceptance()
    for i in range(20_000):
        trust.learn(5 + i % 40, (1.0, 0.5), i % 3, 5)
    again = LookupAcceptance(trust.counts())
    for match in (3, 8, 40):
        assert again.rate(match, 1, 0.5) == pytest.approx(trust.rate(match, 1, 0.5))
        assert 0 < trust.rate(match, 0, 1.0) < 1
