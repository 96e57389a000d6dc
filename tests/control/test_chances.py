"""The chance of a draft token: learned, quick to follow the reply, never certain, storable."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.control.acceptance import MANY, VARIANCES, WEIGHTS, AcceptanceModel, ChanceWeights, logistic

PROPOSALS = st.lists(
    st.tuples(st.lists(st.floats(-0.5, 1.5), max_size=8), st.integers(0, 8)).map(
        lambda drawn: (tuple(drawn[0]), min(drawn[1], len(drawn[0])))
    ),
    max_size=60,
)


def feed(chances, rate, cycles, *, confidence=0.8, depth=4, seed=1):
    """Replies of a text in which every draft token is kept at one rate, whatever its confidence."""
    draws = random.Random(seed)
    for _ in range(cycles):
        kept = 0
        while kept < depth and draws.random() < rate:
            kept += 1
        chances.learn((confidence,) * depth, kept, kept + 1)


def test_before_anything_was_seen_a_surer_token_has_the_better_chance():
    chances = AcceptanceModel()
    ordered = [chances.of(confidence, 0) for confidence in (0.0, 0.1, 0.5, 0.9, 0.99, 1.0)]
    assert ordered == sorted(ordered)
    assert ordered[1] < 0.55 < 0.8 < ordered[-2]


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.9])
def test_it_learns_what_a_confidence_is_worth(rate):
    chances = AcceptanceModel()
    feed(chances, rate, 400)
    average = sum(chances.of(0.8, i) for i in range(4)) / 4
    assert average == pytest.approx(rate, abs=0.12)


def test_confidence_that_tells_nothing_loses_its_weight_and_one_that_tells_all_gains_it():
    chance, deaf, telling = random.Random(1), AcceptanceModel(), AcceptanceModel()
    for _ in range(600):
        sure = chance.choice((0.3, 0.95))
        deaf.learn((sure,), int(chance.random() < 0.6), 1)
        telling.learn((sure,), int(sure > 0.5), 1)
    assert deaf.of(0.95, 0) - deaf.of(0.3, 0) < 0.2
    assert telling.of(0.95, 0) - telling.of(0.3, 0) > 0.7


def test_the_same_confidence_is_worth_less_in_a_reply_that_goes_badly():
    chances = AcceptanceModel()
    before = chances.of(0.6, 0)
    feed(chances, 0.0, 8)
    during = chances.of(0.6, 0)
    assert during < before - 0.2
    chances.begin()
    assert during < chances.of(0.6, 0)


def test_tokens_that_were_kept_before_it_in_the_proposal_speak_for_a_token():
    chances = AcceptanceModel()
    assert chances.ahead(0) < chances.ahead(3) < 1
    assert chances.of(0.7, 0) < chances.of(0.7, 3)


def test_tokens_behind_a_rejection_are_not_judged():
    judged, unjudged = AcceptanceModel(), AcceptanceModel()
    judged.learn((0.4,), 0, 1)
    unjudged.learn((0.4, 0.9, 0.1), 0, 1)
    assert judged.weights() == unjudged.weights()


def test_the_usual_share_is_that_of_judged_tokens():
    chances = AcceptanceModel()
    for _ in range(MANY // 4):
        assert chances.usual is None
        chances.learn((0.9,) * 5, 3, 4)  # the fifth is not judged
    assert chances.usual == 0.75


def test_doubt_that_was_never_put_to_the_test_does_not_confirm_itself():
    """After a bad stretch nothing is proposed any more; the doubt fades with the tokens that are written."""
    chances = AcceptanceModel()
    feed(chances, 0.0, 10)
    doubtful = chances.ahead(0)
    for _ in range(100):
        chances.learn((), 0, 1)
    assert doubtful < 0.4 < 0.6 < chances.ahead(0)


@pytest.mark.parametrize("rate", [0.1, 0.9])
def test_tokens_without_a_proposal_leave_the_chance_and_let_the_next_one_say_more(rate):
    at_once, later = AcceptanceModel(), AcceptanceModel()
    for chances in (at_once, later):
        feed(chances, rate, 20)
    known = later.ahead(0)
    later.fade(300)
    assert later.ahead(0) == pytest.approx(known)
    for chances in (at_once, later):
        chances.learn((0.8,), int(rate < 0.5), 1)
    assert abs(later.ahead(0) - known) > abs(at_once.ahead(0) - known)


@given(PROPOSALS, st.floats(-1, 2), st.integers(0, 16))
def test_a_chance_is_never_certain_whatever_was_seen(proposals, confidence, drafted):
    chances = AcceptanceModel()
    for confidences, accepted in proposals:
        chances.learn(confidences, accepted, accepted + 1)
        assert min(chances.weights().variances) > 0
    assert 0 < chances.of(confidence, drafted) < 1
    assert 0 < chances.ahead(drafted) < 1


@given(PROPOSALS)
def test_weights_survive_storage(proposals):
    chances = AcceptanceModel()
    for confidences, accepted in proposals:
        chances.learn(confidences, accepted, accepted + 1)
    assert AcceptanceModel(chances.weights()).weights() == chances.weights()


@pytest.mark.parametrize(
    ("weights", "variances"),
    [
        ((1.0, 2.0), (1.0, 1.0)),
        (WEIGHTS, (1.0, 1.0)),
        ((float("nan"), 0.0, 0.0), VARIANCES),
        (WEIGHTS, (1.0, float("inf"), 1.0)),
        (WEIGHTS, (1.0, -1.0, 1.0)),
        (WEIGHTS, (1.0, 1e150, 1.0)),
        ((1e9, 0.0, 0.0), VARIANCES),
    ],
)
def test_what_is_no_regression_is_refused(weights, variances):
    with pytest.raises(ValueError, match="weights"):
        ChanceWeights(weights, variances)


def test_logits_of_any_size_have_a_probability():
    assert 0 < logistic(-1e300) < 0.01
    assert 0.99 < logistic(1e300) < 1
