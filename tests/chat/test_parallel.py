"""Several replies at once on one loaded pair of GGUFs: every text is the one that the reply has alone."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import localspec
from localspec.chat.loaded_pair import Slot, Slots
from localspec.chat.session import Session
from localspec.drafters.model import ModelDrafter
from localspec.errors import BadSetting
from localspec.events import Cycle, Finished, FinishReason, Notice
from localspec.loading import load as loading
from tests.chat.letters import GREEDY, session_of
from tests.drafters.heads import KINDS

LOAD = {"threads": 1, "context_length": 512}
REPLY = {"temperature": 0, "max_tokens": 40}
WINDOW = {"architecture": "gemma2", "window": 8, "layers": 4}
HYBRID = {"architecture": "qwen35", "layers": 4}
PAIRS = {
    "lookup": ({}, None),
    "draft": ({}, {"noise": 0.1}),
    "window with a draft": (WINDOW, {"noise": 0.1}),
    "hybrid with a draft": (HYBRID, {"noise": 0.1}),
    "hybrid drafting for attention": ({}, {**HYBRID, "noise": 0.1}),
}


@pytest.fixture(scope="module")
def files_of(tiny_gguf, tmp_path_factory):
    def files(name):
        if name in KINDS:
            folder = tmp_path_factory.mktemp("heads")
            return KINDS[name].files(folder)
        target, draft = PAIRS[name]
        return tiny_gguf(**target), "lookup" if draft is None else tiny_gguf(**{**target, **draft})

    return files


def prompts(count):
    return [np.random.default_rng(i).integers(5, 60, 8 + i).tolist() for i in range(count)]


def texts(files, parallel, wanted, **options):
    """The tokens of a reply to each prompt, as many at once as there are slots, and the notices."""
    target, draft = files
    with ExitStack() as opened:
        first = opened.enter_context(localspec.load(target=target, draft=draft, parallel=parallel, **LOAD))
        sessions = [first, *(opened.enter_context(first.another()) for _ in range(parallel - 1))]
        notices = []

        def reply(i):
            session = sessions[i % parallel]
            *events, last = session.stream_complete(wanted[i], **REPLY | options)
            notices.extend(event.text for event in events if isinstance(event, Notice))
            return last.reply

        with ThreadPoolExecutor(parallel) as threads:
            rounds = range(0, len(wanted), parallel)
            found = [r for i in rounds for r in threads.map(reply, range(i, min(i + parallel, len(wanted))))]
    return [reply.tokens[:36] for reply in found], found, notices


@pytest.mark.process
@pytest.mark.parametrize("name", [*PAIRS, *(kind for kind in KINDS if kind != "assistant")])
def test_replies_at_once_have_the_texts_that_each_has_alone(files_of, name):
    files, wanted = files_of(name), prompts(6)
    alone, drafted, _ = texts(files, 1, wanted, depth=3)
    found, _, notices = texts(files, 3, wanted, depth=3)
    assert found == alone
    assert name == "lookup" or sum(reply.stats.accepted for reply in drafted) > 0
    assert any("3 replies run at once" in notice for notice in notices)


@pytest.mark.parametrize("name", [*PAIRS, *(kind for kind in KINDS if kind != "assistant")])
def test_a_prompt_that_another_slot_has_read_is_not_read_again(files_of, name, monkeypatch):
    """Nor by the drafter: it drafts as if it had read everything itself."""
    monkeypatch.setattr(loading, "CHECKPOINT_SHARE", 10.0)  # of models so small, for the states of hybrids
    read, drafter_reads = [], ModelDrafter.read
    monkeypatch.setattr(ModelDrafter, "read", lambda *given: read.append(drafter_reads(*given)) or read[-1])
    target, draft = files_of(name)
    prompt = np.random.default_rng(0).integers(5, 60, 400).tolist()
    with ExitStack() as opened:
        first = opened.enter_context(localspec.load(target=target, draft=draft, parallel=3, **LOAD))
        others = [opened.enter_context(first.another()) for _ in range(2)]
        running = first.stream_complete(prompt, **REPLY, depth=3)
        cycles = [next(event for event in running if isinstance(event, Cycle))]
        found = [other.complete(prompt, **REPLY, depth=3) for other in others]
        cycles += [event for event in running if isinstance(event, Cycle)]
        written = [token for cycle in cycles for token in cycle.tokens]
        for reply in found:
            assert reply.stats.reused_tokens > 390
            assert list(reply.tokens)[:36] == written[:36]
            assert name == "lookup" or reply.stats.drafted_by_position[:1] != (0,)
            assert reply.stats.accepted == sum(cycle.accepted for cycle in cycles)
        assert sum(read) <= 410, "by a draft model as well"


def test_a_head_that_looks_into_its_targets_cache_lets_replies_take_turns(files_of):
    files, wanted = files_of("assistant"), prompts(4)
    alone, _, _ = texts(files, 1, wanted, depth=3)
    found, _, notices = texts(files, 3, wanted, depth=3)
    assert found == alone
    assert any("Replies take turns" in notice for notice in notices)


PROMPTS = ("tell me", "compare us", "hello there", "again")


def sessions_on(slots, sessions, closed=None):
    """That many sessions on one pair with that many slots."""
    pairs = [session_of(5)[0].pair for _ in range(slots)]
    several = Slots([pair.slots.all[0] for pair in pairs])
    close = (lambda: closed.append(True)) if closed is not None else pairs[0].close
    first = Session(replace(pairs[0], slots=several, close=close))
    return [first, *(first.another() for _ in range(sessions - 1))]


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_replies_of_several_sessions_in_threads_are_those_of_each_alone(slots):
    alone = [session_of(5)[0].run(prompt, **GREEDY, max_tokens=40).tokens for prompt in PROMPTS]
    with ThreadPoolExecutor(len(PROMPTS)) as threads:
        sessions = sessions_on(slots, len(PROMPTS))
        found = threads.map(
            lambda session, prompt: session.run(prompt, **GREEDY, max_tokens=40), sessions, PROMPTS
        )
    assert [reply.tokens for reply in found] == alone


def test_two_streams_run_at_once_where_two_slots_are_free():
    first, second = sessions_on(2, 2)
    one = first.stream("tell me", **GREEDY, max_tokens=40)
    next(event for event in one if isinstance(event, Cycle))
    assert second.run("compare us", **GREEDY, max_tokens=5).tokens
    assert isinstance(list(one)[-1], Finished)


def test_a_reply_that_waits_for_a_slot_can_be_cancelled():
    first, second = sessions_on(1, 2)
    one = first.stream("tell me", **GREEDY, max_tokens=40)
    next(one)
    events = list(second.stream("compare us", **GREEDY, max_tokens=40, cancelled=lambda: True))
    assert events[-1].reply.finish_reason is FinishReason.CANCELLED
    assert isinstance(list(one)[-1], Finished)


def test_a_reply_that_would_wait_for_its_own_thread_is_refused(monkeypatch):
    monkeypatch.setattr("localspec.chat.loaded_pair.STALLED_SECONDS", 0.0)
    first, second = sessions_on(1, 2)
    for event in first.stream("tell me", **GREEDY, max_tokens=40):
        if isinstance(event, Cycle):
            with pytest.raises(BadSetting, match="this thread reads other replies"):
                second.run("compare us", **GREEDY, max_tokens=5)
    assert second.run("compare us", **GREEDY, max_tokens=5).tokens


def test_a_reply_waits_for_one_that_its_thread_began_and_another_thread_reads():
    first, second = sessions_on(1, 2)
    events = first.stream("tell me", **GREEDY, max_tokens=40)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(next, events).result()
        waiting = pool.submit(second.run, "compare us", **GREEDY, max_tokens=5)
        *_, last = events
        assert isinstance(last, Finished)
        assert waiting.result().tokens


def test_a_conversation_returns_to_the_slot_that_holds_its_beginning():
    first, second = sessions_on(2, 2)
    first.run("tell me", **GREEDY, max_tokens=20)
    second.run("compare us", **GREEDY, max_tokens=20)
    for session in (second, first, second):
        started = next(session.stream("more", **GREEDY, max_tokens=1))
        assert started.reused_tokens > 20
        session.cancel()


def test_a_reply_that_ends_with_python_leaves_its_text_to_close(monkeypatch):
    """The decision, with a faked refusal: from Python 3.12 on no thread starts any more when Python ends."""

    def refused(timer):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Timer, "start", refused)
    stored = []
    target = SimpleNamespace(tokens=[], store=lambda: stored.append(1))
    slots = Slots([Slot(target, (), None)], stores=True)
    with slots.claimed([1], lambda: False):
        pass
    slots.store()
    slots.close()
    assert stored == [1, 1]


def test_the_last_session_frees_the_pair():
    closed = []
    first, second = sessions_on(2, 2, closed)
    first.close()
    assert not closed
    assert second.run("compare us", **GREEDY, max_tokens=5).tokens
    second.close()
    assert closed
    with pytest.raises(BadSetting):
        first.another()
