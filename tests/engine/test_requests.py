"""What the engine process makes of requests, without the process."""

from types import SimpleNamespace

import pytest
from localspec.tui.state.engine import EngineState

from localspec import api
from localspec.engine.messages import Answer, LoadPair, Ready, Render
from localspec.engine.requests import MANY_CORES, PairRequests
from localspec.events import Started
from localspec.models import load

CORES = 2 * MANY_CORES


@pytest.fixture(autouse=True)
def many_cores(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    for module in (api, load):
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
    assert threads_of(LoadPair("demo")) == [1, 1]


def test_threads_that_are_set_are_used(monkeypatch, tmp_path):
    assert threads_of(LoadPair("demo", options={"threads": 2})) == [2, 2]
    (tmp_path / "config.toml").write_text("threads = 3")
    assert threads_of(LoadPair("demo")) == [3, 3]
    monkeypatch.setenv("LOCALSPEC_THREADS", "4")
    assert threads_of(LoadPair("demo")) == [4, 4]


def test_a_large_model_leaves_the_terminal_a_core(monkeypatch):
    monkeypatch.setattr(load, "SMALL_BYTES", 0)
    assert threads_of(LoadPair("demo")) == [CORES - 1] * 2


def test_elsewhere_all_cores_decode():
    large = SimpleNamespace(size_bytes=load.SMALL_BYTES, all_on_gpu=False)
    assert load.threads_for(large, wanted=None, spare_cores=0) == CORES
    assert load.threads_for(large, wanted=None, spare_cores=CORES) == 1


def test_beside_a_gpu_that_does_it_all_four_threads_are_enough(monkeypatch):
    monkeypatch.setattr(load, "default_threads", lambda: 24)
    for all_on_gpu, threads in ((True, 4), (False, 24)):
        model = SimpleNamespace(size_bytes=load.SMALL_BYTES, all_on_gpu=all_on_gpu)
        assert load.threads_for(model, wanted=None, spare_cores=0) == threads
        assert load.threads_for(model, wanted=6, spare_cores=0) == 6


def test_the_configured_system_prompt_is_not_in_a_conversation_without_one(monkeypatch):
    monkeypatch.setenv("LOCALSPEC_SYSTEM", "Answer in French.")
    handler = PairRequests()
    handler.perform(LoadPair("demo"), lambda _: None, lambda: False)
    state = EngineState(SimpleNamespace(), LoadPair())
    asked, reports = ({"role": "user", "content": "Hello"},), []
    try:
        options = {**state.options_for(asked), "max_tokens": 2}
        handler.perform(Answer(1, asked, options), reports.append, lambda: False)
        (started,) = (report for report in reports if isinstance(report, Started))
        handler.perform(Render(2, asked), reports.append, lambda: False)
        assert started.prompt_tokens == len(reports[-1].tokens)
    finally:
        handler.close()
