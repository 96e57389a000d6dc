"""What was learned survives a restart, belongs to one machine and pair, and stops no run when damaged."""

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.algorithm.loop import speculate
from localspec.algorithm.verification import make_rule
from localspec.control.acceptance import ChanceWeights
from localspec.control.cost_table import CostTable
from localspec.drafters.lookup import LookupCounts
from localspec.drafters.model import ModelDrafter
from localspec.files import file_of, recalled, store
from localspec.models.drafting import DEPTHS, Acceptance, Drafting, TunedState, guess_for
from localspec.sampler.sampling import Sampling
from tests.algorithm.toys import Blend, Toy

STATE = TunedState(
    costs=(CostTable((1, 2, 8), (0.1, 0.12, 0.3), {"model": 0.01}, True, 0.02, 0.05, 300),),
    greedy=Acceptance(
        chances=ChanceWeights((-0.5, 0.9, 0.3), (0.2, 0.1, 0.1)),
        trust=LookupCounts((2.0,), (1.0,)),
    ),
)


def test_a_state_comes_back_as_it_was(tmp_path):
    store(tmp_path / "new" / "folder" / "x.json", STATE)
    assert recalled(tmp_path / "new" / "folder" / "x.json", TunedState) == STATE


def drafting_of(drafters=(), lessons=None):
    return Drafting(drafters, guess_for("cpu", {}), DEPTHS, most=32, lessons=lessons)


def test_everything_that_is_learned_can_be_stored(tmp_path):
    state = drafting_of([ModelDrafter(Toy(1), never)]).lessons
    store(tmp_path / "x.json", state)
    assert recalled(tmp_path / "x.json", TunedState) == state


def test_nothing_stored_is_nothing_known(tmp_path):
    assert recalled(tmp_path / "x.json", TunedState) is None


def test_every_part_of_a_key_counts(tmp_path):
    assert file_of(tmp_path, "a", "b") == file_of(tmp_path, "a", "b")
    assert (
        len({file_of(tmp_path, *key) for key in (("a", "b"), ("a", "c"), ("b", "b"), ("ab",), ("a\nb",))})
        == 5
    )
    assert file_of(tmp_path, "\udcff").parent == tmp_path


def damage(text):
    stored = json.loads(text)
    yield ""
    yield text[: len(text) // 2]
    yield "[1, 2]"
    yield "\x00" * 100
    for path, value in [
        (("costs", 0, "verify_seconds"), "fast"),
        (("costs", 0, "verify_seconds"), [0.1, float("nan"), 0.3]),
        (("costs", 0, "verify_seconds"), [0.1, 10**400, 0.3]),
        (("costs", 0, "verify_seconds"), [0.0, 0.0, 0.0]),
        (("costs", 0, "verify_seconds"), [0.1, 0.12]),
        (("costs", 0, "verify_seconds"), []),
        (("costs", 0, "widths"), [1, 2, 2]),
        (("costs", 0, "widths"), [2, 3, 8]),
        (("costs", 0, "run_seconds"), {"model": -1.0}),
        (("costs", 0, "direct_extra_seconds"), -1.0),
        (("greedy", "chances", "variances"), [0.1, -0.1, 0.1]),
        (("greedy", "trust", "kept"), [-1.0]),
        (("greedy",), None),
        (("unknown",), 1),
    ]:
        changed = json.loads(json.dumps(stored))
        inner = changed
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = value
        yield json.dumps(changed)
    stored["costs"][0] |= {"widths": [], "verify_seconds": []}
    yield json.dumps(stored)


def test_a_damaged_file_is_nothing_known_and_written_again(tmp_path):
    file = tmp_path / "x.json"
    store(file, STATE)
    for text in damage(file.read_text()):
        file.write_text(text)
        assert recalled(file, TunedState) is None, text
        store(file, STATE)
        assert recalled(file, TunedState) == STATE


def test_a_save_that_fails_leaves_the_old_file_alone(tmp_path, monkeypatch):
    file = tmp_path / "x.json"
    store(file, STATE)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space"):
            store(file, STATE)
    assert list(tmp_path.iterdir()) == [file]
    assert recalled(file, TunedState) == STATE


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
def test_whatever_numbers_a_file_holds_it_is_read_or_not_but_can_be_used(
    tmp_path_factory, costs, draft_step, extras, counts, weights
):
    file = tmp_path_factory.mktemp("lessons") / "x.json"
    store(file, STATE)
    stored = json.loads(file.read_text())
    stored["costs"][0] |= {
        "widths": [1 + sum(step for step, _ in costs[:i]) for i in range(len(costs))],
        "verify_seconds": [seconds for _, seconds in costs],
        "run_seconds": {"model": draft_step},
        "direct_extra_seconds": extras[0],
        "capture_extra_seconds": extras[1],
    }
    stored["sampled"] = {
        name: {"kept": [kept for kept, _ in pairs], "rejected": [rejected for _, rejected in pairs]}
        for name, pairs in counts.items()
    } | {"chances": {"weights": [w for w, _ in weights], "variances": [v for _, v in weights]}}
    file.write_text(json.dumps(stored))
    state = recalled(file, TunedState)
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
