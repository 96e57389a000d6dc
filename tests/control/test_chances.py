"""The chance of a draft token: learned, quick to follow the reply, storable; and where it ends a proposal."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.control.acceptance import VARIANCES, WEIGHTS, AcceptanceModel, ChanceWeights, logistic
from localspec.control.costs import Costs, CostTable
from localspec.control.depth import DepthControl, Stopper
from tests.drafters.machine import Machine, propose

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


def test_tokens_behind_a_rejection_are_not_judged():
    judged, unjudged = AcceptanceModel(), AcceptanceModel()
    judged.learn((0.4,), 0, 1)
    unjudged.learn((0.4, 0.9, 0.1), 0, 1)
    assert judged.weights() == unjudged.weights()


def test_doubt_that_was_never_put_to_the_test_does_not_confirm_itself():
    """After a bad stretch nothing is proposed any more; the doubt fades with the tokens that are written."""
    chances = AcceptanceModel()
    feed(chances, 0.0, 10)
    doubtful = chances.ahead(0)
    for _ in range(100):
        chances.learn((), 0, 1)
    assert doubtful < 0.4 < 0.6 < chances.ahead(0)


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


TABLE = CostTable(
    (1, 2, 9), (1.0, 1.3, 3.4), {"model": 0.1}
)  # a token more costs 0.3 to verify and 0.1 to draft


class Believing:
    """AcceptanceModel without learning: a confidence is a probability, and all that is known of tokens ahead is one."""

    def __init__(self, ahead):
        self._ahead = ahead

    def of(self, confidence, drafted):
        return confidence

    def ahead(self, drafted):
        return self._ahead


def stopper(rate=1.0, ahead=0.7, table=TABLE):
    return Stopper(
        Believing(ahead),
        Costs(table).verify,
        lambda depth: table.run_seconds["model"] * depth,
        rate=rate,
        most=8,
    )


def proposed(stopping, confidences):
    return propose(stopping, confidences)[0]


@pytest.mark.parametrize(
    ("confidences", "kept"),
    [
        ([0.99] * 8, 8),
        ([0.99, 0.99, 0.05, 0.99], 2),
        ([0.02], 0),
        ([0.99, 0.99, 0.99, 0.7], 4),  # it is worth no more than the chance that all before it are kept
        ([0.8, 0.8, 0.8, 0.7], 3),
    ],
)
def test_sure_tokens_are_kept_and_doubtful_ones_end_the_proposal(confidences, kept):
    assert proposed(stopper(), confidences) == kept


def test_the_faster_the_run_the_more_a_token_must_promise():
    counts = [proposed(stopper(rate), [0.8] * 8) for rate in (0.5, 1.0, 1.5, 3.0)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1]


def test_a_stair_in_the_costs_is_looked_beyond():
    """Width 3 is dear and width 4 costs nothing more: stopping at the foot of the stair would be wrong."""
    stairs = CostTable((1, 2, 3, 4, 9), (1.0, 1.02, 1.9, 1.92, 2.0), {"model": 0.01})
    assert proposed(stopper(rate=2.0, ahead=0.95, table=stairs), [0.95] * 8) == 8


class Counting:
    """Costs that count how often they are computed."""

    measured, confirmed = True, True

    def __init__(self):
        self.computed = []

    def verify(self, width):
        return 1 + 0.1 * width

    def verify_for_proposal(self, width):
        self.computed.append(width)
        return self.verify(width)

    def draft(self, source, runs):
        self.computed.append(-runs)
        return 0.01 * runs


def test_a_cost_is_computed_once_in_a_cycle():
    costs = Counting()
    control = DepthControl(costs, Machine(None, 0.01, None), AcceptanceModel(), 12)
    proposed(control.stopping(12), [0.9] * 12)
    assert costs.computed
    assert len(set(costs.computed)) == len(costs.computed)
