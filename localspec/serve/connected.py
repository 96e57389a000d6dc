"""The engine's own messages over HTTP, for `localspec chat --connect`: every cycle of a reply, not only its text."""

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from localspec.engine import frames
from localspec.engine.messages import (
    PROTOCOL,
    Ask,
    Cancel,
    Failure,
    ListPairs,
    LoadPair,
    PairList,
    PairRow,
    Ready,
)
from localspec.engine.remote import CONNECTION, PAIR, VERSION
from localspec.errors import BadSetting, EngineDied
from localspec.events import Finished
from localspec.serve.http import PING_SECONDS, EventStream, bytes_of
from localspec.serve.interface import Interface
from localspec.serve.jobs import Job, Jobs
from localspec.serve.pairs import Pairs
from localspec.serve.problems import RequestFailed

MEDIA_TYPE = "application/x-ndjson"
HEADERS = {VERSION: str(PROTOCOL)}
STOPPED = Failure("Cancelled", "stopped before it began", "")


class Connected(Interface):
    """The handler; cancels find the reply that they mean by the connection's name."""

    def __init__(self, jobs: Jobs, pairs: Pairs) -> None:
        super().__init__(jobs, pairs)
        self._running: dict[str, Job] = {}

    async def messages(self, request: Request) -> Response:
        try:
            told = frames.decode(await bytes_of(request))
        except EngineDied as error:
            raise BadSetting(
                "the body is no message of localspec's engine", hint="update both ends"
            ) from error
        name, pair = request.headers.get(CONNECTION, ""), request.headers.get(PAIR, "")
        match told:
            case ListPairs():
                return Response(frames.encode(PairList(self._rows())), 200, HEADERS, MEDIA_TYPE)
            case Cancel():
                if job := self._running.get(name):
                    give_up(job)
                return Response(None, 200, HEADERS, MEDIA_TYPE)
            case LoadPair():
                return self._stream(self._jobs.submit(self._pairs.choose(pair).load, None), 0, name)
            case Ask():
                make = partial(with_serial, told)
                return self._stream(self._jobs.submit(self._pairs.choose(pair).load, make), told.serial, name)
        raise BadSetting(
            f"{type(told).__name__} is not answered here", hint="run localspec where the server is"
        )

    def _stream(self, job: Job, serial: int, name: str) -> Response:
        if serial:
            self._running[name] = job

        def ended() -> None:
            if self._running.get(name) is job:
                del self._running[name]
            job.give_up()

        return EventStream(lines(job, serial), MEDIA_TYPE, HEADERS, ended)

    def _rows(self) -> tuple[PairRow, ...]:
        return tuple(
            PairRow(name, "", 0, 0, on_disk=True, runnable=True, fits="cpu")
            for name in self._pairs.names()
            if ":" not in name
        )


def give_up(job: Job) -> None:
    """Cancel it; the engine reports the end of what runs, of what waits nobody would."""
    waits = job.position > 0
    job.give_up()
    if waits:
        job.tell(STOPPED)


def with_serial(asked: Ask, serial: int) -> Ask:
    return replace(asked, serial=serial)


async def lines(job: Job, serial: int) -> AsyncIterator[bytes]:
    """What the engine reports, a frame each; an empty line where it has been silent. `serial`: the client's own."""
    try:
        while True:
            report = await job.next(PING_SECONDS)
            if isinstance(report, Ready) and serial:  # it was given up before it began
                report = replace(STOPPED, serial=serial)
            yield b"\n" if report is None else frames.encode(report)
            if isinstance(report, Finished | Ready | Failure):
                return
    except RequestFailed as error:
        yield frames.encode(Failure(error.problem.code, error.problem.message, "", serial))
