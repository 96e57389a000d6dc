"""Ends the process when a device of another machine is lost: llama.cpp would wait for ever.

A server that stops or is cut off hangs the call that needs it, and no thread can leave the call:
what was written so far is flushed, a sentence goes to stderr, and the exit code is 1.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, NoReturn

PATIENCE_SECONDS: Final = 15.0  # beyond a call's expected time
LOADING_SECONDS: Final = 60.0  # without progress: a single tensor may cross a slow network
_LONG_CALL_SECONDS: Final = 1.5  # that prompts are cut for, so that a longer one is noticed soon
_SLACK: Final = 3.0  # a call may take this many times as long as others did
_WIDE: Final = 16  # tokens: from here on a call costs by the token
_LOOK_SECONDS: Final = 0.5

_HINT: Final = "start its server again, or leave it out of --rpc"


@dataclass(slots=True)
class _Call:
    """A call into llama.cpp that needs a remote device."""

    place: str
    seconds: float
    deadline: float = 0.0

    def extend(self) -> None:
        self.deadline = time.monotonic() + self.seconds


_calls: dict[int, _Call] = {}  # by thread
_watcher: threading.Thread | None = None
_tell: Callable[[str, str], None] | None = None


@contextmanager
def waiting_for(place: str, seconds: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Surrounds a call that needs this device of another machine, "" for one of this machine."""
    global _watcher
    if not place:
        yield
        return
    _calls[threading.get_ident()] = call = _Call(place, seconds)
    call.extend()
    if _watcher is None:
        _watcher = threading.Thread(target=_look, name="remote-devices", daemon=True)
        _watcher.start()
    try:
        yield
    finally:
        _calls.pop(threading.get_ident(), None)


def made_progress() -> None:
    """The call of this thread makes progress: restart its time."""
    if call := _calls.get(threading.get_ident()):
        call.extend()


def awaited_places() -> str:
    """The remote devices that are waited for now."""
    return ", ".join(dict.fromkeys(call.place for call in list(_calls.values())))


class Pace:
    """Seconds of calls on a remote device, by number of tokens."""

    def __init__(self) -> None:
        self._narrow = 0.0  # seconds of the longest call of a few tokens
        self._wide: float | None = None  # seconds a token of the last call of many

    def tokens(self, most: int) -> int:
        """How many tokens of a prompt the next call may have."""
        if self._wide is None:
            return min(most, _WIDE)
        return min(most, max(_WIDE, int(_LONG_CALL_SECONDS / self._wide)))

    def limit(self, tokens: int) -> float:
        """Seconds after which a call of `tokens` tokens counts as lost."""
        usual = self._narrow if tokens < _WIDE else (self._wide or 0.0) * tokens
        return PATIENCE_SECONDS + _SLACK * (usual or _LONG_CALL_SECONDS)

    def saw(self, tokens: int, seconds: float) -> None:
        """A call came back."""
        if tokens < _WIDE:
            self._narrow = max(self._narrow, seconds)
        else:
            self._wide = seconds / tokens


def end_lost(what: str) -> NoReturn:
    """End the process because a device is gone; from any thread, also while another one hangs in llama.cpp."""
    if _tell is not None:
        _tell(what, _HINT)
        os._exit(1)
    end(what, _HINT)


def end(what: str, hint: str) -> NoReturn:
    """End the process with a sentence on stderr, after what it has printed so far."""
    with suppress(OSError, ValueError, RuntimeError):
        sys.stdout.flush()
    # A reply that is being written stands on the line.
    begin = "\n" if sys.stdout.isatty() and sys.stderr.isatty() else ""
    os.write(2, f"{begin}error: {what}\nhint: {hint}\n".encode())
    os._exit(1)


def tell_lost_by(tell: Callable[[str, str], None]) -> None:
    """Report a lost device to `tell`, as a sentence and a hint, instead of stderr."""
    global _tell
    _tell = tell


def _look() -> None:
    looked = time.monotonic()
    while True:
        time.sleep(_LOOK_SECONDS)
        now = time.monotonic()
        passed, looked = now - looked, now
        for call in list(_calls.values()):
            if passed > 2 * _LOOK_SECONDS:  # this process was stopped, as by Ctrl-Z: nobody heard an answer
                call.deadline += passed
            if now > call.deadline:
                end_lost(f"{call.place} does not answer any more: nothing came for {call.seconds:.0f} s")
