"""What all interfaces share of HTTP: bodies in, JSON or a stream out, and whoever leaves is noticed."""

import asyncio
import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from localspec.errors import LocalspecError
from localspec.events import Finished, Piece, Scores, Started
from localspec.serve import numbers
from localspec.serve.fields import Fields, parsed
from localspec.serve.jobs import Jobs
from localspec.serve.problems import BROKEN, GONE, Problem, RequestFailed, failed, problem_of
from localspec.serve.replies import Asked, Done, Prompt, Replies

LARGEST_BODY: Final = 32 * 2**20  # bytes
FIRST_SECONDS: Final = 1.0  # a mistake that shows so soon gets a status of its own
PING_SECONDS: Final = 5.0  # of silence, after which a comment keeps the connection alive
BACKGROUND_TOKENS: Final = 64  # a reply so short, without tools, is a title or a tag
log = logging.getLogger(__name__)
T = TypeVar("T")
ErrorBody = Callable[[Problem], object]


class Writer(ABC):
    """One interface's form of a reply, whole or as a stream; streams leave out what it has no words for."""

    media_type = "text/event-stream"

    @abstractmethod
    def whole(self, done: list[Done]) -> dict[str, Any]: ...

    @abstractmethod
    def piece(self, index: int, piece: Piece) -> Iterable[bytes]: ...

    @abstractmethod
    def finished(self, index: int, done: Done) -> Iterable[bytes]: ...

    def begin(self) -> Iterable[bytes]:
        return ()

    def started(self, index: int, started: Started) -> Iterable[bytes]:
        return ()

    def scores(self, index: int, scores: Scores) -> Iterable[bytes]:
        return ()

    def end(self, done: list[Done]) -> Iterable[bytes]:
        return ()

    def failed(self, problem: Problem) -> bytes:
        return data_line(openai_error(problem))

    def silence(self, position: int) -> bytes:
        """What is sent while there is nothing to say; b"" sends nothing."""
        return f": queued {position}\n\n".encode() if position else b": working\n\n"


async def fields_of(request: Request) -> Fields:
    """The object in the body. Raises RequestFailed, BadSetting."""
    return Fields(parsed(await bytes_of(request)))


async def bytes_of(request: Request) -> bytes:
    """The body, if it is not too large. Raises RequestFailed."""
    chunks, size = [], 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > LARGEST_BODY:
                limit = f"the body is larger than {LARGEST_BODY // 2**20} MiB"
                raise failed(413, "invalid_request_error", "body_too_large", limit)
            chunks.append(chunk)
    except ClientDisconnect:
        raise failed(GONE, "invalid_request_error", "gone", "the client left") from None
    return b"".join(chunks)


def dumped(value: object) -> bytes:
    """A value as JSON, whatever characters are in it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def answer(value: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(dumped(value), status, headers, "application/json")


def data_line(value: object) -> bytes:
    """A server-sent event."""
    return b"data: " + dumped(value) + b"\n\n"


def named_event(kind: str, **values: Any) -> bytes:  # noqa: ANN401  JSON
    """A server-sent event that says what it is, as Anthropic's and the Responses interface do."""
    return f"event: {kind}\n".encode() + data_line({"type": kind, **values})


def openai_error(problem: Problem) -> object:
    return {"error": problem.error}


def guarded(
    handler: Callable[[Request], Awaitable[Response]], error_body: ErrorBody = openai_error
) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    """The handler, with what goes wrong as an answer in the interface's own form."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except RequestFailed as error:
            problem = error.problem
        except LocalspecError as error:
            problem = problem_of(error)
        except RecursionError:
            problem = Problem(400, "invalid_request_error", "invalid_value", "the body is nested too deeply")
        return answer(error_body(problem), status=problem.status)

    return handle


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What the work gives; it is cancelled when the client leaves. Raises RequestFailed."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(left(request.receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise failed(GONE, "invalid_request_error", "gone", "the client left")
    finally:
        await ended(working, leaving)


async def respond(request: Request, jobs: Jobs, asked: Asked, writer: Writer) -> Response:
    """The replies, as a stream where one is asked for. Raises RequestFailed."""
    if asked.stream:
        return await streamed(request, jobs, asked, writer)
    done = await unless_gone(request, all_replies(jobs, asked))
    return answer(writer.whole(done), headers=numbers.headers(done[-1].reply) | asked.headers)


async def all_replies(jobs: Jobs, asked: Asked) -> list[Done]:
    """The finished replies. Raises RequestFailed."""
    replies = Replies(jobs, asked)
    try:
        while not replies.complete:
            await replies.next()
    finally:
        replies.give_up()
    return replies.done


async def streamed(request: Request, jobs: Jobs, asked: Asked, writer: Writer) -> Response:
    """The replies as they come. Raises RequestFailed for what goes wrong before anything was sent."""
    replies = Replies(jobs, asked)
    try:
        first = await unless_gone(request, replies.next(FIRST_SECONDS))
    except BaseException:
        replies.give_up()
        raise
    return EventStream(events(replies, first, writer), writer.media_type, asked.headers, replies.give_up)


async def events(replies: Replies, first: Any, writer: Writer) -> AsyncIterator[bytes]:  # noqa: ANN401
    """The bytes of a stream; `first` was read already."""
    for chunk in writer.begin():
        yield chunk
    found, spoke = first, time.monotonic()
    try:
        while True:
            for chunk in chunks_of(found, replies, writer):
                spoke = time.monotonic()
                yield chunk
            if replies.complete:
                break
            found = await replies.next(PING_SECONDS)
            if time.monotonic() - spoke >= PING_SECONDS and (comment := writer.silence(replies.position)):
                spoke = time.monotonic()
                yield comment
        for chunk in writer.end(replies.done):
            yield chunk
    except RequestFailed as error:
        yield writer.failed(error.problem)
    except Exception as error:
        log.exception("a stream ended early")
        yield writer.failed(Problem(*BROKEN, f"localspec failed: {type(error).__name__}"))


def chunks_of(found: Any, replies: Replies, writer: Writer) -> Iterable[bytes]:  # noqa: ANN401
    match found:
        case (index, Started() as started):
            return writer.started(index, started)
        case (index, Scores() as scores):
            return writer.scores(index, scores)
        case (index, Piece() as piece):
            return writer.piece(index, piece)
        case (index, Finished()):
            return writer.finished(index, replies.done[index])
    return ()


class EventStream(Response):
    """Sends what comes; when the client leaves, at any moment, whoever makes it is told."""

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        media_type: str,
        headers: Mapping[str, str],
        on_end: Callable[[], object],
    ) -> None:
        always = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(None, 200, {**always, **headers}, media_type)
        del self.headers["content-length"]
        self._chunks = chunks
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(left(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._on_end()
            await ended(sending, leaving)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for chunk in self._chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def left(receive: Receive) -> None:
    """Return when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def ended(*tasks: asyncio.Task[Any]) -> None:
    """Cancel what still runs, and wait for its end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def is_background(prompts: Sequence[Prompt], options: Mapping[str, Any]) -> bool:
    """Whether a reply is a title or a tag, which nobody waits for. An editor waits for a continued text."""
    in_chat = any(prompt.messages for prompt in prompts)
    return in_chat and options.get("max_tokens", 10**9) <= BACKGROUND_TOKENS and "tools" not in options
