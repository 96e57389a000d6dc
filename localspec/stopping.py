"""Cancellation of native work, and resources that close once.

Python handles Ctrl-C only between two calls, and one call into llama.cpp can take minutes.
"""

import atexit
import ctypes
import os
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from time import monotonic
from typing import Any, Final, Self, TypeVar, cast

from localspec.errors import LocalspecError


class Closing(ABC):
    @abstractmethod
    def close(self) -> None:
        """Free the resource. A second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_LOOK_SECONDS: Final = 0.1  # longest wait for a lock at a time, because Windows handles no Ctrl-C during it

_Result = TypeVar("_Result")
_Check = Callable[[], bool] | None
_here = threading.local()


class WorkStopped(LocalspecError):
    def __init__(self) -> None:
        super().__init__("the work was stopped before it was done", hint="run it again")


class Stop:
    """A cancellation token: any thread may set it, and it stays set."""

    def __init__(self) -> None:
        self._mark = ctypes.create_string_buffer(2)  # a C string for native code; empty until `ask` is called

    def ask(self) -> None:
        self._mark[0] = b"!"

    @property
    def asked(self) -> bool:
        return self._mark.value != b""

    @property
    def address(self) -> ctypes.c_void_p:  # the address is valid until this Stop is deleted
        return ctypes.cast(self._mark, ctypes.c_void_p)

    def check(self) -> None:  # raises WorkStopped once this Stop is set
        leave_at_end()
        if self.asked:
            raise WorkStopped


ending: Final = Stop()  # set when Python begins to exit, while daemon threads still run


def leave_at_end() -> None:
    """End this thread silently if Python is exiting; in the main thread, raise WorkStopped instead."""
    if ending.asked:
        raise WorkStopped if threading.current_thread() is threading.main_thread() else SystemExit


def own_stop() -> Stop:
    """Return this thread's cancellation token, or a new token if this thread has none."""
    return Stop() if current_stop() is ending else current_stop()


@contextmanager
def stopping_at(stop: Stop | None) -> Iterator[None]:
    before, _here.stop = getattr(_here, "stop", None), stop
    try:
        yield
    finally:
        _here.stop = before


def current_stop() -> Stop:
    """Return the cancellation token of this thread; by default `ending`."""
    return getattr(_here, "stop", None) or ending


def interruptible(
    work: Callable[[], _Result], stop: Stop, *, cancelled: _Check = None, timeout_seconds: float = inf
) -> _Result:
    """Run `work`, which checks `stop`, and return its result. Ctrl-C, or True from `cancelled`, sets `stop`.

    After Ctrl-C, wait at most `timeout_seconds` for the work to end. The default has no limit, because the
    work may use resources that its caller frees.
    """
    if not (cancelled or _hears_interrupts()):
        with stopping_at(stop):
            return work()
    outcome: list[tuple[Any, BaseException | None]] = []
    claim, over = threading.Lock(), threading.Lock()
    over.acquire()

    def run() -> None:
        if not claim.acquire(blocking=False):
            return  # Ctrl-C arrived before the thread began
        try:
            with stopping_at(stop):
                found = work()
            outcome.append((found, None))
        except BaseException as error:  # noqa: BLE001  the waiting thread raises it again
            outcome.append((None, error))
        over.release()

    try:
        threading.Thread(target=run, name="interruptible", daemon=True).start()
        while not outcome:
            # Not Thread.join: if Ctrl-C interrupts it, Python 3.11 wrongly believes that the thread has ended.
            over.acquire(timeout=_LOOK_SECONDS)
            if ending.asked or (cancelled and cancelled()):
                stop.ask()
    except BaseException:
        stop.ask()
        deadline = monotonic() + timeout_seconds
        begun = not claim.acquire(blocking=False)
        while begun and not outcome and monotonic() < deadline:
            with suppress(BaseException):  # ignore a second Ctrl-C; the first exception is raised below
                over.acquire(timeout=_LOOK_SECONDS)
        if begun and not outcome:
            atexit.register(_end_beside, outcome, os.getpid())
        raise
    result, error = outcome.pop()
    if error is not None:
        raise error
    return cast(_Result, result)


def _end_beside(outcome: Sequence[object], process: int) -> None:
    if not outcome and os.getpid() == process:
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):
                stream.flush()
        os._exit(130)  # the exit code that a shell expects after Ctrl-C


class DelayedInterrupt:
    """A delay of Ctrl-C until a native call returns, because Ctrl-C in a callback of that call would be lost."""

    def __init__(self, stop: Stop | None = None) -> None:
        self._stop = stop

    def __enter__(self) -> None:
        self._before: Any = None
        self._pressed = False
        if _hears_interrupts():
            self._before = signal.signal(signal.SIGINT, self._press)

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            if self._pressed:
                signal.raise_signal(signal.SIGINT)

    def _press(self, *_: object) -> None:
        self._pressed = True
        if self._stop:
            self._stop.ask()


def _hears_interrupts() -> bool:
    return threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGINT))
