"""The queue of requests to the engine. The engine is restarted after a crash, or to load another pair."""

import asyncio
import itertools
import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from localspec.engine import messages
from localspec.engine.client import EngineProcess
from localspec.engine.messages import Failure, LoadPair, Question, Report
from localspec.errors import EngineDied
from localspec.events import Finished
from localspec.models.local_models import ModelFile
from localspec.serve.numbers import Totals
from localspec.serve.options import Problem

MOST_WAITING: Final = 256  # limit of requests in the queue
SWAP_SECONDS: Final = 10.0  # for this long, requests for the loaded pair go before one for another pair
STUCK_SECONDS: Final = 60.0  # an engine that does not react to a cancel for this time is ended
_SOON_SECONDS: Final = 0.1  # tolerance, because timers of the event loop may fire a little early
_STOPPED: Final = Failure("EngineDied", "the server is shutting down", "send it again when the server runs")
Asked = messages.Generate | messages.Embed | Question | None  # None: the job only loads the pair


@dataclass(eq=False, slots=True)
class Job:
    jobs: "Jobs"
    load: LoadPair
    request: Asked
    awake: asyncio.Event = field(default_factory=asyncio.Event)  # set when a report arrives
    came: float = field(default_factory=time.monotonic)
    queued_seconds: float = 0.0
    serial: int = 0  # 0 until the request is sent to the engine
    is_side_task: bool = False  # whether the engine answers the request beside running replies
    wanted: bool = True
    reports: deque[Report] = field(default_factory=deque)  # reports that `take` has not returned yet

    @property
    def fits_any_pair(self) -> bool:
        return isinstance(self.request, messages.Embed)

    async def next(self, timeout_seconds: float | None = None) -> Report | None:
        if not self.reports and not await came(self.awake, timeout_seconds):
            return None
        return self.take()

    def take(self) -> Report:
        report = self.reports.popleft()
        if isinstance(report, Failure):
            raise Problem.named(report.error, report.what, report.hint, report.numbers)
        return report

    def tell(self, report: Report) -> None:
        self.reports.append(report)
        self.awake.set()

    async def last(self) -> Report:
        """Wait for the job's last report and return it; cancel the job if the wait is cancelled. Raises Problem."""
        try:
            while True:
                report = await self.next()
                if isinstance(report, (Finished, messages.Rendered, messages.Embedded)):
                    return report
        finally:
            self.give_up()

    def give_up(self) -> None:
        self.jobs.give_up(self)


class Jobs:
    """The queue of jobs for the engine process. All its methods must run in the event loop."""

    def __init__(
        self, process: EngineProcess, first: LoadPair, keep_alive_seconds: float | None = None
    ) -> None:
        """`first`: the pair in `process`; `keep_alive_seconds`: idle time before a pair is unloaded."""
        self.process = process
        self._default_keep_alive = self.keep_alive_seconds = keep_alive_seconds
        self._unloading: asyncio.TimerHandle | None = None  # the timer that unloads the idle pair
        self._waiting: list[Job] = []
        self._head: Job | None = None  # the job that waits until its pair is loaded
        self._sent: dict[int, Job] = {}  # jobs in the engine, by serial
        self._serials = itertools.count(1)
        self.load: LoadPair | None = first  # the pair that is loaded or loading
        self.first = first
        self.loaded: messages.Ready | None = None
        self.stage = ""
        # For each embedding model in memory, the event loop's time at which it will be freed.
        self.small: dict[tuple[ModelFile, str], float] = {}
        self.trouble: Failure | None = None  # the reason for the last failed load
        self.restarts = 0
        self.totals = Totals()
        self.on_change: Callable[[], object] = lambda: None
        self.on_event: Callable[[str], object] = lambda text: None  # called with a sentence for the user
        self._loop = asyncio.get_running_loop()

        def wake() -> None:
            with suppress(RuntimeError):  # the event loop may be closed already
                self._loop.call_soon_threadsafe(self._pump)

        process.on_report = wake
        self._loop.call_soon(self._pump)

    @property
    def running(self) -> int:
        return sum(not job.is_side_task for job in self._sent.values()) + (self._head is not None)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def asleep(self) -> bool:
        return self.loaded is not None and self.load is None

    @property
    def seconds_left(self) -> float | None:
        return self._unloading.when() - self._loop.time() if self._unloading else None

    @property
    def parallel(self) -> int:
        return self.loaded.parallel if self.loaded else 1

    def submit(self, load: LoadPair, request: Asked, awake: asyncio.Event | None = None) -> Job:
        """Queue a request; set `awake` at each of its reports. Raises Problem if too many requests wait."""
        check_space(len(self._waiting))
        job = Job(self, load, request, awake or asyncio.Event())
        job.is_side_task = job.fits_any_pair
        self._waiting.append(job)
        self._advance()
        return job

    def ask(self, load: LoadPair, question: Question | messages.Embed) -> Job:
        """Send a question for the loaded pair at once; queue a question for another pair. Raises Problem."""
        if self.loaded is None or self.load != load:
            return self.submit(load, question)
        check_space(len(self._sent))
        job = Job(self, load, question, is_side_task=True)
        self._begin(job)
        self._changed()
        return job

    def embed(self, request: messages.Embed) -> Job:
        """Send a request to an embedding model, which runs beside any pair. Raises Problem."""
        self.keep_small((request.file, request.pooling), math.inf)
        return self.ask(self.load or self.first, request)

    def keep_small(self, key: tuple[ModelFile, str], seconds: float) -> None:
        """Free an embedding model after this time without a request; the end of its pair also frees the model."""
        if key in self.small:
            self.small[key] = self._loop.time() + seconds
            if seconds < math.inf:
                self._loop.call_later(seconds, self._free_small, *key)

    def _free_small(self, file: ModelFile, pooling: str) -> None:
        if self.small.get((file, pooling), math.inf) <= self._loop.time() + _SOON_SECONDS:
            del self.small[file, pooling]
            self.process.send(messages.Embed(next(self._serials), file, (), pooling))

    def give_up(self, job: Job) -> None:
        """Cancel a job whose client has left; do nothing if the job has ended."""
        job.wanted = False
        if job in self._waiting:
            self._waiting.remove(job)
        elif job.is_side_task:
            if self._sent.pop(job.serial, None) and job.fits_any_pair:
                self.process.send(messages.Cancel(job.serial))
        elif job.serial in self._sent:
            self.process.send(messages.Cancel(job.serial))
            self._loop.call_later(STUCK_SECONDS, self._end_if_stuck, job)
        self._changed()

    def stop(self) -> None:
        for job in filter(None, (self._head, *self._sent.values(), *self._waiting)):
            job.tell(_STOPPED)

    def close(self) -> None:
        self._sent, self._waiting = {}, []  # `give_up` must send no cancel to the closed process
        self.process.on_report = lambda: None
        self.process.close()

    def _in_order(self) -> list[Job]:
        """Return embeddings first, then the oldest jobs; for SWAP_SECONDS a job for another pair comes last."""
        late = time.monotonic() - SWAP_SECONDS

        def place(job: Job) -> tuple[bool, bool, float]:
            return not job.fits_any_pair, job.load != self.load and job.came > late, job.came

        return sorted(self._waiting, key=place)

    def _advance(self) -> None:
        """Send the next jobs to the engine; a job for another pair waits until no reply runs."""
        while self._waiting and self._head is None:
            job = self._in_order()[0]
            if not job.fits_any_pair and self.running >= (self.parallel if self.load == job.load else 1):
                break
            self._waiting.remove(job)
            if self.loaded is not None and self.load == job.load:
                self._begin(job)
            else:
                self._head = job
                if self.load != job.load:
                    self._restart(job.load)
        self._changed()

    def _changed(self) -> None:
        """Set or stop the unload timer, and schedule a call of `on_change`."""
        if self._unloading is not None:
            self._unloading.cancel()
        busy, seconds = self._sent or self._head or self._waiting, self.keep_alive_seconds
        self._unloading = None
        if seconds is not None and self.load is not None and self.loaded is not None and not busy:
            self._unloading = self._loop.call_later(seconds, self._unload)
        self._loop.call_soon(lambda: self.on_change())  # later, so that a failure cannot stall the queue

    def keep_alive(self, seconds: float | None) -> None:
        self.keep_alive_seconds = seconds
        self._changed()

    def _unload(self) -> None:
        self.keep_alive_seconds, self.load = self._default_keep_alive, None
        self.small.clear()
        self.process.unload()
        self.notify("the idle pair was unloaded")
        self._changed()

    def notify(self, event: str) -> None:
        self._loop.call_soon(self.on_event, event)

    def _begin(self, job: Job) -> None:
        assert self.loaded is not None
        if job.request is None or not job.wanted:
            job.tell(self.loaded)
            return
        job.serial, job.queued_seconds = next(self._serials), time.monotonic() - job.came
        self._sent[job.serial] = job
        self.process.send(replace(job.request, serial=job.serial))

    def _restart(self, load: LoadPair) -> None:
        """Load a pair in a new process, because the end of the old process frees the memory of the old pair."""
        self.load, self.loaded, self.stage = load, None, ""
        self.small.clear()
        self._waiting += self._sent.values()  # only questions are left, because no reply runs now
        self._sent = {}
        for job in self._waiting:
            job.load = load if job.fits_any_pair else job.load
        try:
            self.process.start()
            self.process.send(load)
        except EngineDied as error:
            self._load_failed(Failure("EngineDied", str(error), error.hint))

    def _pump(self) -> None:
        for serial, report in self.process.drain_numbered():
            self._receive(serial, report)

    def _receive(self, serial: int, report: Report) -> None:
        match report:
            case messages.LoadStage(text=text):
                self.stage = text
                self._changed()
            case messages.Ready():
                self.loaded = report
                self.notify(f"{report.pair} is ready")
                head, self._head = self._head, None
                if head is not None:
                    self._begin(head)
                self._advance()
            case messages.Died(what=what, hint=hint):
                self._died(Failure("EngineDied", what, hint))
            case Failure() if not serial and self.loaded is None:
                self._load_failed(report)
                self._advance()
            case _ if serial in self._sent:  # reports of other serials are dropped: their clients have left
                self._sent[serial].tell(report)
                asked = self._sent[serial].request
                if isinstance(asked, messages.Embed) and isinstance(report, messages.Embedded):
                    self.small[asked.file, asked.pooling] = math.inf
                if isinstance(report, (Finished, Failure, messages.Rendered, messages.Embedded)):
                    del self._sent[serial]
                    self._advance()
                if isinstance(report, Finished):
                    self.totals.add(report.reply.stats)

    def _died(self, why: Failure) -> None:
        """Fail the jobs in the engine, and load the pair again unless the process died during a load."""
        for job in self._sent.values():  # not sent again, because one of them may have caused the crash
            job.tell(why)
        self._sent = {}
        if self.loaded is None:
            self._load_failed(why)
        else:
            self.notify(f"{why.what}; {self.loaded.pair} is loaded again")
            self.restarts += 1
            self._restart(self.load or self.first)
        self._advance()

    def _load_failed(self, why: Failure) -> None:
        self.notify(f"the pair cannot be loaded: {why.what}")
        self.trouble, self.load = why, None
        head, self._head = self._head, None
        if head is not None:
            head.tell(why)

    def _end_if_stuck(self, job: Job) -> None:
        if job.serial in self._sent:
            self._died(Failure("EngineDied", "the engine stopped responding", "send the request again"))


async def came(awake: asyncio.Event, timeout_seconds: float | None) -> bool:
    awake.clear()
    # Not `wait_for`, which in Python 3.11 loses a cancel that comes together with a report.
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_seconds):
            return await awake.wait()
    return False


def check_space(waiting: int) -> None:
    if waiting >= MOST_WAITING:
        raise Problem(503, "queue_full", f"{MOST_WAITING} requests wait already (send this request later)")
