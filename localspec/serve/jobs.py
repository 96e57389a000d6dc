"""The requests that wait for the engine, one after the other, and the engine that a crash or another pair restarts."""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Protocol

from localspec.engine.messages import (
    Answer,
    Cancel,
    Describe,
    Description,
    Detokenize,
    Died,
    Failure,
    LoadPair,
    LoadStage,
    Ready,
    Render,
    Rendered,
    Report,
    Request,
    Text,
    Tokenize,
    Tokens,
)
from localspec.errors import EngineDied
from localspec.events import Finished, Piece, Reply
from localspec.serve.bodies import RequestFailed, described, failed
from localspec.serve.numbers import Totals

MOST_WAITING: Final = 256  # requests
PATIENCE_SECONDS: Final = 30.0  # that a background request lets others pass
SWAP_SECONDS: Final = 10.0  # that a request for another pair lets those for the loaded one pass
STUCK_SECONDS: Final = 60.0  # after which an engine that does not heed a cancel is ended
_LAST: Final = (Finished, Failure, Rendered, Tokens, Text)
_STOPPED: Final = Failure("EngineDied", "the server is being ended", "ask again once it runs")

Question = Answer | Render | Tokenize | Detokenize


class Process(Protocol):
    """What is needed of `localspec.engine.client.EngineProcess`."""

    on_report: Callable[[], object]

    def start(self) -> None: ...

    def send(self, request: Request) -> None: ...

    def drain(self) -> list[Report]: ...

    @property
    def pid(self) -> int | None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Loaded:
    """The pair in the engine."""

    load: LoadPair
    ready: Ready
    description: Description


class Job:
    """One request to the engine; its reports are awaited one by one."""

    def __init__(
        self, jobs: "Jobs", load: LoadPair, make: Callable[[int], Question] | None, background: bool
    ) -> None:
        """`make`: the request for a serial; None only loads."""
        self.load = load
        self.make = make
        self.background = background
        self.came = time.monotonic()
        self.serial = 0  # once it is the engine's
        self.wanted = True
        self._reports: deque[Report] = deque()
        self._awake = asyncio.Event()
        self._jobs = jobs

    @property
    def position(self) -> int:
        """How many requests are answered before it; 0: it is being answered."""
        return self._jobs.position(self)

    async def next(self, timeout_seconds: float | None = None) -> Report | None:
        """The next report, or None after the timeout; text that waits is joined. Raises RequestFailed."""
        if not self._reports:
            self._awake.clear()
            try:
                await asyncio.wait_for(self._awake.wait(), timeout_seconds)
            except TimeoutError:
                return None
        report = self._reports.popleft()
        if isinstance(report, Failure):
            raise RequestFailed(described(report.error, report.what, report.hint))
        return self._joined(report) if isinstance(report, Piece) else report

    def _joined(self, piece: Piece) -> Piece:
        while self._reports and isinstance(more := self._reports[0], Piece):
            if replace(more, text=piece.text) != piece:
                break
            self._reports.popleft()
            piece = replace(piece, text=piece.text + more.text)
        return piece

    def tell(self, report: Report) -> None:
        """Add a report."""
        self._reports.append(report)
        self._awake.set()

    async def last(self) -> Report:
        """The report that ends it; it is given up when whoever waits is cancelled. Raises RequestFailed."""
        try:
            while True:
                report = await self.next()
                if isinstance(report, _LAST):
                    return report
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Nobody waits for it any more; nothing happens when it has ended."""
        self._jobs.give_up(self)


class Jobs:
    """Everything here runs in the event loop; the engine's threads only wake it."""

    def __init__(self, process: Process, first: LoadPair) -> None:
        """`process` was started and told to load `first`. Call inside the event loop."""
        self._process = process
        self._waiting: list[Job] = []
        self._running: Job | None = None
        self._aside: dict[int, Job] = {}  # by serial: questions that the engine answers beside a reply
        self._serials = itertools.count(1)
        self._load: LoadPair | None = first  # in the engine, or on its way there
        self._ready: Ready | None = None
        self.first = first
        self.loaded: Loaded | None = None
        self.stage = ""
        self.trouble: Failure | None = None  # why the last load failed
        self.restarts = 0
        self.totals = Totals()
        self.on_change: Callable[[], object] = lambda: None
        self.on_reply: Callable[[Reply], object] = lambda reply: None
        self._loop = asyncio.get_running_loop()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody listens any more
                self._loop.call_soon_threadsafe(self._pump)

        process.on_report = wake
        self._loop.call_soon(self._pump)

    @property
    def pid(self) -> int | None:
        """Of the engine process."""
        return self._process.pid

    @property
    def busy(self) -> bool:
        """Whether the engine answers a request."""
        return self._running is not None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def submit(
        self, load: LoadPair, make: Callable[[int], Question] | None, *, background: bool = False
    ) -> Job:
        """Queue a request for the pair of `load`. Raises RequestFailed where too many wait."""
        if len(self._waiting) >= MOST_WAITING:
            raise _too_many()
        job = Job(self, load, make, background)
        self._waiting.append(job)
        self._advance()
        return job

    def ask(self, load: LoadPair, make: Callable[[int], Render | Tokenize | Detokenize]) -> Job:
        """The loaded pair answers beside a reply; another pair is waited for. Raises RequestFailed."""
        if self.loaded is None or self.loaded.load != load:
            return self.submit(load, make)
        if len(self._aside) >= MOST_WAITING:
            raise _too_many()
        job = Job(self, load, make, background=False)
        self._send(job, make)
        self._aside[job.serial] = job
        return job

    def position(self, job: Job) -> int:
        """How many are answered before it, the running one included."""
        if job not in self._waiting:
            return 0
        order = self._in_order()
        return order.index(job) + (self._running is not None)

    def give_up(self, job: Job) -> None:
        """Take it from the queue, or cancel it."""
        job.wanted = False
        if job in self._waiting:
            self._waiting.remove(job)
        elif self._aside.pop(job.serial, None) is None and job is self._running and job.serial:
            self._process.send(Cancel(job.serial))
            self._loop.call_later(STUCK_SECONDS, self._end_if_stuck, job)
        self._changed()

    def stop(self) -> None:
        """Tell everybody who waits that the server is being ended."""
        for job in (self._running, *self._waiting, *self._aside.values()):
            if job is not None:
                job.tell(_STOPPED)

    def close(self) -> None:
        """End the engine; what waits is not answered."""
        self._process.on_report = lambda: None
        self._process.close()

    def _in_order(self) -> list[Job]:
        """First come, first served; what needs another pair, and background work, let others pass for a while."""
        now = time.monotonic()

        def key(job: Job) -> tuple[bool, bool, float]:
            waited = now - job.came
            swaps = job.load != self._load and waited < SWAP_SECONDS
            return swaps, job.background and waited < PATIENCE_SECONDS, job.came

        return sorted(self._waiting, key=key)

    def _advance(self) -> None:
        """Give the engine the next request, after the pair that it needs."""
        if self._running is None and self._waiting:
            self._running = job = self._in_order()[0]
            self._waiting.remove(job)
            if self._load != job.load:
                self._restart(job.load)
            elif self.loaded is not None:
                self._begin(job)
        self._changed()

    def _changed(self) -> None:
        """Whoever watches is told later and apart: what fails there stalls no queue."""
        self._loop.call_soon(lambda: self.on_change())

    def _begin(self, job: Job) -> None:
        if job.make is None or not job.wanted:
            assert self._ready is not None
            job.tell(self._ready)
            self._end()
            return
        self._send(job, job.make)

    def _send(self, job: Job, make: Callable[[int], Question]) -> None:
        job.serial = next(self._serials)
        self._process.send(make(job.serial))

    def _end(self) -> None:
        self._running = None
        self._advance()

    def _restart(self, load: LoadPair) -> None:
        """A fresh process: the memory of the pair before is free before the next one is loaded."""
        self._load, self.loaded, self.trouble = load, None, None
        self._waiting += self._aside.values()  # the process that they were asked of is gone
        self._aside = {}
        try:
            self._process.start()
        except EngineDied as error:
            self._load_failed(Failure("EngineDied", str(error), error.hint))
            return
        self._process.send(load)

    def _pump(self) -> None:
        for report in self._process.drain():
            self._receive(report)

    def _receive(self, report: Report) -> None:
        job = self._running
        match report:
            case LoadStage(text=text):
                self.stage = text
                self._changed()
            case Ready():
                self._ready = report
                self._process.send(Describe(0))
            case Description():
                assert self._load is not None
                assert self._ready is not None
                self.loaded = Loaded(self._load, self._ready, report)
                if job is not None:
                    self._begin(job)
                self._changed()
            case Died(what=what, hint=hint):
                self._died(Failure("EngineDied", what, hint))
            case Failure(serial=0) if self.loaded is None:
                self._load_failed(report)
            case Rendered() | Tokens() | Text() | Failure() if report.serial in self._aside:
                self._aside.pop(report.serial).tell(report)
            case Rendered() | Tokens() | Text() if job is None or report.serial != job.serial:
                pass  # whoever asked has left
            case Failure(serial=serial) if serial and (job is None or serial != job.serial):
                pass
            case _ if job is not None and job.serial:
                job.tell(report)
                if isinstance(report, _LAST):
                    self._end()
                if isinstance(report, Finished):
                    self.totals.add(report.reply)
                    self._loop.call_soon(lambda: self.on_reply(report.reply))

    def _died(self, why: Failure) -> None:
        """Tell whoever is answered, and load the same pair again, unless that is what it died of."""
        for asked in self._aside.values():  # one of them may be the reason
            asked.tell(why)
        self._aside = {}
        if self.loaded is None:
            self._load_failed(why)
            return
        self.restarts += 1
        assert self._load is not None
        job, self._running = self._running, None
        if job is not None:
            job.tell(why)
        self._restart(self._load)
        self._advance()

    def _load_failed(self, why: Failure) -> None:
        """The next request tries again."""
        self.trouble, self._load = why, None
        if self._running is not None:
            self._running.tell(why)
            self._end()
        self._changed()

    def _end_if_stuck(self, job: Job) -> None:
        if self._running is job and self._load is not None:
            self._died(Failure("EngineDied", "the engine did not heed a cancel", "it was started again"))


def _too_many() -> Exception:
    return failed(503, "unavailable_error", "queue_full", f"{MOST_WAITING} requests wait already")
