"""The replay passes the rules as they are and finds every fault, on rows of a toy pair."""

from contextlib import nullcontext

import numpy as np
import pytest

from localspec.measure.verify import law
from localspec.measure.verify.law_replay import LawTrial, Replay, place
from localspec.measure.verify.law_worlds import DRAFTED, Meeting, RememberingChain, worlds_of
from localspec.sampler.sampling import Sampling
from tests.measure import faults

SAMPLING = Sampling(temperature=0.8, top_k=8, top_p=1.0, min_p=0.0)
TURNS = 40  # 2000 texts in each of 4 worlds


def meetings(count=4 * DRAFTED, vocabulary=12):
    """Rows of a target, and of a draft that half agrees with it."""
    random = np.random.default_rng(7)

    def row():
        return random.normal(scale=1.5, size=vocabulary).astype(np.float32)

    def likened(target):
        return (0.5 * target + row()).astype(np.float32)

    found = []
    for _ in range(count):
        target = row()
        found.append(Meeting(target, likened(target)))
    return found


def result_of(trial, fault=None, turns=TURNS, sampling=SAMPLING):
    with fault or nullcontext():
        replay = Replay(trial, meetings(), sampling, seed=11)
        for _ in range(turns):
            replay.turn()
        return law.result(replay)


@pytest.mark.parametrize("trial", law.TRIALS, ids=lambda trial: trial.name)
def test_every_rule_passes_as_it_is(trial):
    found = result_of(trial)
    assert found.exact, found
    assert found.texts == 4 * TURNS * 50
    assert found.verifications > found.texts
    assert 0.05 < found.kept_share < 0.95


BLOCK, CHOSEN, REJECTION, COUPLED, COMPARE = law.TRIALS


@pytest.mark.parametrize(
    ("trial", "fault"),
    [
        (BLOCK, lambda: faults.leaky_coins(0.1)),
        (CHOSEN, lambda: faults.leaky_coins(0.1)),
        (REJECTION, lambda: faults.leaky_coins(0.1)),
        (COUPLED, lambda: faults.leaky_comparison(0.1)),
        (COMPARE, lambda: faults.leaky_comparison(0.1)),
        (REJECTION, faults.no_residual),
        (CHOSEN, faults.no_residual),
        (BLOCK, faults.uncorrected_coins),
        (BLOCK, faults.coin_of_the_draft),
    ],
)
def test_every_fault_is_found(trial, fault):
    assert not result_of(trial, fault()).exact


def test_the_planned_number_of_texts_finds_a_leak_of_two_percent():
    """At the size that a run chooses for itself; the directed test alone, with room to spare."""
    replay = Replay(BLOCK, meetings(), SAMPLING, seed=5)
    with faults.leaky_coins(law.LEAK):
        while replay.texts < law.texts_needed(replay):
            replay.turn()
    found = law.result(replay)
    assert found.leak_p < law.EACH
    assert found.smallest_leak < law.LEAK


def test_a_token_that_the_law_excludes_is_an_alarm_of_its_own():
    narrow = Sampling(temperature=0.8, top_k=3, top_p=1.0, min_p=0.0)
    found = result_of(COMPARE, faults.leaky_comparison(0.05), turns=4, sampling=narrow)
    assert found.impossible > 0
    assert not found.exact


def test_replays_end_when_all_is_planned_and_enough(monkeypatch):
    monkeypatch.setattr(law, "REPLAYS", 3000)
    monkeypatch.setattr(law, "FEWEST", 300)
    monkeypatch.setattr(law, "MOST", 300)
    trials = law.replays(meetings(), SAMPLING, seed=1)
    shares = list(law.run(trials))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert sum(trial.verified for trial in trials) >= 3000
    assert all(trial.texts >= 300 for trial in trials)


@pytest.mark.parametrize("drawn", [True, False])
def test_weights_have_no_mean_under_the_law_and_groups_hold_all_of_it(drawn):
    for world in worlds_of(meetings()):
        for position in place(world, RememberingChain(SAMPLING), drawn=drawn).positions:
            shares = np.bincount(position.groups, weights=position.p.probabilities)
            assert shares.sum() == pytest.approx(1.0)
            if position.leak:
                assert position.p.probabilities @ position.leak.weights == pytest.approx(0.0, abs=1e-12)
                assert position.leak.pull >= 0.0


def test_trials_draw_fresh_randomness():
    one, other = (
        Replay(LawTrial("block", "block", drawn=True), meetings(), SAMPLING, seed) for seed in (1, 2)
    )
    one.turn()
    other.turn()
    assert one.places[0].counts != other.places[0].counts


@pytest.mark.parametrize("trial", [BLOCK, COUPLED], ids=lambda trial: trial.name)
def test_at_low_temperature_rules_pass_and_a_leak_is_found_too(trial):
    cold = Sampling(temperature=0.3, top_k=8, top_p=1.0, min_p=0.0)
    assert result_of(trial, turns=10, sampling=cold).exact
    with faults.leaky_coins(0.2), faults.leaky_comparison(0.2):
        assert not result_of(trial, turns=10, sampling=cold).exact
