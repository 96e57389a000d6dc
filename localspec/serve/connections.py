"""How many programs may be connected, and how long a request may take to arrive, so that none blocks the rest."""

import asyncio
import logging
import sys
import time
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

ARRIVAL_SECONDS: Final = 60.0  # from the connection, or the last answer's next byte, to the end of a body
KEEP_ALIVE_SECONDS: Final = 65  # longer than clients keep idle connections, so that they close first
QUIET_SECONDS: Final = 60.0  # in which the same trouble is logged once
_MOST: Final = 512  # connections
_OWN_FILES: Final = 64  # descriptors that the rest of the process needs


def limits() -> tuple[int, int]:
    """Most connections, and how many the kernel may hold until they are accepted: together they leave files free."""
    if sys.platform == "win32":
        return _MOST, 128
    import resource

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = _MOST * 8 if files == resource.RLIM_INFINITY else max(files - _OWN_FILES, 16)
    # Several rounds of accepting pass before the first of them counts as a connection.
    return min(_MOST, free // 2), min(128, free // 8)


class Connection(H11Protocol):
    """uvicorn's, with a time limit for each request; where there are too many, one without a whole request goes."""

    most = _MOST

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **kwargs)
        self._since = time.monotonic()  # it was opened, or answered last
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def arrives(self) -> bool:
        """Whether a request is on its way: begun, or expected of a new connection."""
        return self._deadline is not None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        if len(self.connections) > self.most:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._since = time.monotonic()
        super().on_response_complete()

    def _watch(self) -> None:
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._unwatch()
        elif self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(ARRIVAL_SECONDS, self.transport.abort)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _make_room(self) -> None:
        """End the oldest one that no reply is being made for, half-sent requests first; else the new one itself."""
        waiting = [c for c in self.connections if isinstance(c, Connection) and (c.arrives or c.is_idle)]
        oldest = min(waiting, key=lambda c: (not c.arrives, c._since), default=self)
        oldest.transport.abort()
        self.connections.discard(oldest)

    @property
    def is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete


class Seldom(logging.Filter):
    """Passes a message once a minute, however often it is logged: a flood of requests fills no disk."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        what, now = str(record.msg).partition("\n")[0], time.monotonic()
        self._last = {text: at for text, at in self._last.items() if now - at < QUIET_SECONDS}
        if what in self._last:
            return False
        self._last[what] = now
        return True
