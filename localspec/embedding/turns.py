"""The time that passes over texts get beside replies: at most a sixth."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import monotonic
from typing import Any, Final

from localspec.stopping import WorkStopped

ALONE_SECONDS: Final = 0.2  # wanted seconds of a pass
BESIDE_SECONDS: Final = 0.05  # wanted seconds of a pass beside a reply
WAITS: Final = 5.0  # beside a reply a pass is followed by a wait of this many times its seconds
_LOOK_SECONDS: Final = 0.1


class Turns:
    def __init__(self) -> None:
        self.held: AbstractContextManager[Any] = nullcontext()  # entered for each pass
        self._replies, self._lock, self._idle = 0, threading.Lock(), threading.Event()
        self._idle.set()
        self._next = 0.0  # time before which no pass may begin beside a reply

    @contextmanager
    def reply(self) -> Iterator[None]:
        """Mark a reply as running."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, more: int) -> None:
        with self._lock:
            self._replies += more
            (self._idle.clear if self._replies else self._idle.set)()

    @property
    def seconds(self) -> float:
        return ALONE_SECONDS if self._idle.is_set() else BESIDE_SECONDS

    @contextmanager
    def turn(self, cancelled: Callable[[], bool]) -> Iterator[None]:
        """Wait for the time of the next pass. Raises WorkStopped if the request is cancelled."""
        while not cancelled() and (left := self._next - monotonic()) > 0:
            if self._idle.wait(min(left, _LOOK_SECONDS)):
                break
        if cancelled():
            raise WorkStopped
        with self.held:
            began = monotonic()
            yield
            ended = monotonic()
        self._next = ended + WAITS * (ended - began)
