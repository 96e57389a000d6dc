"""What the engine process makes of requests, without the process."""

from types import SimpleNamespace

import pytest
from localspec.tui.state.engine import EngineState

from localspec import api
from localspec.engine.messages import Generate, LoadPair, Question, Ready
from localspec.engine.requests import MANY_CORES, PairRequests
from localspec.events import Started
from localspec.loading import load as loading
from localspec.models.registry import named
from localspec.prompt.messages import Infill, Message, NoInfill

CORES = 2 * MANY_CORES


@pytest.fixture(autouse=True)
def many_cores(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    for module in (api, loading):
        monkeypatch.setattr(module, "default_threads", lambda: CORES)


def threads_of(request):
    """Of target and draft, on idle cores."""
    handler, reports = PairRequests(), []
    handler.perform(request, reports.append, lambda: False)
    assert isinstance(reports[-1], Ready)
    engine = handler._session.pair
    try:
        return [context.threads.usual for context in (engine.target, engine.drafters[0].decoder)]
    finally:
        handler.close()


def test_a_tiny_pair_decodes_on_one_thread_however_many_cores_there_are():
    assert threads_of(LoadPair(named("demo"))) == [1, 1]


def test_threads_that_are_set_are_used(monkeypatch, tmp_path):
    assert threads_of(LoadPair(named("demo"), options={"threads": 2})) == [2, 2]
    (tmp_path / "config.toml").write_text("threads = 3")
    assert threads_of(LoadPair(named("demo"))) == [3, 3]
    monkeypatch.setenv("LOCALSPEC_THREADS", "4")
    assert threads_of(LoadPair(named("demo"))) == [4, 4]


def test_a_large_model_leaves_the_terminal_a_core(monkeypatch):
    monkeypatch.setattr(loading, "SMALL_BYTES", 0)
    assert threads_of(LoadPair(named("demo"))) == [CORES - 1] * 2


@pytest.mark.parametrize(
    ("cores", "usable", "draws"), [(2, 2, True), (2, 4, True), (2, 2, False), (1, 1, True)]
)
def test_where_cores_are_few_a_chat_has_one_that_no_model_decodes_on(monkeypatch, cores, usable, draws):
    """Then it is no other program to them; prompts are read on all cores, while nothing is drawn."""
    monkeypatch.setattr(loading, "SMALL_BYTES", 0)
    names = (
        (api, "default_threads", cores),
        (loading, "default_threads", cores),
        (api, "usable_cores", usable),
    )
    for module, name, count in names:
        monkeypatch.setattr(module, name, lambda count=count: count)
    handler = PairRequests()
    handler.perform(LoadPair(named("demo"), draws=draws), lambda _: None, lambda: False)
    engine = handler._session.pair
    try:
        for context in (engine.target, engine.drafters[0].decoder):
            left = 1 if draws and cores > 1 and usable == cores else 0
            assert (context.threads.contention is None) == (cores == 1)
            context.threads.contention = None  # as on idle cores
            counts = [context.threads.wanted(width) for width in (1, 8, 33, 256)]
            assert counts == [cores - left] * 3 + [cores]
    finally:
        handler.close()


@pytest.mark.parametrize(
    ("all_on_gpu", "wanted", "spare", "threads"),
    [(True, None, 0, 4), (True, 6, 0, 6), (False, None, 0, CORES), (False, 6, 0, 6), (False, None, CORES, 1)],
)
def test_all_cores_decode_and_four_threads_beside_a_gpu_that_does_it_all(all_on_gpu, wanted, spare, threads):
    model = SimpleNamespace(size_bytes=loading.SMALL_BYTES, all_on_gpu=all_on_gpu)
    assert loading.threads_for(model, wanted=wanted, spare_cores=spare) == threads


def test_the_configured_system_prompt_is_not_in_a_conversation_without_one(monkeypatch):
    monkeypatch.setenv("LOCALSPEC_SYSTEM", "Answer in French.")
    handler = PairRequests()
    handler.perform(LoadPair(named("demo")), lambda _: None, lambda: False)
    state = EngineState(SimpleNamespace(), LoadPair(named("demo")))
    asked, reports = (Message("user", "Hello"),), []
    try:
        options = {**state.options_for(asked), "max_tokens": 2}
        handler.perform(Generate(1, asked, options), reports.append, lambda: False)
        (started,) = (report for report in reports if isinstance(report, Started))
        handler.perform(Question(2, Generate(0, asked, {"system": ""})), reports.append, lambda: False)
        assert started.prompt_tokens == len(reports[-1].tokens)
    finally:
        handler.close()


MARKS = {"<fim_prefix>": 1, "<fim_suffix>": 2, "<fim_middle>": 3, "<file_sep>": 4}


class Letters:
    """A token a character."""

    add_bos, bos = True, 0

    def __init__(self, marks):
        self.infill_tokens = tuple(marks.get(name) for name in MARKS)

    def tokenize(self, text, *, parse_special):
        assert not parse_special
        return [ord(letter) for letter in text]


def written(tokens):
    names = {token: name for name, token in MARKS.items()} | {0: "<s>"}
    return "".join(names.get(token) or chr(token) for token in tokens)


ASKED = Infill("before", "after", "mid", (("a.py", "one"), ("b.py", "two")))


def test_other_files_come_first_each_after_the_models_own_mark():
    found = written(ASKED.prompt(Letters(MARKS), "model", 1000))
    files = "<file_sep>a.py\none\n<file_sep>b.py\ntwo\n"
    assert found == f"<s>{files}<fim_prefix>before<fim_suffix>after<fim_middle>mid"
    without = {name: token for name, token in MARKS.items() if token != 4}
    assert written(ASKED.prompt(Letters(without), "model", 1000)).startswith("<s>a.py\none\nb.py\n")


def test_what_is_far_from_the_hole_is_left_out():
    found = written(ASKED.prompt(Letters(MARKS), "model", 7 + 4 + 6 + 5))
    assert found == "<s>two\n<fim_prefix>before<fim_suffix>after<fim_middle>mid"
    found = written(ASKED.prompt(Letters(MARKS), "model", 7 + 8))
    assert found == "<s><fim_prefix>before<fim_suffix>af<fim_middle>mid"


def test_a_model_without_marks_is_named():
    with pytest.raises(NoInfill, match="model cannot fill in text"):
        ASKED.prompt(Letters({}), "model", 1000)


@pytest.mark.parametrize(
    ("sizes", "room", "kept"),
    [
        ((9, 9, 9), 100, (9, 9, 9)),
        ((500, 9, 9), 100, (82, 9, 9)),
        ((9, 500, 500), 100, (0, 75, 25)),
        ((9, 9, 9), -3, (0, 0, 0)),
    ],
)
def test_the_room_is_parted(sizes, room, kept):
    files, before, after = sizes
    asked = Infill("b" * before, "a" * after, files=(("", "f" * (files - 2)),))
    found = written(asked.prompt(Letters({**MARKS, "<file_sep>": None}), "model", room + 4))
    infill = found.split("<fim_prefix>")[1]
    assert len(found.split("<fim_prefix>")[0]) - len("<s>") == kept[0]
    assert (infill.count("b"), infill.count("a")) == kept[1:]
