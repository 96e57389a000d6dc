"""Events of a thread for asyncio: the models block, an event loop must not."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeVar

_Event = TypeVar("_Event")


async def in_a_thread(
    begin: Callable[[], Iterator[_Event]], cancel: Callable[[], object]
) -> AsyncIterator[_Event]:
    """The events of an iterator that a thread makes and runs through; errors are raised here.

    Leaving early cancels, and returns when the thread has ended.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[_Event | None] = asyncio.Queue()
    left = False

    def work() -> None:
        try:
            for event in begin():
                loop.call_soon_threadsafe(queue.put_nowait, event)
                if left:
                    cancel()  # one that came before the reply began was forgotten
        finally:
            loop.call_soon_threadsafe(queue.put_nowait, None)

    done = asyncio.create_task(asyncio.to_thread(work))
    try:
        while (event := await queue.get()) is not None:
            yield event
        await done
    finally:
        if not done.done():
            left = True
            cancel()
            await asyncio.wait([done])
            done.exception()  # nobody is left to hear of it
