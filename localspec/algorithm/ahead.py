"""One cycle ahead: while a reader holds the events of a cycle, the next cycle runs in another thread."""

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from localspec.stopping import current_stop, stopping_at

_Item = TypeVar("_Item")


def one_ahead(items: Iterator[_Item]) -> Generator[_Item]:
    """Yield the items. While the caller uses an item, another thread makes the next one.

    Closing this generator waits for the item that is being made, because models and caches are in use until then.
    The caller does not get this item.
    """
    stop = current_stop()

    def following() -> _Item | None:
        with stopping_at(stop):
            return next(items, None)

    with ThreadPoolExecutor(1, "cycle") as thread:
        coming = _begun(thread, following)
        while (item := coming()) is not None:
            coming = _begun(thread, following)
            yield item


def _begun(thread: ThreadPoolExecutor, work: Callable[[], _Item]) -> Callable[[], _Item]:
    """Begin `work`, and return a function that waits for its result; while Python ends, the function does the work."""
    try:
        return thread.submit(work).result
    except RuntimeError:
        return work
