"""The replay passes the rule of replies as it is and finds its faults, on rows of a toy pair."""

from contextlib import nullcontext

import numpy as np
import pytest

from localspec.measure.verify import law
from localspec.measure.verify.law import DRAFTED, Meeting, Replay
from localspec.sampler.sampling import Sampling
from tests.measure import faults

SAMPLING = Sampling(temperature=0.8, top_k=8, top_p=1.0, min_p=0.0)
COLD = Sampling(temperature=0.3, top_k=8, top_p=1.0, min_p=0.0)
TURNS = 15  # 750 texts in each of 4 worlds


def meetings(count=4 * DRAFTED, vocabulary=12):
    """Rows of a target, and of a draft that half agrees with it."""
    random = np.random.default_rng(7)

    def row():
        return random.normal(scale=1.5, size=vocabulary).astype(np.float32)

    def likened(target):
        return (0.5 * target + row()).astype(np.float32)

    targets = [row() for _ in range(count)]
    return [Meeting(target, likened(target)) for target in targets]


def result_of(fault=None, turns=TURNS, sampling=SAMPLING):
    with fault or nullcontext():
        replay = Replay(meetings(), sampling, seed=11)
        for _ in range(turns):
            replay.turn()
        return replay.result()


def test_the_rule_passes_as_it_is():
    found = result_of()
    assert found.exact, found
    assert found.texts == 4 * TURNS * law.TURN
    assert found.verifications > found.texts
    assert 0.05 < found.kept_share < 0.95


@pytest.mark.parametrize("fault", [lambda: faults.leaky_coins(0.1), faults.uncorrected_coins])
def test_every_fault_is_found(fault):
    assert not result_of(fault()).exact


def test_the_planned_number_of_texts_finds_the_leak_that_it_is_planned_for(monkeypatch):
    """At the size that a run chooses for itself: one of 5 % takes a sixth of the texts that one of 2 % takes."""
    monkeypatch.setattr(law, "LEAK", 0.05)
    monkeypatch.setattr(law, "FEWEST", 0)
    replay = Replay(meetings(), SAMPLING, seed=5)
    with faults.leaky_coins(law.LEAK):
        while replay.done < 1.0:
            replay.turn()
    found = replay.result()
    assert found.leak_p < law.EACH
    assert found.smallest_leak < law.LEAK


def test_a_token_that_the_law_excludes_is_an_alarm_of_its_own():
    narrow = Sampling(temperature=0.8, top_k=3, top_p=1.0, min_p=0.0)
    found = result_of(faults.everything_kept(), turns=1, sampling=narrow)
    assert found.impossible > 0
    assert not found.exact


def test_weights_have_no_mean_under_the_law():
    for world in Replay(meetings(), SAMPLING, seed=1).worlds:
        for row, leak in zip(world.target_rows, world.leaks, strict=False):
            p = law.RememberingChain(SAMPLING).distribution(row, ())
            assert sum(p.of(token) * weight for token, weight in leak.weights.items()) == pytest.approx(0)
            assert sum(map(p.of, leak.weights)) == pytest.approx(1)
            assert leak.pull >= 0.0


def test_replays_draw_fresh_randomness():
    one, other = (Replay(meetings(), SAMPLING, seed) for seed in (1, 2))
    one.turn()
    other.turn()
    assert one.result().leak_p != other.result().leak_p


def test_at_low_temperature_the_rule_passes_and_a_leak_is_found_too():
    assert result_of(turns=10, sampling=COLD).exact
    assert not result_of(faults.leaky_coins(0.2), turns=10, sampling=COLD).exact
