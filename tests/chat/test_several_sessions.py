"""Several sessions on one pair, on exact toy models."""

import asyncio
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from localspec.chat.loaded_pair import Lane, Lanes
from localspec.chat.session import Session
from localspec.errors import BadSetting
from localspec.events import Cycle, Finished, FinishReason
from tests.chat.letters import GREEDY, session_of

PROMPTS = ("tell me", "compare us", "hello there", "again")


def sessions_on(lanes, sessions, closed=None):
    """That many sessions on one pair with that many lanes."""
    pairs = [session_of(5)[0].pair for _ in range(lanes)]
    several = Lanes([pair.lanes.all[0] for pair in pairs])
    close = (lambda: closed.append(True)) if closed is not None else pairs[0].close
    first = Session(replace(pairs[0], lanes=several, close=close))
    return [first, *(first.another() for _ in range(sessions - 1))]


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_replies_of_several_sessions_in_threads_are_those_of_each_alone(lanes):
    alone = [session_of(5)[0].run(prompt, **GREEDY, max_tokens=40).tokens for prompt in PROMPTS]
    sessions, found = sessions_on(lanes, len(PROMPTS)), {}

    def reply(i):
        found[i] = sessions[i].run(PROMPTS[i], **GREEDY, max_tokens=40).tokens

    threads = [threading.Thread(target=reply, args=(i,)) for i in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(len(PROMPTS))] == alone


def test_replies_of_several_sessions_in_asyncio_are_those_of_each_alone():
    alone = [session_of(5)[0].run(prompt, **GREEDY, max_tokens=40).tokens for prompt in PROMPTS]
    sessions = sessions_on(2, len(PROMPTS))

    async def all_of_them():
        jobs = [s.arun(p, **GREEDY, max_tokens=40) for s, p in zip(sessions, PROMPTS, strict=True)]
        return await asyncio.gather(*jobs)

    assert [reply.tokens for reply in asyncio.run(all_of_them())] == alone


def test_two_streams_run_at_once_where_two_lanes_are_free():
    first, second = sessions_on(2, 2)
    one = first.stream("tell me", **GREEDY, max_tokens=40)
    next(event for event in one if isinstance(event, Cycle))
    assert second.run("compare us", **GREEDY, max_tokens=5).tokens
    assert isinstance(list(one)[-1], Finished)


def test_a_reply_that_waits_for_a_lane_can_be_cancelled():
    first, second = sessions_on(1, 2)
    one = first.stream("tell me", **GREEDY, max_tokens=40)
    next(one)
    events = list(second.stream("compare us", **GREEDY, max_tokens=40, cancelled=lambda: True))
    assert events[-1].reply.finish_reason is FinishReason.CANCELLED
    assert isinstance(list(one)[-1], Finished)


def test_a_cancelled_reply_gives_its_lane_to_the_next_one_though_nobody_reads_it():
    first, second = sessions_on(1, 2)
    left = first.stream("tell me", **GREEDY, max_tokens=40)
    next(left)
    first.cancel()
    assert first.run("hello", **GREEDY, max_tokens=5).tokens
    assert second.run("compare us", **GREEDY, max_tokens=5).tokens
    assert list(left) == []


def test_a_conversation_returns_to_the_lane_that_holds_its_beginning():
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
    target = SimpleNamespace(tokens=[], store=lambda resting: stored.append(resting))
    lanes = Lanes([Lane(target, (), None)], stores=True)
    with lanes.claimed([1], lambda: False):
        pass
    lanes._store()
    lanes.close()
    assert stored == [True, False]


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
