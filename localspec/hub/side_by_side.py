"""Several files at once, a thread each: one connection seldom fills a line."""

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

_Item = TypeVar("_Item")
MOST = 4  # threads
_PATIENCE_SECONDS = 2.0  # for a thread that waits for the network when all is over


def side_by_side(work: Callable[[_Item], object], items: Sequence[_Item], stopped: threading.Event) -> None:
    """Do the work for every item, some at a time, the first first; raises what fails first.

    `stopped` is set when one has failed or the caller is interrupted, so that the others end.
    """
    if len(items) == 1:
        work(items[0])
        return
    left, failures, taking = list(items), list[BaseException](), threading.Lock()

    def take_turns() -> None:
        while not stopped.is_set():
            with taking:
                if not left:
                    return
                item = left.pop(0)
            try:
                work(item)
            except BaseException as error:  # noqa: BLE001  raised again by the caller
                failures.append(error)
                stopped.set()

    # Daemons: an interrupted program does not wait for a server that sends nothing.
    threads = [threading.Thread(target=take_turns, daemon=True) for _ in range(min(MOST, len(items)))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:
        stopped.set()
        for thread in threads:
            thread.join(_PATIENCE_SECONDS)
        raise
    if failures:
        raise failures[0]
