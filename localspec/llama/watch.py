"""End the process when an RPC server is lost, because llama.cpp would wait for the server for ever.

A call into llama.cpp hangs if its server stops or is cut off, and no thread can leave such a call.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, NoReturn

TIMEOUT_SECONDS: Final = 15.0  # a server counts as lost if a call takes this much longer than it should
LOADING_SECONDS: Final = 60.0  # during a load, a server counts as lost after this long without progress
_LONG_CALL_SECONDS: Final = 1.5  # maximum seconds of a prefill call, so that a lost server is noticed soon
_SLACK: Final = 3.0  # factor by which a call may take longer than the calls before it
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
