"""Starts an engine process and talks to it: without ever blocking, requests go into a queue and reports come out of
one; a session waits for its reply.
"""

import queue
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from time import monotonic
from typing import Any, BinaryIO, Final

from localspec import errors
from localspec.engine.messages import (
    PROTOCOL,
    Answer,
    Cancel,
    Died,
    Failure,
    Hello,
    LoadPair,
    LoadStage,
    Quit,
    Ready,
    Report,
    Request,
    Saving,
    encode,
    read_messages,
)
from localspec.engine.spawn import COMMAND, spawn
from localspec.errors import ANOTHER_COPY, EngineDied, LocalspecError
from localspec.events import Cycle, Event, Finished, Notice, Piece, Started
from localspec.health.installed import BACKENDS, has_backend
from localspec.health.stopping import Closing
from localspec.health.trial import describe_exit, died_by_signal

CLOSE_SECONDS: Final = 0.8
KILL_SECONDS: Final = 5.0  # a process stuck in a driver may outlive its kill
SAVE_SECONDS: Final = 30.0  # that a new process waits for the memory of one that stores caches
_KILL: Final = 9  # SIGKILL, a name that Windows lacks
_NO_CRASHES: Final = (1, 2, _KILL, 15)  # nor are SIGHUP, SIGINT and SIGTERM
_LOOK_SECONDS: Final = 0.1  # Windows hears no Ctrl-C while it waits for an event
LAST_WORDS: Final = 3  # lines of stderr that explain a death


class EngineProcess:
    """An engine in a child process; one object survives any number of restarts."""

    def __init__(
        self, command: Sequence[str] = COMMAND, started: subprocess.Popen[bytes] | None = None
    ) -> None:
        """`started`: the first process. `on_report`, if set, is called in another thread when `drain` has reports."""
        self._command: Any = command if started is None else started.args
        self._started = started
        self._connection: _Connection | None = None
        self._changing = threading.Lock()  # the connection, which a process that dies may replace
        self.on_report: Callable[[], object] = lambda: None

    def start(self) -> None:
        """Start a process, and end the one before: requests wait for that, so that its memory is free by then.

        Raises EngineDied when none can be started; the one before then stays.
        """
        with self._changing:
            self._connection = self._connect(self._connection)

    def send(self, request: Request) -> None:
        """Queue a request."""
        with self._changing:
            assert self._connection is not None, "start() comes first"
            self._connection.send(request)

    def drain(self) -> list[Report]:
        """The reports since the last call."""
        return [report for _, report in self.drain_numbered()]

    def drain_numbered(self) -> list[tuple[int, Report]]:
        """The reports since the last call, each after the serial of its request."""
        inbox = self._connection.inbox if self._connection else deque()
        return [inbox.popleft() for _ in range(len(inbox))]

    def unload(self) -> None:
        """Let the process free its memory and end; `start` begins another one."""
        with self._changing:
            if self._connection is not None:
                self._connection.quit()

    @property
    def alive(self) -> bool:
        return self._connection is not None and self._connection.process.poll() is None

    @property
    def pid(self) -> int | None:
        return self._connection.process.pid if self._connection else None

    def close(self) -> None:
        """Ask the process to quit, and kill it when it does not within a second."""
        with self._changing:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.quit()
            connection.wait_for_end(CLOSE_SECONDS)

    def _connect(self, before: "_Connection | None", resumes: "_Connection | None" = None) -> "_Connection":
        process, self._started = self._started, None
        try:
            process = process or spawn(self._command)
        except OSError as error:
            what = f"the engine process could not be started: {error}"
            raise EngineDied(what, hint="check the installation") from error
        return _Connection(process, before, lambda: self.on_report(), self._try_again, resumes)

    def _try_again(self, dead: "_Connection", cause: str) -> bool:
        """Ask a new process the same, without repacked weights; False if that was tried or cannot help.

        Some builds crash when they repack weights of some types for this processor.
        """
        with self._changing:
            if dead is not self._connection or not dead.unanswered or dead.unanswered[0].died_of:
                return False
            load, *others = dead.unanswered
            dead.unanswered = [replace(load, died_of=cause), *others]
            self._connection = self._connect(None, resumes=dead)
        return True


class _Connection:
    """One process with its pipes; three threads keep every pipe moving."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        before: "_Connection | None",
        on_report: Callable[[], object],
        on_crash: Callable[["_Connection", str], bool],
        resumes: "_Connection | None" = None,
    ) -> None:
        """`before` gets a request to quit; the new process gets nothing until that one is gone.

        `resumes`: a connection whose process crashed; the new process gets its open requests.
        `on_crash` receives how llama.cpp ended the process; True: another process continues its work.
        """
        self.inbox: deque[tuple[int, Report]] = deque()
        self.unanswered: list[Any] = []  # a LoadPair and later requests, until the first token of any
        self.heard: set[object] = set()  # reports since then, not repeated by a process that starts over
        self._on_report, self._on_crash = on_report, on_crash
        self.outbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        if resumes is not None:
            self.inbox, self.heard, self.unanswered = resumes.inbox, resumes.heard, resumes.unanswered
            for request in self.unanswered:
                self.outbox.put(encode(request))
        self._last_words: deque[str] = deque(maxlen=40)
        self._stage = ""  # of loading; its last one is that the pair runs, and where
        self._closing = self._saving = False
        self._silent = threading.Event()  # the process closed its pipe
        self.process = process
        self._before = before
        if before is not None:
            before.quit()
        # The reader last: it waits for the end of stderr when the process dies, which may be at once.
        threads = {"stderr": self._listen_to_stderr, "writer": self._write, "reader": self._read}
        self._threads = [
            threading.Thread(target=target, name=f"engine-{name}", daemon=True)
            for name, target in threads.items()
        ]
        for thread in self._threads:
            thread.start()

    def send(self, request: Request) -> None:
        """Queue a request; an invalid one fails here, and not in the shared thread."""
        self.outbox.put(encode(request))
        if isinstance(request, LoadPair):
            self.unanswered = [request]
        elif self.unanswered:
            self.unanswered.append(request)

    def quit(self) -> None:
        """Ask the process to end; its end is not reported."""
        self._closing, self.unanswered = True, []
        self.send(Quit())
        self.outbox.put(b"")

    def wait_for_end(self, patience_seconds: float, saving_seconds: float = 0.0) -> None:
        """Return when the process and the one before it are gone; they are killed when they take longer.

        One that stores caches is left alone when its memory is free, or `saving_seconds` later.
        """
        deadline = monotonic() + patience_seconds
        gone = self._waited(0)
        while not (gone or (self._saving and self._silent.is_set())) and monotonic() < deadline:
            gone = self._waited(_LOOK_SECONDS)
        if self._saving:
            self._silent.wait(saving_seconds)
        elif not gone:
            self.process.kill()
            self._waited(KILL_SECONDS)
        before, self._before = self._before, None
        if before is not None:
            before.wait_for_end(0)

    def _waited(self, seconds: float) -> bool:
        """Whether the process is gone, after that long at most."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
            return True
        return False

    def _read(self) -> None:
        """Turn the end of the stream into a report, so that the UI gets it in order."""
        failure = None
        try:
            for serial, report in read_messages(_pipe(self.process.stdout)):
                if isinstance(report, Hello) and report.protocol != PROTOCOL:
                    raise EngineDied(
                        f"the engine process speaks protocol {report.protocol}, this program {PROTOCOL}",
                        hint="localspec was updated while it ran: start it again",
                    )
                if isinstance(report, Saving):
                    self._saving = True
                else:
                    self._receive(report, serial)
            self._silent.set()
        except EngineDied as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - a silent end of this thread would leave the client waiting
            what = f"the connection to the engine process broke: {type(error).__name__}: {error}"
            failure = EngineDied(what, hint="please report it; the conversation is safe")
        if failure:
            self.process.kill()
        self._report_end(failure)

    def _report_end(self, failure: EngineDied | None) -> None:
        exit_code = self.process.wait()
        if self._closing:
            return
        self._threads[0].join(timeout=1)
        aborted = any(line.startswith("error: llama.cpp aborted") for line in self._last_words)
        crashed = (died_by_signal(exit_code) and -exit_code not in _NO_CRASHES) or aborted
        if not (crashed and self._on_crash(self, describe_exit(exit_code))):
            self._receive(self._obituary(exit_code, failure))

    def _receive(self, report: Report, serial: int = 0) -> None:
        if isinstance(report, LoadStage):
            self._stage = report.text
        if self.unanswered and self._is_repeated(report, serial):
            return
        self.inbox.append((serial, report))
        self._on_report()

    def _is_repeated(self, report: Report, serial: int) -> bool:
        """Whether an earlier process sent this report for the same requests; remembers it if not."""
        if isinstance(report, Cycle | Piece | Finished | Failure):
            self.unanswered, self.heard = [], set()
            return False
        if not isinstance(report, Hello | Ready | Started | Notice):
            return False
        once = serial, report if isinstance(report, Notice) else type(report)
        repeated = once in self.heard
        self.heard.add(once)
        return repeated

    def _obituary(self, exit_code: int, reason: EngineDied | None) -> Died:
        if reason is not None:
            return Died(str(reason), reason.hint)
        words = [line for line in self._last_words if line.strip()][-LAST_WORDS:]
        for error, hint in pairwise([*words, ""]):
            if error.startswith("error: "):  # it could say what ends it
                return Died(error.removeprefix("error: "), hint.removeprefix("hint: "))
        if died_by_signal(exit_code) and -exit_code != _KILL and any(map(has_backend, BACKENDS)):
            words.append("a driver may be at fault: try --flash-attn off, or use the CPU: --device CPU")
        if not words and self._stage.startswith(("checking", "loading", "warming")):
            words.append(f"the file may be damaged: {ANOTHER_COPY}")
        doing = f" while {self._stage}" if self._stage not in ("", "running") else ""
        what = f"the engine process ended unexpectedly ({describe_exit(exit_code)}){doing}"
        return Died(what, " · ".join(words))

    def _write(self) -> None:
        sink = _pipe(self.process.stdin)
        if (before := self._before) is not None:
            before.wait_for_end(CLOSE_SECONDS, SAVE_SECONDS)
            self._before = None
        # A broken pipe is reported by the reader, which sees the end of the process.
        with suppress(OSError):
            while line := self.outbox.get():
                sink.write(line)
                sink.flush()

    def _listen_to_stderr(self) -> None:
        for line in _pipe(self.process.stderr):
            self._last_words.append(line.decode(errors="replace").rstrip())


def _pipe(stream: Any) -> BinaryIO:  # noqa: ANN401 - Popen types its pipes as optional
    assert stream is not None
    return stream  # type: ignore[no-any-return]


class EngineSession(Closing):
    """One pair in one engine process."""

    def __init__(self, engine: EngineProcess | None = None) -> None:
        """`engine`: a process to use instead of a new one, not started yet. Raises EngineDied."""
        self._engine = engine or EngineProcess()
        self._arrived = threading.Event()
        self._engine.on_report = self._arrived.set
        self._engine.start()
        self._serial = 0
        self._history: tuple[dict[str, Any], ...] = ()
        self._notices: list[Notice] = []
        self.name = self.target_name = self.draft_name = ""

    def load(self, on_stage: Callable[[str], object], **options: Any) -> None:  # noqa: ANN401
        """Load a pair by the options of `localspec.load`. Raises the same errors, and EngineDied."""
        self._engine.send(LoadPair.of(**options))
        for report in self._reports():
            match report:
                case LoadStage(text=text):
                    on_stage(text)
                case Notice():
                    self._notices.append(report)
                case Ready():
                    self.name, self.target_name, self.draft_name = report.pair, report.target, report.draft
                    return

    def resume(self, messages: Sequence[dict[str, Any]]) -> None:
        """Continue a conversation from elsewhere."""
        self._history = tuple(messages)

    def stream(self, prompt: str, **options: Any) -> Iterator[Event]:  # noqa: ANN401
        """Answer in the conversation, event by event but for cycles; the last one is Finished."""
        messages = (*self._history, {"role": "user", "content": prompt})
        return self._answer(Answer(self._next_serial(), messages=messages, options=options))

    def stream_complete(self, text: str, **options: Any) -> Iterator[Event]:  # noqa: ANN401
        """Continue a raw text, event by event."""
        return self._answer(Answer(self._next_serial(), text=text, options=options))

    def cancel(self) -> None:
        """Stop the reply and keep its text."""
        self._engine.send(Cancel(self._serial))

    def close(self) -> None:
        """End the process within a second."""
        self._engine.close()

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def _answer(self, request: Answer) -> Iterator[Event]:
        self._engine.send(request)
        yield from self._notices
        self._notices.clear()
        for report in self._reports():
            if isinstance(report, Event):
                yield report
            if isinstance(report, Finished):
                return

    def _reports(self) -> Iterator[Report]:
        """Reports as they come. Raises the error in a report."""
        while True:
            self._arrived.wait(_LOOK_SECONDS)
            self._arrived.clear()
            for report in self._engine.drain():
                if isinstance(report, Died):
                    raise EngineDied(report.what, hint=report.hint)
                if isinstance(report, Failure):
                    raise error_of(report)
                yield report


def error_of(failure: Failure) -> LocalspecError:
    """The error that ended a request in the engine process."""
    kind = getattr(errors, failure.error, LocalspecError)
    known = isinstance(kind, type) and issubclass(kind, LocalspecError)
    return (kind if known else LocalspecError)(failure.what, hint=failure.hint)
