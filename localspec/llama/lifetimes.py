"""The ends of what runs in llama.cpp: free each object once, and end the process when an RPC server is lost.

An object is freed in the process that made it, and never while a thread uses it. A child of fork() cannot use the
models of its parent, because it lacks the threads of its parent. A call into llama.cpp waits for a lost server for
ever, and no thread can leave such a call.
"""

import atexit
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from traceback import walk_stack
from typing import Any, Final, NoReturn

from localspec.stopping import ending

_EXIT_SECONDS: Final = 1.0  # longest wait, at Python's exit, for threads that run a reply
_EXIT_LOOK_SECONDS: Final = 0.005
# The packages whose code may use a model of llama.cpp in a thread of its own.
_USERS: Final = ("algorithm", "chat", "drafters", "embedding", "llama", "loading", "measure", "prompt")

_process = os.getpid()  # id of the process that loaded llama.cpp
_open: list[Any] = []  # finalizers, the oldest first; Python's exit calls the newest first


def free_with(owner: object, free: Callable[..., None], *given: object) -> Any:
    """Call `free(*given)` once: when Python frees `owner`, when Python exits, or when the result is called."""
    process = os.getpid()

    def here() -> None:
        if os.getpid() == process:
            free(*given)

    finalizer = weakref.finalize(owner, here)
    finalizer.atexit = False
    _open[:] = [*(each for each in _open if each.alive), finalizer]
    return finalizer


def computes_here() -> bool:  # False after fork(), because a child lacks OpenMP's threads
    return os.getpid() == _process


def _end() -> None:
    ending.ask()
    deadline = time.monotonic() + _EXIT_SECONDS
    while (used := _in_use()) and time.monotonic() < deadline:
        time.sleep(_EXIT_LOOK_SECONDS)
    for finalizer in () if used else reversed(_open):
        finalizer()


def _in_use() -> bool:
    """Return whether another thread is running code that may use llama.cpp."""
    own = threading.get_ident()
    others = [frame for thread, frame in sys._current_frames().items() if thread != own]
    names = (each.f_globals.get("__name__", "") for other in others for each, _ in walk_stack(other))
    users = tuple(f"localspec.{room}." for room in _USERS)
    # The thread named `__name__` runs `_look`, never ends, and uses no model.
    return any(name.startswith(users) and name != __name__ for name in names)


atexit.register(_end)


TIMEOUT_SECONDS: Final = 15.0  # a server counts as lost if a call is late by this many seconds
LOADING_SECONDS: Final = 60.0  # during a load, a server counts as lost after this long without progress
_LONG_CALL_SECONDS: Final = 1.5  # maximum seconds of a prefill call, so that a lost server is noticed soon
_SLACK: Final = 3.0  # a call may take this many times as long as earlier calls
_WIDE: Final = 16  # from this number of tokens on, the time of a call is proportional to its tokens
_LOOK_SECONDS: Final = 0.5


@dataclass(slots=True)
class _Call:
    place: str
    seconds: float
    deadline: float


_calls: dict[int, _Call] = {}  # the watched call of each thread
_watcher: threading.Thread | None = None


@contextmanager
def waiting_for(place: str, seconds: float = TIMEOUT_SECONDS) -> Iterator[None]:
    """Watch a call that uses the remote device `place`. A call on a local device, "", needs no watch."""
    global _watcher
    if not place:
        yield
        return
    _calls[threading.get_ident()] = _Call(place, seconds, time.monotonic() + seconds)
    if _watcher is None:
        _watcher = threading.Thread(target=_look, name="remote-devices", daemon=True)
        _watcher.start()
    try:
        yield
    finally:
        _calls.pop(threading.get_ident(), None)


def made_progress() -> None:
    if call := _calls.get(threading.get_ident()):
        call.deadline = time.monotonic() + call.seconds


def waiting_functions() -> str:
    return ", ".join(dict.fromkeys(call.place for call in list(_calls.values())))


class CallTimes:
    def __init__(self) -> None:
        self._token: float | None = None  # seconds per token of the last wide call

    def tokens(self, most: int) -> int:  # the number of prompt tokens for the next call, at most `most`
        return min(most, max(_WIDE, int(_LONG_CALL_SECONDS / self._token)) if self._token else _WIDE)

    def limit(self, tokens: int) -> float:
        """Return the seconds after which the server of a call with this number of tokens counts as lost."""
        usual = self._token * max(tokens, _WIDE) if self._token else _LONG_CALL_SECONDS
        return TIMEOUT_SECONDS + _SLACK * max(usual, _LONG_CALL_SECONDS)

    def saw(self, tokens: int, seconds: float) -> None:
        if tokens >= _WIDE:
            self._token = seconds / tokens


LOST_HINT: Final = "start its server again, or leave it out of --rpc"


def end(what: str, hint: str) -> NoReturn:
    """Write an error and its hint on stderr, and end the process from any thread."""
    with suppress(OSError, ValueError, RuntimeError):
        sys.stdout.flush()
    # A reply on the terminal may end without a newline.
    begin = "\n" if sys.stdout.isatty() and sys.stderr.isatty() else ""
    os.write(2, f"{begin}error: {what}\nhint: {hint}\n".encode())
    os._exit(1)


def _look() -> None:
    looked = time.monotonic()
    while True:
        time.sleep(_LOOK_SECONDS)
        now = time.monotonic()
        passed, looked = now - looked, now
        for call in list(_calls.values()):
            if passed > 2 * _LOOK_SECONDS:  # Ctrl-Z may have suspended this process
                call.deadline += passed
            if now > call.deadline:
                what = f"does not answer any more: it sent nothing for {call.seconds:.0f} s"
                end(f"{call.place} {what}", LOST_HINT)
