"""The draft's temperature follows what the target keeps: computed from p and q, not tried out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.speculation.protocols import Distribution
from localspec.speculation.sharpness import FACTORS, Sharpness, overlaps, sharpened


def distribution(weights, ids=None):
    weights = np.array(weights, dtype=float)
    ids = np.arange(len(weights)) if ids is None else np.array(ids)
    return Distribution(ids, weights / weights.sum())


def after(p, q, cycles=12):
    sharpness = Sharpness()
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
    sharpness = Sharpness()
    for cycle in range(20):
        sharpness.learn(cycle, 3, lambda i: distribution([1]))
    assert sharpness.factor == 1.0
