"""The part that all interfaces share: bodies in, JSON or a stream of replies out, questions to the engine."""

import asyncio
import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from copy import copy
from functools import partial
from typing import Any, Final, Self, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from localspec.engine.messages import Answer, Render, Rendered, Report
from localspec.errors import BadSetting, LocalspecError
from localspec.events import Finished, Kind, Piece, Reply, Scored, Scores, Started, ToolCall
from localspec.serve.bodies import GONE, Fields, Problem
from localspec.serve.jobs import Jobs, Loaded, MakeQuestion
from localspec.serve.pairs import Chosen, Pairs
from localspec.serve.replies import Asked, Done, Replies

LARGEST_BODY: Final = 32 * 2**20  # bytes
FIRST_SECONDS: Final = 1.0  # a mistake that shows so soon gets a status of its own
PING_SECONDS: Final = 5.0  # of silence, after which a comment keeps the connection alive
NO_CALL: Final = ToolCall("", {}, "")
log = logging.getLogger(__name__)
R = TypeVar("R", bound=Report)
T = TypeVar("T")
Handler = Callable[[Request], Coroutine[Any, Any, Response]]
ErrorBody = Callable[[Problem], object]


class Writer(ABC):
    """One interface's form of a reply, whole or as a stream of blocks: reasoning, text, calls."""

    media_type = "text/event-stream"

    def __init__(self, model: str) -> None:
        self._model = model
        self.unsent: list[Scored] = []  # scores that no chunk has had yet
        self.index = 0  # of the reply
        self.kind: Kind | None = None  # of the open block
        self.call = NO_CALL  # that the block is, if it is one

    def of_reply(self, number: int) -> Self:
        """The same for another of several replies."""
        found = copy(self)
        found.index, found.unsent = number, []
        return found

    def take_scores(self) -> list[Scored]:
        taken, self.unsent = self.unsent, []
        return taken

    @abstractmethod
    def whole(self, done: list[Done]) -> dict[str, Any]: ...

    @abstractmethod
    def grow(self, text: str) -> Iterable[bytes]:
        """More text of the open block."""

    @abstractmethod
    def finished(self, done: Done) -> Iterable[bytes]: ...

    def piece(self, piece: Piece) -> Iterator[bytes]:
        if piece.call or piece.kind is not self.kind:
            yield from self.close()
            self.kind, self.call = piece.kind, piece.call or NO_CALL
            yield from self.open()
        if piece.text:
            yield from self.grow(piece.text)

    def open(self) -> Iterable[bytes]:
        """The beginning of a block."""
        return ()

    def close(self, *, cut: bool = False) -> Iterable[bytes]:
        """The end of the open block, if there is one; `cut`: it is a call that was."""
        return ()

    def begin(self) -> Iterable[bytes]:
        return ()

    def started(self, started: Started) -> Iterable[bytes]:
        return ()

    def end(self, done: list[Done]) -> Iterable[bytes]:
        return ()

    def last(self, done: Done) -> Iterator[bytes]:
        """The end of a reply, and of its open block."""
        called = {call.id for call in done.reply.tool_calls}
        yield from self.close(cut=self.kind is Kind.TOOL_CALL and self.call.id not in called)
        yield from self.finished(done)

    def failed(self, problem: Problem) -> bytes:
        return data_line(problem.body())

    def silence(self) -> bytes:
        """A sign of life while there is no text."""
        return b": working\n\n"


async def fields_of(request: Request) -> Fields:
    """The object in the body. Raises Problem, BadSetting."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > LARGEST_BODY:
                raise Problem(413, "body_too_large", f"the body is larger than {LARGEST_BODY // 2**20} MiB")
    except ClientDisconnect:
        raise gone() from None
    if not body:
        raise BadSetting("the body is empty", hint="send one JSON object")
    try:
        found = json.loads(body)
    except ValueError as error:
        raise BadSetting(f"the body is not JSON: {error}", hint="send one JSON object") from None
    if not isinstance(found, dict):
        raise BadSetting("the body is not an object", hint="send one JSON object")
    return Fields(found)


def parts_of(reply: Reply) -> Iterator[tuple[Kind, str, ToolCall]]:
    """The blocks of a whole reply; the text of a call is that of its arguments."""
    if reply.reasoning.strip():
        yield Kind.REASONING, reply.reasoning, NO_CALL
    if reply.text.strip() or not reply.tool_calls:
        yield Kind.ANSWER, reply.text, NO_CALL
    for call in reply.tool_calls:
        yield Kind.TOOL_CALL, json.dumps(call.arguments, ensure_ascii=False), call


def gone() -> Problem:
    return Problem(GONE, "gone", "the client left")


def dumped(value: object) -> bytes:
    """A value as JSON, with any characters."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def answer(value: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(dumped(value), status, headers, "application/json")


def data_line(value: object) -> bytes:
    """A server-sent event."""
    return b"data: " + dumped(value) + b"\n\n"


def named_event(kind: str, **values: Any) -> bytes:  # noqa: ANN401  JSON
    """A server-sent event with a type, as Anthropic's and the Responses interface send."""
    return f"event: {kind}\n".encode() + data_line({"type": kind, **values})


def guarded(handler: Handler, error_body: ErrorBody) -> Handler:
    """The handler, with errors as answers in the interface's own form."""

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
        # The SDKs of OpenAI and Anthropic ask again after any 5xx, unless this header says that it is no use.
        headers = {"x-should-retry": "false"} if problem.status == 501 else None
        return answer(error_body(problem), status=problem.status, headers=headers)

    return handle


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The work's result; it is cancelled when the client leaves. Raises Problem."""

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


class ReplyStream(Response):
    """Sends replies as they come; a client that leaves, at any moment, stops them."""

    def __init__(self, replies: Replies, first: tuple[int, Report] | None, writer: Writer) -> None:
        """`first`: the report that was read already."""
        always = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(None, 200, always, writer.media_type)
        del self.headers["content-length"]
        self._replies, self._first, self._writer = replies, first, writer
        self._reason = ""  # of an early end
        self._writers = [writer, *map(writer.of_reply, range(1, replies.asked.count))]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._send(send))
        except Problem as problem:  # the client left
            self._reason = problem.message
        finally:
            self._replies.give_up()
            scope["reason"] = self._reason

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for chunk in self.chunks():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def chunks(self) -> AsyncIterator[bytes]:
        replies, writer = self._replies, self._writer
        found, spoke = self._first, time.monotonic()
        for chunk in writer.begin():
            yield chunk
        try:
            while True:
                for chunk in self._told(found):
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
            problem = error if isinstance(error, Problem) else Problem.failure(error)
            if problem is not error:
                log.exception("a stream ended early")
            self._reason = problem.message
            yield writer.failed(problem)

    def _told(self, found: tuple[int, Report] | None) -> Iterable[bytes]:
        if found is None:
            return ()
        number, report = found
        writer = self._writers[number]
        match report:
            case Started():
                return writer.started(report)
            case Scores(tokens=tokens):
                writer.unsent += tokens
            case Piece():
                return writer.piece(report)
            case Finished():
                return writer.last(self._replies.finished[number])
        return ()


class Interface:
    """The base of all handlers: the queue, the pairs, and questions to the engine."""

    def __init__(self, jobs: Jobs, pairs: Pairs) -> None:
        self._jobs = jobs
        self._pairs = pairs

    def _chosen(self, fields: Fields) -> Chosen:
        """The model of a request. Raises BadSetting, Problem."""
        return self._pairs.choose(fields.take("model", str, ""))

    def _asked(self, fields: Fields, prompts: tuple[Answer, ...], options: dict[str, Any]) -> Asked:
        """The whole request; `n` among the options is the number of replies. Raises BadSetting, Problem."""
        chosen, stream = self._chosen(fields), fields.take("stream", bool, False)
        replies, notices = options.pop("n", 1), tuple(fields.notices)
        return Asked(chosen, prompts, options, stream, replies, fields.unknown(), notices)

    async def respond(self, request: Request, asked: Asked, writer: Writer) -> Response:
        """The replies, as a stream if the request asks for one. Raises Problem before the stream begins."""
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

    async def _told(self, request: Request, chosen: Chosen, make: MakeQuestion, kind: type[R]) -> R:
        """The engine's answer to a question, unless the client leaves. Raises Problem."""
        report = await unless_gone(request.receive, self._jobs.ask(chosen.load, make).last())
        assert isinstance(report, kind)
        return report

    async def _rendered(self, request: Request, asked: Asked) -> Rendered:
        """The prompt that a reply would read."""
        make = partial(Render, messages=asked.prompts[0].messages, options=asked.options)
        return await self._told(request, asked.chosen, make, Rendered)

    def _loaded(self) -> Loaded:
        """The loaded pair. Raises Problem while there is none."""
        if self._jobs.loaded is None:
            raise Problem(503, "loading", self._jobs.stage or "loading the pair")
        return self._jobs.loaded
