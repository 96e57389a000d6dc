"""The queue of requests to the one engine, which a crash or a request for another pair restarts.

As many are answered at once as the loaded pair has lanes.
"""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from localspec.engine import messages
from localspec.engine.client import EngineProcess
from localspec.engine.messages import Failure, LoadPair, Report
from localspec.errors import EngineDied
from localspec.events import Finished, Piece
from localspec.serve.bodies import Problem
from localspec.serve.numbers import Totals

MOST_WAITING: Final = 256  # requests
PATIENCE_SECONDS: Final = 30.0  # that a background request lets others pass
SWAP_SECONDS: Final = 10.0  # that a request for another pair lets those for the loaded one pass
STUCK_SECONDS: Final = 60.0  # after which an engine that ignores a cancel is ended
_STOPPED: Final = Failure("EngineDied", "the server is being ended", "ask again once it runs")
_ANSWERS: Final = (messages.Rendered, messages.Tokens, messages.Text)  # to questions

Question = messages.Render | messages.Tokenize | messages.Detokenize
MakeQuestion = Callable[[int], Question]  # with a serial
Make = Callable[[int], messages.Answer | Question]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The pair in the engine."""

    load: LoadPair
    ready: messages.Ready


class Job:
    """One request to the engine; its reports are awaited one by one."""

    def __init__(
        self, jobs: "Jobs", load: LoadPair, make: Make | None, background: bool, awake: asyncio.Event | None
    ) -> None:
        """Without `make` the job only loads the pair. `awake` is set with each report."""
        self.load = load
        self.make = make
        self.background = background
        self.came = time.monotonic()
        self.queued_seconds = 0.0  # until the engine got it
        self.serial = 0  # once the engine has it
        self.wanted = True
        self._reports: deque[Report] = deque()
        self._awake = awake or asyncio.Event()
        self._jobs = jobs

    async def next(self, timeout_seconds: float | None = None) -> Report | None:
        """The next report, or None after the timeout. Raises Problem."""
        if not self.reported and not await came(self._awake, timeout_seconds):
            return None
        return self.take()

    @property
    def reported(self) -> bool:
        """Whether a report waits."""
        return bool(self._reports)

    def take(self) -> Report:
        """The next report, which waits already; pieces that wait are joined. Raises Problem."""
        report = self._reports.popleft()
        if isinstance(report, Failure):
            raise Problem.named(report.error, report.what, report.hint)
        while isinstance(report, Piece) and self._reports:
            more = self._reports[0]
            if not isinstance(more, Piece) or replace(more, text=report.text) != report:
                break
            self._reports.popleft()
            report = replace(report, text=report.text + more.text)
        return report

    def tell(self, report: Report) -> None:
        """Add a report."""
        self._reports.append(report)
        self._awake.set()

    async def last(self) -> Report:
        """The report that ends it; a cancelled wait gives it up. Raises Problem."""
        try:
            while True:
                report = await self.next()
                if isinstance(report, (Finished, *_ANSWERS)):
                    return report
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Its client has left; after its end this does nothing."""
        self._jobs.give_up(self)


class Jobs:
    """Everything here runs in the event loop; the engine's threads only wake it."""

    def __init__(
        self, process: EngineProcess, first: LoadPair, keep_alive_seconds: float | None = None
    ) -> None:
        """`process` runs and loads `first` already. Call inside the event loop.

        `keep_alive_seconds` without a request unload the pair; None: nothing does.
        """
        self.process = process
        self._keep_alive = self.keep_alive_seconds = keep_alive_seconds  # a request may change the second
        self._unloading: asyncio.TimerHandle | None = None
        self._waiting: list[Job] = []
        self._head: Job | None = None  # the pair is being loaded for it
        self._running: dict[int, Job] = {}  # by serial
        self._aside: dict[int, Job] = {}  # by serial: questions that the engine answers beside a reply
        self._serials = itertools.count(1)
        self._load: LoadPair | None = first  # in the engine, or on its way there
        self.first = first
        self.loaded: Loaded | None = None
        self.stage = ""
        self.trouble: Failure | None = None  # why the last load failed
        self.restarts = 0
        self.totals = Totals()
        self.on_change: Callable[[], object] = lambda: None
        self.on_event: Callable[[str], object] = lambda text: None  # a sentence about the pair
        self._loop = asyncio.get_running_loop()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody listens any more
                self._loop.call_soon_threadsafe(self._pump)

        process.on_report = wake
        self._loop.call_soon(self._pump)

    @property
    def running(self) -> int:
        """Requests that the engine answers, or loads a pair for."""
        return len(self._running) + (self._head is not None)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def asleep(self) -> bool:
        """Whether the pair in `loaded` was unloaded; the next request loads it again."""
        return self.loaded is not None and self._load is None

    @property
    def seconds_left(self) -> float | None:
        """Until the idle pair is unloaded; None: a reply runs, or nothing unloads it."""
        return self._unloading.when() - self._loop.time() if self._unloading else None

    @property
    def parallel(self) -> int:
        """The number of requests that the engine can answer at once; 1 until it is known."""
        return self.loaded.ready.parallel if self.loaded else 1

    def submit(
        self,
        load: LoadPair,
        make: Make | None,
        *,
        background: bool = False,
        awake: asyncio.Event | None = None,
    ) -> Job:
        """Queue a request for the pair of `load`; `awake` is set with each report. Raises Problem if too many wait."""
        require_room(len(self._waiting))
        job = Job(self, load, make, background, awake)
        self._waiting.append(job)
        self._advance()
        return job

    def ask(self, load: LoadPair, make: MakeQuestion) -> Job:
        """The loaded pair answers beside a reply; a question to another pair is queued. Raises Problem."""
        if self.loaded is None or self._load != load:
            return self.submit(load, make)
        require_room(len(self._aside))
        job = Job(self, load, make, background=False, awake=None)
        self._send(job, make)
        self._aside[job.serial] = job
        self._changed()
        return job

    def give_up(self, job: Job) -> None:
        """Take it from the queue, or cancel it."""
        job.wanted = False
        if job in self._waiting:
            self._waiting.remove(job)
        elif self._aside.pop(job.serial, None) is None and job.serial in self._running:
            self.process.send(messages.Cancel(job.serial))
            self._loop.call_later(STUCK_SECONDS, self._end_if_stuck, job)
        self._changed()

    def stop(self) -> None:
        """End every waiting reply with an error: the server is being ended."""
        head = [self._head] if self._head else []
        for job in (*head, *self._running.values(), *self._waiting, *self._aside.values()):
            job.tell(_STOPPED)

    def close(self) -> None:
        """End the engine; waiting requests get no answer."""
        self._running, self._waiting, self._aside = {}, [], {}  # whoever leaves later has nothing to cancel
        self.process.on_report = lambda: None
        self.process.close()

    def _in_order(self) -> list[Job]:
        """First come, first served; background work and requests for another pair let others pass for a while."""
        now = time.monotonic()

        def key(job: Job) -> tuple[bool, bool, float]:
            waited = now - job.came
            swaps = job.load != self._load and waited < SWAP_SECONDS
            return swaps, job.background and waited < PATIENCE_SECONDS, job.came

        return sorted(self._waiting, key=key)

    def _advance(self) -> None:
        """Give the engine the next requests; one for another pair waits until no reply runs."""
        while self._waiting and self._head is None:
            job = self._in_order()[0]
            if len(self._running) >= (self.parallel if self._load == job.load else 1):
                break
            self._waiting.remove(job)
            if self.loaded is not None and self._load == job.load:
                self._begin(job)
                continue
            self._head = job
            if self._load != job.load:
                self._restart(job.load)
        self._changed()

    def _changed(self) -> None:
        """Begin to count idle seconds, or stop. Tell the watcher later and apart: its failure stalls no queue."""
        if self._unloading is not None:
            self._unloading.cancel()
            self._unloading = None
        busy = self._running or self._head or self._waiting or self._aside
        if self.keep_alive_seconds is not None and self._load is not None and self.loaded and not busy:
            self._unloading = self._loop.call_later(self.keep_alive_seconds, self._unload)
        self._loop.call_soon(lambda: self.on_change())

    def keep_alive(self, seconds: float | None) -> None:
        """Change how long the pair is kept without a request; None: until it is replaced."""
        self.keep_alive_seconds = seconds
        self._changed()

    def _unload(self) -> None:
        self.keep_alive_seconds, self._load = self._keep_alive, None
        self.process.unload()
        self._note("the idle pair was unloaded")
        self._changed()

    def _note(self, event: str) -> None:
        """As `_changed`, later and apart."""
        self._loop.call_soon(lambda: self.on_event(event))

    def _begin(self, job: Job) -> None:
        if job.make is None or not job.wanted:
            assert self.loaded is not None
            job.tell(self.loaded.ready)
        else:
            self._send(job, job.make)
            self._running[job.serial] = job

    def _send(self, job: Job, make: Make) -> None:
        job.serial, job.queued_seconds = next(self._serials), time.monotonic() - job.came
        self.process.send(make(job.serial))

    def _restart(self, load: LoadPair) -> None:
        """A fresh process: the memory of the old pair is free before the new one is loaded."""
        self._load, self.loaded, self.stage = load, None, ""
        self._waiting += self._aside.values()  # their process is gone: the new one is asked again
        self._aside = {}
        try:
            self.process.start()
        except EngineDied as error:
            self._load_failed(Failure("EngineDied", str(error), error.hint))
            return
        self.process.send(load)

    def _pump(self) -> None:
        for serial, report in self.process.drain_numbered():
            self._receive(serial, report)

    def _receive(self, serial: int, report: Report) -> None:
        match report:
            case messages.LoadStage(text=text):
                self.stage = text
                self._changed()
            case messages.Ready():
                assert self._load is not None
                self.loaded = Loaded(self._load, report)
                self._note(f"{report.pair} is ready")
                job, self._head = self._head, None
                if job is not None:
                    self._begin(job)
                self._advance()
            case messages.Died(what=what, hint=hint):
                self._died(Failure("EngineDied", what, hint))
            case Failure() if not serial and self.loaded is None:
                self._load_failed(report)
                self._advance()
            case _:
                self._deliver(serial, report)

    def _deliver(self, serial: int, report: Report) -> None:
        """Hand a report to the request that it belongs to, unless its client has left."""
        if serial in self._aside:
            self._aside.pop(serial).tell(report)
            self._changed()
            return
        if serial not in self._running:
            return
        self._running[serial].tell(report)
        if isinstance(report, (Finished, Failure, *_ANSWERS)):
            del self._running[serial]
            self._advance()
        if isinstance(report, Finished):
            self.totals.add(report.reply.stats)

    def _died(self, why: Failure) -> None:
        """Fail the current requests and load the same pair again, unless its load was the cause."""
        for job in (*self._running.values(), *self._aside.values()):  # one of them may be the cause
            job.tell(why)
        self._running, self._aside = {}, {}
        if self.loaded is None:
            self._load_failed(why)
        else:
            self._note(f"{why.what}; {self.loaded.ready.pair} is loaded again")
            self.restarts += 1
            self._restart(self.loaded.load)
        self._advance()

    def _load_failed(self, why: Failure) -> None:
        """The next request tries again."""
        self._note(f"the pair cannot be loaded: {why.what}")
        self.trouble, self._load = why, None
        job, self._head = self._head, None
        if job is not None:
            job.tell(why)

    def _end_if_stuck(self, job: Job) -> None:
        if self._running.get(job.serial) is job:
            self._died(Failure("EngineDied", "the engine hung", "localspec started it again: ask again"))


async def came(awake: asyncio.Event, timeout_seconds: float | None) -> bool:
    """Wait for the next report; False after the timeout."""
    awake.clear()
    try:
        await asyncio.wait_for(awake.wait(), timeout_seconds)
    except TimeoutError:
        return False
    return True


def require_room(waiting: int) -> None:
    """Raises Problem if too many wait."""
    if waiting >= MOST_WAITING:
        raise Problem(503, "queue_full", f"{MOST_WAITING} requests wait already")
