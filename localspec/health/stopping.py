"""Stops native work early, and closes resources once.

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
from functools import partial
from math import inf
from time import monotonic
from typing import Any, Final, NoReturn, Self, TypeVar

from localspec.errors import LocalspecError


class Closing(ABC):
    """Its own context manager."""

    @abstractmethod
    def close(self) -> None:
        """Free it; idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


INTERRUPTED: Final = 130  # the exit code that a shell expects after Ctrl-C
_LOOK_SECONDS: Final = 0.1  # Windows hears no Ctrl-C while it waits for a lock

_Result = TypeVar("_Result")
_here = threading.local()


class Stopped(LocalspecError):
    """Work ended early because it was asked to."""

    def __init__(self) -> None:
        super().__init__("it was stopped before it was done", hint="run it again")


class Stop:
    """Asks work to end, from any thread, permanently."""

    def __init__(self) -> None:
        self._mark = ctypes.create_string_buffer(2)  # a C string, which is empty until somebody asks

    def ask(self) -> None:
        self._mark[0] = b"!"

    @property
    def asked(self) -> bool:
        return self._mark.value != b""

    @property
    def address(self) -> ctypes.c_void_p:
        """Address of the string, while this object lives."""
        return ctypes.cast(self._mark, ctypes.c_void_p)

    def check(self) -> None:
        """Raises Stopped."""
        if self.asked:
            raise Stopped


@contextmanager
def heeding(stop: Stop | None) -> Iterator[None]:
    """Inside it, the work of this thread obeys the stop, or none."""
    before, _here.stop = heeded(), stop
    try:
        yield
    finally:
        _here.stop = before


def heeded() -> Stop | None:
    """The stop that this thread obeys."""
    found: Stop | None = getattr(_here, "stop", None)
    return found


def interruptible(
    work: Callable[[], _Result],
    stop: Stop,
    *,
    cancelled: Callable[[], bool] | None = None,
    patience_seconds: float | None = None,
) -> _Result:
    """The result of work that obeys `stop`; it runs in a thread where this one hears Ctrl-C, or asks `cancelled`.

    Both ask the work to stop, and Ctrl-C ends the wait. After `patience` seconds the work is left behind; None waits
    for its end, because its resources are freed next.
    """
    if not (cancelled or _hears_interrupts()):
        with heeding(stop):
            return work()
    outcome: list[Callable[[], _Result]] = []
    claim, over = threading.Lock(), threading.Lock()
    over.acquire()

    def run() -> None:
        if not claim.acquire(blocking=False):
            return  # Ctrl-C came while the thread was started
        try:
            with heeding(stop):
                found = work()
            outcome.append(lambda: found)
        except BaseException as error:  # noqa: BLE001  raised where it is waited for
            outcome.append(partial(_raise, error))
        over.release()

    try:
        threading.Thread(target=run, name="interruptible", daemon=True).start()
        while not outcome:
            # Not `join`: Ctrl-C in it makes Python 3.11 believe that the thread has ended.
            over.acquire(timeout=_LOOK_SECONDS)
            if cancelled and cancelled():
                stop.ask()
    except BaseException:
        stop.ask()
        deadline = monotonic() + (inf if patience_seconds is None else patience_seconds)
        begun = not claim.acquire(blocking=False)
        while begun and not outcome and monotonic() < deadline:
            with suppress(BaseException):  # one exception is under way already
                over.acquire(timeout=_LOOK_SECONDS)
        if begun and not outcome:
            atexit.register(_end_beside, outcome)
        raise
    return outcome.pop()()


def _raise(error: BaseException) -> NoReturn:
    raise error


def _end_beside(outcome: Sequence[object]) -> None:
    """End the program without freeing resources of work that was left behind."""
    if not outcome:
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):
                stream.flush()
        os._exit(INTERRUPTED)


class Held:
    """Keeps Ctrl-C back until a native call is over: raised in a callback that C calls, it would be lost."""

    def __init__(self, stop: Stop | None = None) -> None:
        """`stop` is set at once, which ends a call that polls Python."""
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
    """Whether Python's signal handlers run in this thread."""
    return threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGINT))
