"""Writes beside everything else: a thread for each row of writes, which the end of the program waits for."""

import atexit
import threading
from collections.abc import Callable
from time import monotonic

_running: set[threading.Thread] = set()


class Writer:
    """Performs one piece of work after the other."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], object]] = []
        self._changing = threading.Lock()
        self._busy = False

    def add(self, work: Callable[[], object]) -> None:
        """Perform this after what was added before; at once where the program ends already."""
        with self._changing:
            self._waiting.append(work)
            if self._busy:
                return
            self._busy = True
        thread = threading.Thread(target=self._perform, name="caches")
        _running.add(thread)
        try:
            thread.start()
        except RuntimeError:  # Python starts no thread any more
            _running.discard(thread)
            self._perform()

    def _perform(self) -> None:
        try:
            while work := self._next():
                work()
        finally:
            _running.discard(threading.current_thread())

    def _next(self) -> Callable[[], object] | None:
        with self._changing:
            self._busy = bool(self._waiting)
            return self._waiting.pop(0) if self._busy else None


def writing() -> bool:
    """Whether something is on its way to the disk."""
    return bool(_running)


def finish(seconds: float = 30.0) -> None:
    """Wait that long for what is being written."""
    deadline = monotonic() + seconds
    for thread in list(_running):
        thread.join(max(deadline - monotonic(), 0.0))


atexit.register(finish)  # for what begins when Python ends: it waits for no thread any more
