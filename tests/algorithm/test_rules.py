"""The rules by name, what they read, what a seed pins, and a draft's temperature that follows the target."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.algorithm.judgement import FACTORS, DraftTemperature, overlaps, sharpened
from localspec.algorithm.protocols import Proposal
from localspec.algorithm.verification import RULES, make_rule
from localspec.errors import BadSetting
from localspec.events import Origin
from localspec.sampler.chain import Chain, Distribution
from localspec.sampler.sampling import Sampling
from tests.algorithm.random_pairs import proposal_of

SYMBOLS = 50
HOT = Sampling(temperature=0.9)
COLD = Sampling(temperature=0.0)
SAMPLING_RULES = [name for name in RULES if name != "greedy"]


def row_favouring(token, by=9.0, seed=0):
    row = np.random.default_rng(seed).normal(size=SYMBOLS).astype(np.float32)
    row[token] += by
    return row


def one_hot(tokens, certain=0):
    return Proposal(tuple(tokens), (None,) * len(tokens), (1.0,) * len(tokens), certain=certain)


class Rows:
    """Rows that remember which of them were read."""

    def __init__(self, rows):
        self.rows = rows
        self.read = set()

    def __getitem__(self, i):
        self.read.add(i)
        return self.rows[i]


@pytest.mark.parametrize("name", RULES)
def test_every_rule_is_greedy_at_temperature_0_and_auto_is_block_above(name):
    assert make_rule(name, COLD, 1).name == "greedy"
    assert name == "greedy" or make_rule(name, HOT, 1).name == name.replace("auto", "block")


def test_an_unknown_rule_is_named_and_the_known_ones_are_listed():
    with pytest.raises(BadSetting, match="typo") as caught:
        make_rule("typo", HOT, 1)
    assert all(name in caught.value.hint for name in RULES)


def test_greedy_cannot_be_asked_for_at_a_temperature():
    with pytest.raises(BadSetting, match=r"0\.9"):
        make_rule("greedy", HOT, 1)


@pytest.mark.parametrize(
    ("drafted", "accepted", "next_token", "origin", "read"),
    [
        ((), 0, 3, Origin.PLAIN, {0}),
        ((3, 4), 2, 5, Origin.BONUS, {0, 1, 2}),
        ((3, 9), 1, 4, Origin.FIX, {0, 1}),
        ((9, 4), 0, 3, Origin.FIX, {0}),
    ],
)
def test_greedy_keeps_what_equals_the_argmax_and_reads_no_row_beyond(
    drafted, accepted, next_token, origin, read
):
    rows = Rows([row_favouring(3), row_favouring(4), row_favouring(5)])
    verdict = make_rule("greedy", COLD, 1).verify(rows, one_hot(drafted), [1, 2])
    assert (verdict.accepted, verdict.next_token, verdict.origin) == (accepted, next_token, origin)
    assert rows.read == read


@pytest.mark.parametrize("name", SAMPLING_RULES)
def test_chosen_tokens_are_judged_row_by_row(name):
    rows = Rows([row_favouring(3, by=30.0), row_favouring(4, by=30.0), row_favouring(5, by=30.0)])
    verdict = make_rule(name, HOT, 1).verify(rows, one_hot((9, 4)), [1, 2])
    assert (verdict.accepted, verdict.next_token) == (0, 3)
    assert rows.read == {0}


@pytest.mark.parametrize("name", RULES)
def test_certain_tokens_are_kept_without_reading_their_rows(name):
    sampling = COLD if name == "greedy" else HOT
    rows = Rows([row_favouring(1), row_favouring(1), row_favouring(5, by=30.0)])
    verdict = make_rule(name, sampling, 1).verify(rows, one_hot((7, 8), certain=2), [1, 2])
    assert (verdict.accepted, verdict.next_token, verdict.origin) == (2, 5, Origin.BONUS)
    assert rows.read == {2}


@pytest.mark.parametrize("name", SAMPLING_RULES)
def test_a_seed_pins_draws_and_verdicts_and_another_seed_does_not(name):
    def replay(seed):
        rule = make_rule(name, Sampling(temperature=1.5), seed)
        found = []
        for n in range(20):
            history = list(range(n + 1))
            draw = rule.draw(row_favouring(3, by=1.0, seed=n), history, len(history))
            proposal = Proposal((draw.token,), (draw.q,), (draw.confidence,))
            rows = [row_favouring(3, by=0.5, seed=n), row_favouring(8, by=0.5, seed=n)]
            found.append((draw.token, rule.verify(rows, proposal, history)))
        return found

    assert replay(5) == replay(5)
    assert replay(5) != replay(6)


@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_the_first_draft_is_drawn_at_the_temperature_of_the_request(temperature):
    sampling, row = Sampling(temperature=temperature), row_favouring(6)
    q = make_rule("block", sampling, 1).draw(row, [1], 1).q
    expected = Chain(sampling).distribution(row, [1])
    assert q is not None
    assert (q.ids.tolist(), q.probabilities.tolist()) == (
        expected.ids.tolist(),
        expected.probabilities.tolist(),
    )


@pytest.mark.parametrize("name", RULES)
def test_confidence_does_not_depend_on_the_token_that_is_drawn(name):
    sampling = COLD if name == "greedy" else Sampling(temperature=2.0)
    row = row_favouring(3, by=1.0)
    draws = [make_rule(name, sampling, seed).draw(row, [1], 1) for seed in range(40)]
    assert len({draw.confidence for draw in draws}) == 1
    if name != "greedy":
        assert len({draw.token for draw in draws}) > 1


def distribution(weights, ids=None):
    weights = np.array(weights, dtype=float)
    ids = np.arange(len(weights)) if ids is None else np.array(ids)
    return Distribution(ids, weights / weights.sum())


def after(p, q, cycles):
    sharpness = DraftTemperature()
    for cycle in range(cycles):
        sharpness.shape(q, cycle)
        sharpness.learn(cycle, 1, lambda i: p)
    return sharpness.factor


@pytest.mark.parametrize(
    ("target", "draft", "cycles", "factor"),
    [
        ([50, 1, 1, 1], [3, 2, 2, 2], 12, 0.0),  # flat beside a peaked target: its likeliest token
        ([4, 3, 2, 1], [4, 3, 2, 1], 12, 1.0),
        ([64, 16, 4, 1], [8, 4, 2, 1], 12, 0.5),  # the target made warmer
        ([50, 1, 1, 1], [3, 2, 2, 2], 2, 1.0),  # before there is evidence
    ],
)
def test_a_draft_is_cooled_as_far_as_its_target_keeps_most(target, draft, cycles, factor):
    assert after(distribution(target), distribution(draft), cycles) == factor


@given(
    p=st.lists(st.floats(0.01, 1), min_size=1, max_size=6),
    q=st.lists(st.floats(0.01, 1), min_size=1, max_size=6),
    shift=st.integers(0, 3),
)
def test_overlaps_are_the_chances_of_being_kept(p, q, shift):
    target, draft = distribution(p), distribution(q, range(shift, shift + len(q)))
    found = overlaps(target, draft)
    likeliest = int(draft.ids[draft.probabilities.argmax()])
    assert found[0] == pytest.approx(target.of(likeliest))
    for factor, overlap in zip(FACTORS[1:], found[1:], strict=True):
        cooler = sharpened(draft, factor)
        assert overlap == pytest.approx(sum(min(target.of(int(t)), cooler.of(int(t))) for t in draft.ids))


def test_positions_that_were_not_drawn_here_teach_nothing():
    sharpness = DraftTemperature()
    for cycle in range(20):
        sharpness.learn(cycle, 3, lambda i: distribution([1]))
    assert sharpness.factor == 1.0


def test_a_rule_comes_to_draft_as_sharply_as_its_target_keeps_most():
    rule = make_rule("block", Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0), 1)
    peaked = np.array([4.0, 0.0, 0.0, 0.0], dtype=np.float32)
    flat = np.array([0.5, 0.0, 0.0, 0.0], dtype=np.float32)
    text, drawn = [1], []
    for _ in range(8):
        draws = [rule.draw(flat, text, len(text)), rule.draw(flat, [*text, 0], len(text))]
        verdict = rule.verify([peaked] * 3, proposal_of(draws), text)
        text += [*(d.token for d in draws[: verdict.accepted]), verdict.next_token]
        drawn.append([d.q is not None for d in draws])
    assert drawn[0] == [True, True]
    assert drawn[-1] == [False, False]
