"""Events of a thread for asyncio: the models block, an event loop must not."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor
from typing import TypeVar

_Event = TypeVar("_Event")


async def in_a_thread(
    begin: Callable[[Callable[[], bool]], Iterator[_Event]], threads: Executor
) -> AsyncIterator[_Event]:
    """The events of an iterator that one of these threads makes and runs through; errors are raised here.

    `begin` gets a question: did the reader leave? Leaving early returns when the thread has ended, or at once where
    no thread was free yet.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[_Event | None] = asyncio.Queue()
    left = threading.Event()

    def work() -> None:
        try:
            for event in begin(left.is_set):
                loop.call_soon_threadsafe(queue.put_nowait, event)
        finally:
            loop.call_soon_threadsafe(queue.put_nowait, None)

    job = threads.submit(work)
    done = asyncio.wrap_future(job)
    try:
        while (event := await queue.get()) is not None:
            yield event
        await done
    finally:
        left.set()
        if not done.done() and not job.cancel():
            await asyncio.wait([done])
            done.exception()  # nobody is left to hear of it
