"""Start the engine process, send requests to it, and collect its reports. Only `EngineSession` waits for reports."""

import queue
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from subprocess import Popen
from time import monotonic
from typing import Any, Final

from localspec import errors
from localspec.engine import messages
from localspec.engine.messages import Failure, Generate, LoadPair, Report
from localspec.engine.spawn import COMMAND, spawn
from localspec.errors import ANOTHER_COPY, REPORT, EngineDied, LocalspecError
from localspec.events import Event, Finished, Notice
from localspec.machine.children import describe_exit, died_by_signal
from localspec.machine.llama_build import BACKENDS, has_backend
from localspec.prompt.images import Image
from localspec.prompt.messages import Message, Messages, with_images
from localspec.stopping import Closing

CLOSE_SECONDS: Final = 0.8
SAVE_SECONDS: Final = 30.0  # longest wait until a process that is storing prompt caches has freed its memory
_KILL: Final = 9  # the number of SIGKILL, for Windows too, where signal.SIGKILL is missing
_LOOK_SECONDS: Final = 0.1  # longest wait for an event, because Windows delivers no Ctrl-C during that wait


class EngineProcess:
    """The client's side of the engine process, which `start` can replace any number of times."""

    def __init__(self, command: Sequence[str] = COMMAND, started: Popen[bytes] | None = None) -> None:
        self._command: Any = command if started is None else started.args
        self._started = started  # a running process that the first `start` takes over
        self._connection: _Connection | None = None
        self._changing = threading.Lock()  # guards `_connection`, because other threads may replace it
        self.on_report: Callable[[], object] = lambda: None  # called in another thread for each new report

    def start(self) -> None:
        """Start a process, and end the former one. Requests wait until the former process has freed its memory.

        If no process can be started, the former one stays. Raises EngineDied in this case.
        """
        with self._changing:
            started, self._started = self._started, None
            try:
                process = started or spawn(self._command)
            except OSError as error:
                what = f"the engine process could not be started: {error}"
                raise EngineDied(what, hint="reinstall localspec, or free some memory") from error
            self._connection = _Connection(self, process, self._connection)

    def send(self, request: messages.Request) -> None:
        with self._changing:
            assert self._connection is not None, "start() comes first"
            self._connection.send(request)

    def drain(self) -> list[Report]:
        return [report for _, report in self.drain_numbered()]

    def drain_numbered(self) -> list[tuple[int, Report]]:
        """Return the reports since the last call, each with the serial of its request."""
        inbox = self._connection.inbox if self._connection else deque()
        return [inbox.popleft() for _ in range(len(inbox))]

    def unload(self) -> None:
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
        """End the process within a second."""
        with self._changing:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.quit()
            connection.wait_for_end(CLOSE_SECONDS)


class _Connection:
    """One process and its three pipes, each read or written by a thread of its own."""

    def __init__(self, owner: EngineProcess, process: Popen[bytes], before: "_Connection | None") -> None:
        """`before`: a process that must end first."""
        self.inbox: deque[tuple[int, Report]] = deque()
        self._owner = owner
        self.outbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._last_words: deque[str] = deque(maxlen=40)
        self._stage = ""  # the latest stage of loading, for the message of a failed load
        self._closing = self._saving = False
        self._silent = threading.Event()  # set when the process has closed its pipe and freed its memory
        self.process = process
        self._before = before
        if before is not None:
            before.quit()
        # Start `_read` last: at the end of the process it waits for the thread that reads stderr.
        works = (self._listen_to_stderr, self._write, self._read)
        threads = [threading.Thread(target=work, daemon=True) for work in works]
        self._stderr_ends = threads[0].join
        for thread in threads:
            thread.start()

    def send(self, request: messages.Request) -> None:
        """Queue a request. An invalid request fails in this call, not in the writing thread."""
        self.outbox.put(messages.encode(request))

    def quit(self) -> None:
        """Request the end of the process, which is then not reported as Died."""
        self._closing = True
        self.send(messages.Quit())
        self.outbox.put(b"")

    def wait_for_end(self, timeout_seconds: float, saving_seconds: float = 0.0) -> None:
        """Wait for the end of this process and of the one before it; kill a process that takes more than the timeout.

        A process that stores prompt caches is not killed; wait `saving_seconds` for it to free its memory.
        """
        deadline = monotonic() + timeout_seconds
        gone = self._waited(0)
        while not (gone or (self._saving and self._silent.is_set())) and monotonic() < deadline:
            gone = self._waited(_LOOK_SECONDS)
        if self._saving:
            self._silent.wait(saving_seconds)
        elif not gone:
            self.process.kill()
            self._waited(5.0)  # wait at most 5 s, because a process may be stuck in a driver
        before, self._before = self._before, None
        if before is not None:
            before.wait_for_end(0)

    def _waited(self, seconds: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return self.process.returncode is not None

    def _read(self) -> None:
        failure = None
        assert self.process.stdout is not None
        try:
            for serial, report in messages.read_messages(self.process.stdout):
                if isinstance(report, messages.Saving):
                    self._saving = True
                else:
                    self._receive(report, serial)
                del report  # free the report now, because a report can have megabytes
            self._silent.set()
        except EngineDied as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - if this thread just ended, the client would wait for ever
            what = f"the connection to the engine process broke: {type(error).__name__}: {error}"
            failure = EngineDied(what, hint=f"restart localspec; if this happens again, {REPORT}")
        if failure:
            self.process.kill()
        exit_code = self.process.wait()
        if self._closing:
            return
        self._stderr_ends(timeout=1)
        self._receive(self._obituary(exit_code, failure))

    def _receive(self, report: Report, serial: int = 0) -> None:
        if isinstance(report, messages.LoadStage):
            self._stage = report.text
        self.inbox.append((serial, report))
        self._owner.on_report()

    def _obituary(self, exit_code: int, reason: EngineDied | None) -> messages.Died:
        if reason is not None:
            return messages.Died(str(reason), reason.hint)
        words = [line for line in self._last_words if line.strip()][-3:]
        for error, hint in pairwise([*words, ""]):
            if error.startswith("error: "):
                return messages.Died(error.removeprefix("error: "), hint.removeprefix("hint: "))
        if (how := describe_exit(exit_code)) == "SIGBUS":
            words.append("a model file may have been cut while it was open, or its disk may have failed")
        elif died_by_signal(exit_code) and -exit_code != _KILL and any(map(has_backend, BACKENDS)):
            words.append("a driver may be at fault: try --flash-attn off, or use the CPU: --device CPU")
        if not words and self._stage.startswith(("checking", "loading", "warming")):
            words.append(f"the file may be damaged: {ANOTHER_COPY}")
        doing = f" while {self._stage}" if self._stage not in ("", "running") else ""
        what = f"the engine process ended unexpectedly ({how}){doing}"
        return messages.Died(what, " · ".join(words))

    def _write(self) -> None:
        sink = self.process.stdin
        assert sink is not None
        if (before := self._before) is not None:
            before.wait_for_end(CLOSE_SECONDS, SAVE_SECONDS)
            self._before = None
        # Ignore a broken pipe here, because `_read` reports the end of the process.
        with suppress(OSError):
            while line := self.outbox.get():
                sink.write(line)
                sink.flush()
                del line

    def _listen_to_stderr(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._last_words.append(line.decode(errors="replace").rstrip())


class EngineSession(Closing):
    def __init__(self, engine: EngineProcess | None = None) -> None:
        """Start `engine`, by default a new EngineProcess. Raises EngineDied."""
        self._engine = engine or EngineProcess()
        self._arrived = threading.Event()
        self._engine.on_report = self._arrived.set
        self._engine.start()
        self._serial = 0
        self._history: Messages = ()
        self._notices: list[Notice] = []
        self.name = self.target_name = self.draft_name = ""
        self.called = ""  # the pair's name, with the draft's name if localspec found the draft
        self.files: tuple[str, ...] = ()  # paths of the loaded pair's files
        self.stops_loops = False  # whether a reply that repeats itself ends
        self.conversation = ""  # name of the stored conversation; if set, its prompt caches go to the disk

    def load(self, request: LoadPair, on_stage: Callable[[str], object]) -> None:
        """Load a pair. Raises the errors of `localspec.load`, and EngineDied."""
        self._engine.send(request)
        self.files, found = request.pair.paths, request.pair.has_own_draft
        for report in self._reports():
            match report:
                case messages.LoadStage(text=text):
                    on_stage(text)
                case Notice():
                    self._notices.append(report)
                case messages.Ready():
                    self.name, self.target_name, self.draft_name = report.pair, report.target, report.draft
                    self.called = (
                        f"{self.name} with {self.draft_name}" if found and report.draft else self.name
                    )
                    return

    def resume(self, messages: Iterable[Message]) -> None:
        self._history = tuple(messages)

    def stream(self, prompt: str, images: Sequence[Image] = (), **options: Any) -> Iterator[Event]:
        """Request an answer to the prompt, after the messages of `resume`. Yield the reply's events except Cycle."""
        return self._reply(Generate(0, (*self._history, with_images(prompt, images)), options))

    def stream_complete(self, text: str, **options: Any) -> Iterator[Event]:
        return self._reply(Generate(0, options=options, continued=text))

    def cancel(self) -> None:
        self._engine.send(messages.Cancel(self._serial))

    def close(self) -> None:
        self._engine.close()

    def _reply(self, request: Generate) -> Iterator[Event]:
        self._serial += 1
        request = replace(request, conversation=self.conversation, stops_loops=self.stops_loops)
        self._engine.send(replace(request, serial=self._serial))
        yield from self._notices
        self._notices.clear()
        for report in self._reports():
            if isinstance(report, Event):
                yield report
            if isinstance(report, Finished):
                return

    def _reports(self) -> Iterator[Report]:
        while True:
            self._arrived.wait(_LOOK_SECONDS)
            self._arrived.clear()
            for report in self._engine.drain():
                if isinstance(report, messages.Died):
                    raise EngineDied(report.what, hint=report.hint)
                if isinstance(report, Failure):
                    raise getattr(errors, report.error, LocalspecError)(report.what, hint=report.hint)
                yield report
