"""The engine process's own loop: one thread listens and can always end the process, one does the work.

Where several replies run at once, each has a thread of its own.
"""

import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, Final

from localspec.caches.writer import finish, writing
from localspec.engine.messages import (
    PROTOCOL,
    Answer,
    Cancel,
    CompareReplies,
    Failure,
    Hello,
    Quit,
    Report,
    Request,
    Saving,
    encode,
    read_messages,
)
from localspec.errors import LocalspecError, NotEnoughMemory

if TYPE_CHECKING:
    from localspec.engine.requests import PairRequests

IDLE_SECONDS: Final = 0.5  # programs ask again sooner, and would wait for work that began meanwhile
SAVE_SECONDS: Final = 30.0  # after that, for caches on their way to the disk
QUIT_GRACE_SECONDS: Final = 0.4  # to free the models in order; a native call that takes longer is cut off

log = logging.getLogger(__name__)


class Server:
    """Serves one client until it quits or disappears."""

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source = source
        self._sink = sink
        self._sink_lock = threading.Lock()  # several threads send
        self._inbox: queue.SimpleQueue[Request | None] = queue.SimpleQueue()  # None: a reply beside has ended
        self._replies: dict[int, threading.Event] = {}  # by serial, until their end; set: cancelled
        self._handler: PairRequests | None = None
        self._quits = self._saves = False

    def serve(self, open_handler: "Callable[[], PairRequests]") -> None:
        """Answer requests. Listening starts before the heavy imports, so a lost client ends those too."""
        threading.Thread(target=self._listen, name="engine-listener", daemon=True).start()
        self._send(Hello(PROTOCOL, os.getpid()))
        try:
            self._handler = handler = open_handler()
        except Exception as error:  # noqa: BLE001 - a broken installation is reported, then the process ends
            self._send(failure_of(error))
            return
        while not isinstance(request := self._next(handler), Quit):
            if request is not None and not self._begun_beside(request):
                self._perform(handler, request)
        while self._replies:  # they are cancelled by now
            self._inbox.get()
        if writing() or handler.unsaved():
            self._saves = True
            self._send(Saving())
        handler.close()
        with suppress(OSError):
            self._sink.close()
        finish(SAVE_SECONDS)

    def _next(self, handler: "PairRequests") -> Request | None:
        """The next request; without one, and without a running reply, the handler may use the time."""
        with suppress(queue.Empty):
            return self._inbox.get(timeout=IDLE_SECONDS)
        if not self._replies:
            self._rest(handler)
        return self._inbox.get()

    def _perform(self, handler: "PairRequests", request: Request) -> None:
        serial = getattr(request, "serial", 0)
        cancelled = self._replies.get(serial, threading.Event())
        try:
            handler.perform(request, partial(self._send, serial=serial), cancelled.is_set)
        except Exception as error:  # noqa: BLE001 - the edge of the process: every error becomes a report
            self._send(failure_of(error, serial), serial)
        finally:
            self._replies.pop(serial, None)

    def _rest(self, handler: "PairRequests") -> None:
        try:
            handler.rest(lambda: bool(self._replies) or not self._inbox.empty())
        except Exception as error:  # noqa: BLE001 - nobody asked for anything, so nobody can be answered
            log.warning("between two requests: %s: %s", type(error).__name__, error)

    def _listen(self) -> None:
        """Runs beside native calls, which release the GIL, so it can end the process at any moment."""
        try:
            with suppress(OSError):
                for _, request in read_messages(self._source):
                    self._receive(request)
        except Exception as error:  # noqa: BLE001 - nobody waits for this thread
            self._send(failure_of(error))
        self._receive(Quit())  # nobody is left to answer, or to listen

    def _receive(self, request: Request) -> None:
        if isinstance(request, Cancel):
            if found := self._replies.get(request.serial):
                found.set()
            return
        if isinstance(request, Answer | CompareReplies):
            self._replies[request.serial] = threading.Event()
        if isinstance(request, Quit):
            if self._quits:
                return
            self._quits = True
            deadline = threading.Timer(QUIT_GRACE_SECONDS, self._end)
            deadline.daemon = True
            deadline.start()
            for reply in list(self._replies.values()):
                reply.set()
        if not self._begun_beside(request):
            self._inbox.put(request)

    def _end(self) -> None:
        if self._saves:
            time.sleep(SAVE_SECONDS)
        os._exit(0)

    def _begun_beside(self, request: Request) -> bool:
        """Whether a separate thread now performs it."""
        if self._handler is None or not self._handler.runs_beside(request):
            return False
        threading.Thread(target=self._perform_beside, args=(self._handler, request), daemon=True).start()
        return True

    def _perform_beside(self, handler: "PairRequests", request: Request) -> None:
        self._perform(handler, request)
        self._inbox.put(None)

    def _send(self, report: Report, serial: int = 0) -> None:
        line = encode(report, serial)
        try:
            with self._sink_lock:
                self._sink.write(line)
                self._sink.flush()
        except (OSError, ValueError):  # the client is gone, or this process ends: its pipe is closed
            self._receive(Quit())


def failure_of(error: Exception, serial: int = 0) -> Failure:
    """An error as a sentence and a hint."""
    name = type(error).__name__
    if isinstance(error, LocalspecError):
        return Failure(name, str(error), error.hint, serial)
    if isinstance(error, MemoryError):
        hint = "choose a smaller pair or a shorter context"
        return Failure(NotEnoughMemory.__name__, "memory ran out", hint, serial)
    if isinstance(error, OSError) and error.filename:
        hint = "check the path, its permissions, and the disk"
        return Failure(name, f"{error.filename}: {error.strerror}", hint, serial)
    what = f"localspec made a mistake in its engine: {name}: {error}"
    return Failure(name, what, "please report it; the conversation is safe", serial)
