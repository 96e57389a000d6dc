"""Cycles ahead: while a reader holds the events of a cycle, the next cycles run in another thread."""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from localspec.stopping import current_stop, stopping_at

_Item = TypeVar("_Item")


def ahead(items: Iterator[_Item], most: int = 1) -> Generator[_Item]:
    """Yield the items. While the caller uses an item, another thread makes the next ones, at most `most`.

    Closing this generator waits for the item that is being made, because models and caches are in use until then.
    The caller does not get this item.
    """
    stop = current_stop()

    def following() -> _Item | None:
        with stopping_at(stop):
            return next(items, None)

    thread = ThreadPoolExecutor(1, "cycle")
    try:
        # The thread begins the next item without waiting for the caller, who may not have this one yet.
        coming = deque(_begun(thread, following) for _ in range(most + 1))
        while (item := coming.popleft()()) is not None:
            yield item
            coming.append(_begun(thread, following))
    finally:
        thread.shutdown(cancel_futures=True)


def _begun(thread: ThreadPoolExecutor, work: Callable[[], _Item]) -> Callable[[], _Item]:
    """Begin `work`, and return a function that waits for its result; while Python ends, the function does the work."""
    try:
        return thread.submit(work).result
    except RuntimeError:
        return work
