"""The code that all interfaces share: bodies, answers as JSON or as a stream, questions to the engine."""

import asyncio
import json
import logging
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from typing import Any, Final, Self, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from localspec.engine.messages import Generate, Question, Ready, Rendered, Report
from localspec.errors import BadSetting, LocalspecError
from localspec.events import Cycle, Finished, Kind, Piece, Scored, Scores, Started
from localspec.serve.jobs import Jobs
from localspec.serve.numbers import Running
from localspec.serve.options import GONE, Fields, Problem
from localspec.serve.replies import Block, Chosen, Pairs, Replies, ReplyRequest, ServedReply, begins, fold

LARGEST_BODY: Final = 32 * 2**20  # limit of bytes in the body of a request
MOST_SIGNS: Final = 2_000_000  # limit of commas, [ and { in a body: a parsed JSON value takes up to 200 bytes
SMALL_BODY: Final = 2**16  # bytes; parsing this many takes less time than the start of a thread
MOST_BODIES: Final = 64 * 2**20  # limit of bytes in the bodies of all open requests together
FIRST_SECONDS: Final = 1.0  # a stream waits this long for an early error before it sends the HTTP status
PING_SECONDS: Final = 5.0  # after this time without text, a stream sends a comment to show that it is alive
log = logging.getLogger(__name__)
T = TypeVar("T")
Handler = Callable[[Request], Coroutine[Any, Any, Response]]
ErrorBody = Callable[[Problem], object]


class Writer(ABC):
    """The base class of writers. A writer turns a reply into one HTTP answer or into a stream."""

    media_type = "text/event-stream"

    def __init__(self, model: str) -> None:
        self._model = model
        self.begin_reply(0)

    def begin_reply(self, index: int) -> Self:
        self.index = index
        self.running = Running()
        self.unsent: list[Scored] = []  # token scores for the next chunk
        self.live: dict[str, Any] = {}  # timings and progress for the next chunk
        self.blocks: list[Block] = []  # blocks of the reply so far; the last one still grows
        return self

    @property
    def kind(self) -> Kind | None:
        return self.blocks[-1].kind if self.blocks else None

    def take_scores(self) -> list[Scored]:
        taken, self.unsent = self.unsent, []
        return taken

    @abstractmethod
    def whole(self, done: list[ServedReply]) -> Any: ...

    @abstractmethod
    def grow(self, text: str) -> Iterable[bytes]: ...  # writes `text`, the next part of the newest block

    @abstractmethod
    def finished(self, done: ServedReply) -> Iterable[bytes]: ...

    def piece(self, piece: Piece) -> Iterator[bytes]:
        if new := begins(self.blocks, piece):
            yield from self.close()
        fold(self.blocks, piece)
        if new:
            yield from self.open()
        if piece.text:
            yield from self.grow(piece.text)

    def nothing(self, *_: Any, **__: Any) -> Iterable[bytes]:  # by default, nothing is sent for an event
        return ()

    begin = end = nothing  # a subclass may override these to send a text before and after the stream
    started = cycle = nothing  # a subclass may override these to send a text for a Started or a Cycle event
    open = close = nothing  # a subclass may override these for the ends of a block; `done`: the ended reply
    empty = nothing  # a subclass may override this to send a chunk without text, with the values in `live`

    def failed(self, problem: Problem) -> bytes:
        return data_line(problem.body())

    def silence(self) -> bytes:
        return b": working\n\n"


async def fields_of(request: Request) -> Fields:
    """Return the fields of the JSON object in the request's body. Raises Problem, BadSetting."""
    body, signs = bytearray(), 0
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", "deflate"):
        what = f"the body has the encoding {encoding[:40]!r} (send it uncompressed, or as gzip)"
        raise Problem(415, "encoding", what)
    unpacking = None if encoding == "identity" else zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        async for chunk in request.stream():
            if unpacking:
                chunk = unpacking.decompress(chunk, LARGEST_BODY + 1 - len(body))
            body += chunk
            signs += sum(map(chunk.count, (b",", b"[", b"{")))
            if signs > MOST_SIGNS:
                raise Problem(413, "body_too_large", f"send at most {MOST_SIGNS:,} commas and brackets")
            if len(body) > LARGEST_BODY:
                raise Problem(413, "body_too_large", f"send at most {LARGEST_BODY // 2**20} MiB in a body")
            bodies = request.scope.setdefault("bodies", {})  # bytes of each open request, from Guard
            bodies[id(request.scope)] = len(body)
            if sum(bodies.values()) > MOST_BODIES:
                what = f"all open requests together exceed the limit of {MOST_BODIES // 2**20} MiB"
                raise Problem(503, "bodies_too_large", f"{what} (retry when some of them are answered)")
    except ClientDisconnect:
        raise gone() from None
    except zlib.error as error:
        raise BadSetting(f"the body is not {encoding}: {error}", hint="send it uncompressed") from None
    try:
        found = json.loads(body) if len(body) < SMALL_BODY else await asyncio.to_thread(json.loads, body)
    except ValueError as error:
        what = f"the body is not JSON: {error}" if body else "the body is empty"
        raise BadSetting(what, hint="send one JSON object") from None
    if not isinstance(found, dict):
        raise BadSetting("the body is JSON, but not an object", hint="send one JSON object")
    return Fields(found, owner=request.scope.get("owner", ""))


def gone() -> Problem:
    return Problem(GONE, "gone", "the client left")


def failure_of(error: Exception) -> Problem:
    return Problem(500, "server_error", f"localspec failed: {type(error).__name__}")


def dumped(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def answer(value: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(dumped(value), status, headers, "application/json")


def data_line(value: object) -> bytes:
    return b"data: " + dumped(value) + b"\n\n"


def named_event(kind: str, **values: Any) -> bytes:
    return f"event: {kind}\n".encode() + data_line({"type": kind, **values})


def with_errors(handler: Handler, error_body: ErrorBody) -> Handler:
    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except Problem as error:
            problem = error
        except LocalspecError as error:
            problem = Problem.named(type(error).__name__, str(error), error.hint)
        except RecursionError:
            problem = Problem(400, "invalid_value", "the body is nested too deeply")
        request.scope["reason"] = problem.message
        # Without this header, the SDKs of OpenAI and Anthropic retry after any 5xx status.
        headers = {"x-should-retry": "false"} if problem.status == 501 else None
        return answer(error_body(problem), status=problem.status, headers=headers)

    return handle


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; cancel `work` if the client leaves first. Raises Problem."""

    async def left() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.create_task(work), asyncio.create_task(left())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise gone()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


class ReplyStream(StreamingResponse):
    """An answer that sends replies while they are written, and cancels the replies if the client leaves."""

    def __init__(self, replies: Replies, first: tuple[int, Report] | None, writer: Writer) -> None:
        """`first`: a report that came before the stream began, with the number of its reply."""
        always = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(self.chunks(), 200, always, writer.media_type)
        self._replies, self._first = replies, first
        self._reason = ""  # the reason for an early end of the stream
        self._writers = [writer, *(copy(writer).begin_reply(n) for n in range(1, replies.asked.count))]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self.stream_response(send))
        except Problem as problem:  # the client left
            written = sum(len(block.text) for served in self._replies.replies for block in served.blocks)
            after = f" after {written:,} characters from {self._replies.asked.chosen.name}"
            self._reason = problem.message + after * bool(written)
        finally:
            self._replies.give_up()
            scope["reason"] = self._reason

    async def chunks(self) -> AsyncIterator[bytes]:
        replies, writer = self._replies, self._writers[0]
        found, spoke = self._first, time.monotonic()
        for chunk in writer.begin():
            yield chunk
        try:
            while True:
                for chunk in self._written(*found) if found else ():
                    spoke = time.monotonic()
                    yield chunk
                if replies.complete:
                    break
                found = await replies.next(PING_SECONDS)
                if time.monotonic() - spoke >= PING_SECONDS:
                    spoke = time.monotonic()
                    yield writer.silence()
            for chunk in writer.end(replies.done):
                yield chunk
        except Exception as error:
            if not isinstance(error, Problem):
                log.exception("a stream ended early")
            problem = error if isinstance(error, Problem) else failure_of(error)
            self._reason = problem.message
            yield writer.failed(problem)

    def _written(self, number: int, report: Report) -> Iterator[bytes]:
        asked, writer = self._replies.asked, self._writers[number]
        has_news = writer.running.see(report) and asked.progress
        if not isinstance(report, Piece):  # a piece leaves the timings of its cycle as they are
            writer.live = {"timings": writer.running.timings} if asked.timed else {}
        match report:
            case Started():
                yield from writer.started(report)
            case Scores(tokens=tokens):
                writer.unsent += tokens
            case Cycle():
                yield from writer.cycle(report)
            case Piece():
                if asked.timed:
                    writer.live["timings"]["localspec"] |= {"origin": report.origin, "source": report.source}
                yield from writer.piece(report)
            case Finished():
                done = self._replies.replies[number]
                yield from writer.close(done)
                yield from writer.finished(done)
        if has_news:
            writer.live["prompt_progress"] = writer.running.progress
            yield from writer.empty()
            del writer.live["prompt_progress"]


class Interface:
    def __init__(self, jobs: Jobs, pairs: Pairs) -> None:
        self._jobs, self._pairs = jobs, pairs

    def _chosen(self, fields: Fields) -> Chosen:
        return self._pairs.choose(fields.take("model", str, ""))

    def _asked(self, fields: Fields, prompts: tuple[Generate, ...], options: dict[str, Any]) -> ReplyRequest:
        """Make a ReplyRequest from fields and reply options. Raises BadSetting, Problem."""
        chosen, stream = self._chosen(fields), fields.take("stream", bool, False)
        if any(prompt.messages and prompt.messages[0].role != "system" for prompt in prompts):
            # The system prompt of the user's settings is only for the chat.
            options["system"] = chosen.load.pair.own_options.get("system", "")
        names = ("ignore_eos", "return_progress", "timings_per_token")
        ignore_eos, progress, timed = (fields.take(name, bool, False) for name in names)
        with_usage = Fields(fields.take("stream_options", dict, {})).take("include_usage", bool, False)
        cycles = progress or timed
        count, options = options.pop("n", 1), options if chosen.speculate else {**options, "speculate": False}
        more: dict[str, Any] = {"options": options, "ignore_eos": ignore_eos, "owner": fields.owner}
        prompts = tuple(replace(prompt, cycles=prompt.cycles or cycles, **more) for prompt in prompts)
        notices = tuple(dict.fromkeys((*fields.unknown(), *fields.notices)))
        return ReplyRequest(chosen, prompts, stream, count, notices, progress, timed, with_usage)

    async def respond(self, request: Request, asked: ReplyRequest, writer: Writer) -> Response:
        """Return the replies as one answer, or as a stream if requested. Raises Problem only before a stream."""
        replies = request.scope["replies"] = Replies(self._jobs, asked)
        try:
            if asked.stream:
                first = await unless_gone(request.receive, replies.next(FIRST_SECONDS))
                return ReplyStream(replies, first, writer)
            done = await unless_gone(request.receive, replies.all())
        except BaseException:
            replies.give_up()
            raise
        return answer(writer.whole(done))

    async def _reported(self, request: Request, chosen: Chosen, question: Question) -> Rendered:
        report = await unless_gone(request.receive, self._jobs.ask(chosen.load, question).last())
        assert isinstance(report, Rendered)
        return report

    async def _rendered(self, request: Request, asked: ReplyRequest) -> Rendered:
        return await self._reported(request, asked.chosen, Question(0, asked.prompts[0]))

    async def _counted(self, request: Request, asked: ReplyRequest, **head: str) -> Response:
        return answer({**head, "input_tokens": len((await self._rendered(request, asked)).tokens)})

    async def _text_of(self, request: Request, asked: ReplyRequest, prompt: Generate) -> str:
        """Return the text that the model reads for a prompt; "" for an infill."""
        if prompt.messages:
            return (await self._rendered(request, asked)).text
        if isinstance(prompt.continued, tuple):
            return (await self._reported(request, asked.chosen, Question(0, tokens=prompt.continued))).text
        return prompt.continued if isinstance(prompt.continued, str) else ""

    def _loaded(self) -> Ready:
        if self._jobs.loaded is None:
            raise Problem(503, "loading", self._jobs.stage or "loading the pair")
        return self._jobs.loaded
