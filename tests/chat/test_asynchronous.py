"""Replies for asyncio: each is cancelled alone, and waits without a thread of others."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from localspec.chat.session import in_a_thread
from localspec.errors import BadSetting
from localspec.events import FinishReason
from tests.chat.letters import GREEDY, session_of


async def all_of(events):
    return [event async for event in events]


async def test_a_task_that_is_cancelled_leaves_the_running_reply_alone():
    session, *_ = session_of(end=False)
    running = session.stream("one", **GREEDY, max_tokens=30)
    next(running)
    other = asyncio.create_task(session.arun("two", **GREEDY))
    await asyncio.sleep(0)
    other.cancel()
    with pytest.raises((asyncio.CancelledError, BadSetting)):
        await other
    assert list(running)[-1].reply.finish_reason is FinishReason.LENGTH


async def test_a_task_that_is_cancelled_ends_its_own_reply():
    session, target, *_ = session_of(end=False, capacity=3000)
    task = asyncio.create_task(session.arun("never ending", **GREEDY))
    while target.length < 100:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert target.length < 2500
    assert (await session.arun("two", **GREEDY, max_tokens=3)).finish_reason is FinishReason.LENGTH


async def test_the_next_one_begins_when_the_thread_is_free_and_one_that_left_never_does():
    free, begun = threading.Event(), []

    def events(name):
        def begin(left):
            begun.append(name)
            free.wait()
            yield name

        return begin

    with ThreadPoolExecutor(1) as threads:
        first, second, third = (
            asyncio.create_task(all_of(in_a_thread(events(name), threads))) for name in "abc"
        )
        while not begun:
            await asyncio.sleep(0.001)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        free.set()
        assert [await first, await third] == [["a"], ["c"]]
    assert begun == ["a", "c"]


async def test_what_a_thread_raises_is_raised_here():
    session, *_ = session_of()
    with pytest.raises(BadSetting, match="temprature"):
        await session.arun("one", temprature=1)
