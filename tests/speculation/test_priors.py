"""What was learned survives a restart, belongs to one machine and pair, and stops no run when damaged."""

import json

import pytest

from localspec.drafters.tuning import Acceptance, Tuning, TuningState, depths_for, guess_for
from localspec.speculation.costs import CostTable
from localspec.speculation.hazards import HazardCounts
from localspec.speculation.priors import Priors

KEY = {"target": "a.gguf 123", "draft": "b.gguf 45", "device": "cpu", "threads": "8"}
STATE = TuningState(
    costs=CostTable((1, 2, 8), (0.1, 0.12, 0.3), 0.01, True, 1.05),
    greedy=Acceptance(hazards=HazardCounts((3.0, 2.0), (1.0, 0.5))),
)


def test_a_state_comes_back_as_it_was(tmp_path):
    Priors(tmp_path / "new" / "folder").save(KEY, STATE)
    assert Priors(tmp_path / "new" / "folder").load(KEY, TuningState) == STATE


def test_everything_that_a_tuning_learns_can_be_stored(tmp_path):
    state = Tuning(guess_for("cpu"), depths_for("cpu"), most=32).state()
    Priors(tmp_path).save(KEY, state)
    assert Priors(tmp_path).load(KEY, TuningState) == state


def test_nothing_stored_is_nothing_known(tmp_path):
    assert Priors(tmp_path).load(KEY, TuningState) is None


@pytest.mark.parametrize("part", KEY)
def test_another_file_device_or_thread_count_starts_afresh(tmp_path, part):
    Priors(tmp_path).save(KEY, STATE)
    assert Priors(tmp_path).load(KEY | {part: "other"}, TuningState) is None


def damage(text):
    stored = json.loads(text)
    yield ""
    yield text[: len(text) // 2]
    yield "[1, 2]"
    yield "\x00" * 100
    for path, value in [
        (("version",), 99),
        (("value", "costs", "verify_seconds"), "fast"),
        (("value", "costs", "verify_seconds"), [0.1, float("nan"), 0.3]),
        (("value", "costs", "draft_step_seconds"), -1.0),
        (("value", "greedy"), None),
        (("value", "unknown"), 1),
    ]:
        changed = json.loads(json.dumps(stored))
        inner = changed
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = value
        yield json.dumps(changed)


def test_a_damaged_file_is_set_aside_and_written_again(tmp_path):
    priors = Priors(tmp_path)
    priors.save(KEY, STATE)
    for text in damage(priors.path(KEY).read_text()):
        priors.path(KEY).write_text(text)
        assert priors.load(KEY, TuningState) is None, text
        assert not priors.path(KEY).exists()
        assert priors.path(KEY).with_suffix(".damaged").exists()
        priors.save(KEY, STATE)
        assert priors.load(KEY, TuningState) == STATE


def test_nothing_unfinished_stays_behind(tmp_path):
    Priors(tmp_path).save(KEY, STATE)
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]
