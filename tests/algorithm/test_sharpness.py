"""The draft's temperature follows what the target keeps: computed from p and q, not tried out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.algorithm.sharpness import FACTORS, DraftTemperature, overlaps, sharpened
from localspec.algorithm.verification import make_rule
from localspec.sampler.chain import Distribution
from localspec.sampler.sampling import Sampling
from tests.algorithm.random_pairs import proposal_of


def distribution(weights, ids=None):
    weights = np.array(weights, dtype=float)
    ids = np.arange(len(weights)) if ids is None else np.array(ids)
    return Distribution(ids, weights / weights.sum())


def after(p, q, cycles=12):
    sharpness = DraftTemperature()
    for cycle in range(cycles):
        sharpness.shape(q, cycle)
        sharpness.learn(cycle, 1, lambda i: p)
    return sharpness.factor


def test_a_flat_draft_of_a_peaked_target_ends_at_its_likeliest_token():
    assert after(distribution([50, 1, 1, 1]), distribution([3, 2, 2, 2])) == 0.0


def test_a_draft_that_is_its_target_keeps_its_temperature():
    alike = distribution([4, 3, 2, 1])
    assert after(alike, alike) == 1.0


def test_a_draft_that_is_the_target_made_warmer_is_cooled_to_it():
    p = distribution([8, 4, 2, 1])
    assert after(p, distribution(p.probabilities**0.5)) == 0.5


def test_nothing_changes_before_there_is_evidence():
    assert after(distribution([50, 1, 1, 1]), distribution([3, 2, 2, 2]), cycles=2) == 1.0


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
