"""The engine process. It communicates only by messages over stdin and stdout.

One thread reads requests and can always end the process. Another thread performs them. A concurrent request gets a
thread of its own.
"""

import gc
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, BinaryIO, Final

from localspec.caches.store import finish, writing
from localspec.engine import messages
from localspec.engine.messages import Failure, Report, Request
from localspec.errors import REPORT, LocalspecError, NotEnoughMemory
from localspec.machine.children import limit_this_process

if TYPE_CHECKING:
    from localspec.engine.requests import PairRequests

IDLE_SECONDS: Final = 0.5  # idle time before a calibration, so that it does not delay a series of requests
SAVE_SECONDS: Final = 30.0  # longest time to write prompt caches to the disk

log = logging.getLogger(__name__)


class RequestLoop:
    """The loop that serves one client until the client quits or disappears."""

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source, self._sink = source, sink
        self._sink_lock = threading.Lock()  # several threads write to the sink
        self._inbox = queue.SimpleQueue[Request | None]()  # None: a concurrent reply has ended
        self._replies: dict[int, threading.Event] = {}  # by serial, the event that cancels a running reply
        self._handler: PairRequests | None = None
        self._quits = self._saves = False

    def serve(self, open_handler: "Callable[[], PairRequests]") -> None:
        # Start the listener before the heavy imports, because it ends the process if the client disappears.
        threading.Thread(target=self._listen, name="engine-listener", daemon=True).start()
        self._send(messages.Hello())
        try:
            self._handler = handler = open_handler()
        except Exception as error:  # noqa: BLE001 - report a broken installation, then end the process
            self._send(failure_of(error))
            return
        while not isinstance(request := self._next(handler), messages.Quit):
            if request is not None and not self._begun_beside(request):
                self._perform(handler, request)
        while self._replies:  # wait for the replies that Quit has cancelled
            self._inbox.get()
        if writing() or handler.unsaved():
            self._saves = True
            self._send(messages.Saving())
        handler.close()
        with suppress(OSError):
            self._sink.close()
        finish(SAVE_SECONDS)

    def _next(self, handler: "PairRequests") -> Request | None:
        """Wait for a request. If no reply runs, the handler prefills and measures during the wait."""
        with suppress(queue.Empty):
            return self._inbox.get(timeout=IDLE_SECONDS)
        try:
            if not self._replies:
                handler.rest(lambda: bool(self._replies) or not self._inbox.empty())
        except Exception as error:  # noqa: BLE001 - the error belongs to no request, so it is only logged
            log.warning("between two requests: %s: %s", type(error).__name__, error)
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

    def _listen(self) -> None:
        """Read requests in another thread, so that Quit can end the process even during a native call."""
        try:
            with suppress(OSError):
                for _, request in messages.read_messages(self._source):
                    self._receive(request)
        except Exception as error:  # noqa: BLE001 - nobody waits for this thread
            self._send(failure_of(error))
        self._receive(messages.Quit())

    def _receive(self, request: Request) -> None:
        if isinstance(request, messages.Cancel):
            if found := self._replies.get(request.serial):
                found.set()
            return
        if isinstance(request, messages.Generate | messages.Embed):
            self._replies[request.serial] = threading.Event()
        if isinstance(request, messages.Quit):
            if self._quits:
                return
            self._quits = True
            deadline = threading.Timer(0.4, self._end)  # end the process even if models are not freed yet
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
        """Start a thread for a request that may run during others; return whether a thread started."""
        handler = self._handler
        if handler is None or not handler.runs_beside(request):
            return False

        def perform() -> None:
            self._perform(handler, request)
            self._inbox.put(None)

        threading.Thread(target=perform, daemon=True).start()
        return True

    def _send(self, report: Report, serial: int = 0) -> None:
        line = messages.encode(report, serial)
        try:
            with self._sink_lock:
                self._sink.write(line)
                self._sink.flush()
        except (OSError, ValueError):  # the pipe is closed: the client is gone, or this process is ending
            self._receive(messages.Quit())


def failure_of(error: Exception, serial: int = 0) -> Failure:
    name = type(error).__name__
    if isinstance(error, LocalspecError):
        return Failure(name, str(error), error.hint, serial, dict(getattr(error, "numbers", {})))
    if isinstance(error, MemoryError):
        hint = "choose a smaller pair or a shorter context"
        return Failure(NotEnoughMemory.__name__, "the engine process ran out of memory", hint, serial)
    if isinstance(error, OSError) and error.filename:
        hint = "check the path, its permissions, and the disk"
        return Failure(name, f"{error.filename}: {error.strerror}", hint, serial)
    what = f"localspec made a mistake in its engine: {name}: {error}"
    return Failure(name, what, REPORT, serial)


def take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Return the pipes to the client; redirect stdout to stderr, so that native prints break no message."""
    sys.stdout.flush()
    source = os.fdopen(os.dup(0), "rb")
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return source, sink


def open_handler() -> "PairRequests":
    gc.disable()  # garbage collection would only cost time, because imports make no garbage
    if spec := find_spec("llama_cpp"):  # skip llama_cpp/__init__.py, whose imports are slow and unused
        sys.modules["llama_cpp"] = module_from_spec(spec)
    from localspec.engine.requests import PairRequests

    gc.freeze()
    gc.enable()
    return PairRequests()


def main() -> None:
    limit_this_process(largest_file=None)  # files of prompt caches may be large
    # Ignore Ctrl-C, because the client then sends Cancel or Quit.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    RequestLoop(*take_pipes()).serve(open_handler)
    # A regular exit would fail, because the listener still reads from its pipe.
    os._exit(0)


if __name__ == "__main__":
    main()
