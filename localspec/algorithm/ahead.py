"""Run cycles ahead: while a reader uses the events of a cycle, another thread runs the next cycles."""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeVar

from localspec.stopping import current_stop, stopping_at

_Item = TypeVar("_Item")


def ahead(
    items: Generator[_Item], most: int = 1, away: Callable[[], AbstractContextManager[object]] = nullcontext
) -> Generator[_Item]:
    """Yield the items. While the caller uses an item, another thread makes the next ones, at most `most` + 1.

    Closing this generator waits for the item that is being made, because models and caches are in use until then.
    The caller does not get this item. `away`: a context for the thread while it waits until the caller takes an item.
    """
    stop, left = current_stop(), list[bool]()
    # SimpleQueue is written in C: passing an item takes a third of the time that Queue takes.
    made, room = SimpleQueue[tuple[_Item | None, BaseException | None]](), SimpleQueue[None]()
    for _ in range(most):
        room.put(None)

    def put(item: _Item | None, error: BaseException | None = None) -> None:
        try:
            room.get_nowait()
        except Empty:
            with away():
                room.get()
        made.put((item, error))

    def work() -> None:
        with stopping_at(stop):
            try:
                for item in items:
                    if left:
                        return
                    put(item)
                items.close()
                put(None)
            except BaseException as error:  # noqa: BLE001  raised again in the caller's thread
                put(None, error)

    thread = Thread(target=work, name="cycle", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # while Python exits, no thread can start
        yield from items
        return
    try:
        while True:
            item, error = made.get()
            room.put(None)
            if error:
                raise error
            if item is None:
                return
            yield item
    finally:
        left.append(True)
        for _ in range(2):  # the thread may wait for room twice: for an item, then for the mark of the end
            room.put(None)
        thread.join()
        items.close()
