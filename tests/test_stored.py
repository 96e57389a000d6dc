"""What was learned survives a restart, belongs to one machine and pair, and stops no run when damaged."""

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.algorithm.loop import speculate
from localspec.algorithm.verification import make_rule
from localspec.control.acceptance import ChanceWeights
from localspec.control.costs import CostTable
from localspec.drafters.lookup import LookupCounts
from localspec.drafters.model import ModelDrafter
from localspec.files import Store
from localspec.models.drafting import DEPTHS, Acceptance, Drafting, TunedState, guess_for
from localspec.sampler.sampling import Sampling
from tests.algorithm.toys import Blend, Toy

KEY = {"target": "a.gguf 123", "draft": "b.gguf 45", "device": "cpu", "threads": "8"}
STATE = TunedState(
    costs=(CostTable((1, 2, 8), (0.1, 0.12, 0.3), {"model": 0.01}, True, 0.02, 0.05, 300),),
    greedy=Acceptance(
        chances=ChanceWeights((-0.5, 0.9, 0.3), (0.2, 0.1, 0.1)),
        trust=LookupCounts((2.0,), (1.0,)),
    ),
)


def test_a_state_comes_back_as_it_was(tmp_path):
    Store(tmp_path / "new" / "folder").save(KEY, STATE)
    assert Store(tmp_path / "new" / "folder").load(KEY, TunedState) == STATE


def drafting_of(drafters=(), lessons=None):
    return Drafting(drafters, guess_for("cpu", {}), DEPTHS, most=32, lessons=lessons)


def test_everything_that_is_learned_can_be_stored(tmp_path):
    state = drafting_of([ModelDrafter(Toy(1), never)]).lessons
    Store(tmp_path).save(KEY, state)
    assert Store(tmp_path).load(KEY, TunedState) == state


def test_nothing_stored_is_nothing_known(tmp_path):
    assert Store(tmp_path).load(KEY, TunedState) is None


@pytest.mark.parametrize("part", KEY)
def test_another_file_device_or_thread_count_starts_afresh(tmp_path, part):
    Store(tmp_path).save(KEY, STATE)
    assert Store(tmp_path).load(KEY | {part: "other"}, TunedState) is None


def damage(text):
    stored = json.loads(text)
    yield ""
    yield text[: len(text) // 2]
    yield "[1, 2]"
    yield "\x00" * 100
    for path, value in [
        (("version",), 99),
        (("value", "costs", 0, "verify_seconds"), "fast"),
        (("value", "costs", 0, "verify_seconds"), [0.1, float("nan"), 0.3]),
        (("value", "costs", 0, "verify_seconds"), [0.1, 10**400, 0.3]),
        (("value", "costs", 0, "verify_seconds"), [0.0, 0.0, 0.0]),
        (("value", "costs", 0, "verify_seconds"), [0.1, 0.12]),
        (("value", "costs", 0, "verify_seconds"), []),
        (("value", "costs", 0, "widths"), [1, 2, 2]),
        (("value", "costs", 0, "widths"), [2, 3, 8]),
        (("value", "costs", 0, "run_seconds"), {"model": -1.0}),
        (("value", "costs", 0, "direct_extra_seconds"), -1.0),
        (("value", "greedy", "chances", "variances"), [0.1, -0.1, 0.1]),
        (("value", "greedy", "trust", "kept"), [-1.0]),
        (("value", "greedy"), None),
        (("value", "unknown"), 1),
    ]:
        changed = json.loads(json.dumps(stored))
        inner = changed
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = value
        yield json.dumps(changed)
    stored["value"]["costs"][0] |= {"widths": [], "verify_seconds": []}
    yield json.dumps(stored)


def test_a_damaged_file_is_set_aside_and_written_again(tmp_path):
    store = Store(tmp_path)
    store.save(KEY, STATE)
    for text in damage(store.path(KEY).read_text()):
        store.path(KEY).write_text(text)
        assert store.load(KEY, TunedState) is None, text
        assert not store.path(KEY).exists()
        aside = store.path(KEY).with_name(f"{store.path(KEY).name}.damaged")
        assert aside.read_text() == text
        aside.unlink()
        store.save(KEY, STATE)
        assert store.load(KEY, TunedState) == STATE


def test_a_save_that_fails_leaves_the_old_file_alone(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.save(KEY, STATE)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space"):
            store.save(KEY, STATE)
    assert list(tmp_path.iterdir()) == [store.path(KEY)]
    assert store.load(KEY, TunedState) == STATE


SECONDS = st.just(0.0) | st.floats(1e-6, 1e6)
COUNTS = st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e9)), max_size=12)


@given(
    costs=st.lists(st.tuples(st.integers(1, 9), SECONDS), min_size=1, max_size=6),
    draft_step=SECONDS,
    extras=st.tuples(SECONDS, SECONDS),
    counts=st.fixed_dictionaries({"trust": COUNTS}),
    weights=st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(0, 1e3)), min_size=3, max_size=3),
)
@settings(max_examples=60)
def test_whatever_numbers_a_file_holds_it_is_set_aside_or_can_be_used(
    tmp_path_factory, costs, draft_step, extras, counts, weights
):
    store = Store(tmp_path_factory.mktemp("lessons"))
    store.save(KEY, STATE)
    stored = json.loads(store.path(KEY).read_text())
    stored["value"]["costs"][0] |= {
        "widths": [1 + sum(step for step, _ in costs[:i]) for i in range(len(costs))],
        "verify_seconds": [seconds for _, seconds in costs],
        "run_seconds": {"model": draft_step},
        "direct_extra_seconds": extras[0],
        "capture_extra_seconds": extras[1],
    }
    stored["value"]["sampled"] = {
        name: {"kept": [kept for kept, _ in pairs], "rejected": [rejected for _, rejected in pairs]}
        for name, pairs in counts.items()
    } | {"chances": {"weights": [w for w, _ in weights], "variances": [v for _, v in weights]}}
    store.path(KEY).write_text(json.dumps(stored))
    state = store.load(KEY, TunedState)
    if state is None:
        assert not all(seconds for _, seconds in costs)
        return
    rule, target, tokens = make_rule("block", Sampling(), 1), Toy(1), [1, 2, 3]
    list(target.prefill(tokens[:-1]))
    drafting = drafting_of([ModelDrafter(Blend(1, 0.9), never)], state)
    strategy = drafting.strategy_at(None, rule, sampled=True)
    cycles = speculate(target, strategy, tokens, rule=rule, room=20, is_end=never)
    assert sum(len(cycle.tokens) for cycle in cycles) == 20


def never(token):
    return False


def test_nothing_unfinished_stays_behind(tmp_path):
    Store(tmp_path).save(KEY, STATE)
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]
