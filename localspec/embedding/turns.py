"""The share of time for passes over texts while replies run: at most a sixth."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import monotonic
from typing import Any, Final

from localspec.stopping import WorkStopped

ALONE_SECONDS: Final = 0.2  # a pass should take this many seconds while no reply runs
BESIDE_SECONDS: Final = 0.05  # a pass should take this many seconds while a reply runs
WAITS: Final = 5.0  # while a reply runs, a pass is followed by a wait of this many times its seconds
_LOOK_SECONDS: Final = 0.1


class Turns:
    def __init__(self) -> None:
        self.held: AbstractContextManager[Any] = nullcontext()  # entered for each pass
        self._replies, self._next = 0, 0.0  # running replies; while one runs, no pass begins before `_next`
        self._ended = threading.Condition()

    @contextmanager
    def reply(self) -> Iterator[None]:
        """Mark a reply as running."""
        with self._ended:
            self._replies += 1
        try:
            yield
        finally:
            with self._ended:
                self._replies -= 1
                self._ended.notify_all()

    @property
    def seconds(self) -> float:
        return BESIDE_SECONDS if self._replies else ALONE_SECONDS

    @contextmanager
    def turn(self, cancelled: Callable[[], bool]) -> Iterator[None]:
        """Wait for the time of the next pass. Raises WorkStopped if the request is cancelled."""
        with self._ended:
            while self._replies and not cancelled() and (left := self._next - monotonic()) > 0:
                self._ended.wait(min(left, _LOOK_SECONDS))
        if cancelled():
            raise WorkStopped
        with self.held:
            began = monotonic()
            yield
            ended = monotonic()
        self._next = ended + WAITS * (ended - began)
