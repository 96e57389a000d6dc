"""What all interfaces share: bodies in, JSON or a stream of replies out, questions to the engine."""

import asyncio
import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from localspec.engine.messages import Answer, Detokenize, Infill, Render, Rendered, Report, Tokenize, Tokens
from localspec.errors import LocalspecError
from localspec.events import Finished, Notice, Piece, Reply, Scored, Scores, Started
from localspec.serve import numbers
from localspec.serve.bodies import BROKEN, GONE, Fields, Problem, RequestFailed, failed, parsed, problem_of
from localspec.serve.jobs import Job, Jobs, Loaded
from localspec.serve.options import Wishes, take_wishes
from localspec.serve.pairs import Chosen, Pairs


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is to be answered or continued: one of these."""

    messages: tuple[dict[str, Any], ...] = ()
    text: str | None = None
    parts: tuple[int | str, ...] | None = None  # tokens, and texts between them
    infill: Infill | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for text, whatever interface it came by."""

    chosen: Chosen
    prompts: tuple[Prompt, ...]
    wishes: Wishes
    stream: bool
    background: bool = False
    unknown: tuple[str, ...] = ()  # fields that nobody knows: they have no effect, and answers say so
    line_end_after_seconds: float | None = None  # of writing: from then on the next line end is the reply's

    @property
    def notices(self) -> tuple[str, ...]:
        return tuple(f"the field {name} is not known and has no effect" for name in self.unknown)

    @property
    def headers(self) -> dict[str, str]:
        return {"x-localspec-unknown": ", ".join(self.unknown)} if self.unknown else {}

    @property
    def count(self) -> int:
        return len(self.prompts) * self.wishes.replies


@dataclass(frozen=True, slots=True)
class Done:
    """A finished reply, and what was said beside it."""

    reply: Reply
    notices: tuple[str, ...]
    scores: tuple[Scored, ...] = ()  # of the answer's tokens, where they were asked for


class Replies:
    """Reports of the current reply; the next one begins when it has finished."""

    def __init__(self, jobs: Jobs, asked: Asked) -> None:
        """Queues the first. Raises RequestFailed."""
        self._jobs = jobs
        self._asked = asked
        self.done: list[Done] = []
        self._notices, self._scores = list[str](), list[Scored]()  # of the current reply
        self._job: Job = self._submit(0)

    @property
    def complete(self) -> bool:
        return len(self.done) == self._asked.count

    @property
    def position(self) -> int:
        """How many requests are answered before the current reply."""
        return self._job.position

    async def next(self, timeout_seconds: float | None = None) -> tuple[int, Report] | None:
        """A report with the number of its reply; None after the timeout. Raises RequestFailed."""
        index = len(self.done)
        report = await self._job.next(timeout_seconds)
        match report:
            case None:
                return None
            case Notice(text=text):
                self._notices.append(text)
            case Scores(tokens=tokens):
                self._scores += tokens
            case Finished(reply=reply):
                notices = (*self._asked.notices, *self._notices)
                self.done.append(Done(reply, notices, tuple(self._scores)))
                self._notices, self._scores = [], []
                if not self.complete:
                    self._job = self._submit(len(self.done))
        return index, report

    def give_up(self) -> None:
        """Nobody reads them any more."""
        self._job.give_up()

    def _submit(self, index: int) -> Job:
        wishes, chosen = self._asked.wishes, self._asked.chosen
        prompt = self._asked.prompts[index // wishes.replies]
        options = dict(wishes.options)
        if not chosen.speculate:
            options["speculate"] = False
        if "seed" in options:
            options["seed"] = (options["seed"] + index % wishes.replies) % 2**64
        if prompt.messages and prompt.messages[0]["role"] != "system":
            options["system"] = ""  # a program's conversation is all that the model sees

        def make(serial: int) -> Answer:
            return Answer(
                serial,
                prompt.messages,
                prompt.text,
                prompt.parts,
                prompt.infill,
                options,
                self._asked.line_end_after_seconds,
            )

        return self._jobs.submit(chosen.load, make, background=self._asked.background)


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


R = TypeVar("R", bound=Report)


class Interface:
    """Handlers on one queue."""

    def __init__(self, jobs: Jobs, pairs: Pairs) -> None:
        self._jobs = jobs
        self._pairs = pairs

    def _chosen(self, fields: Fields) -> Chosen:
        """What the model of a request means. Raises BadSetting, RequestFailed."""
        return self._pairs.choose(fields.take("model", str, ""))

    def _asked(
        self,
        fields: Fields,
        prompts: tuple[Prompt, ...],
        wishes: Wishes | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> Asked:
        """All that is asked; options are read in OpenAI's form where no `wishes` are given. Raises BadSetting."""
        chosen, stream = self._chosen(fields), fields.take("stream", bool, False)
        wishes = wishes or take_wishes(fields, more)
        return Asked(
            chosen,
            prompts,
            wishes,
            stream,
            is_background(prompts, wishes.options),
            fields.unknown(),
        )

    async def _respond(self, request: Request, asked: Asked, writer: Writer) -> Response:
        return await respond(request, self._jobs, asked, writer)

    async def _told(
        self,
        request: Request,
        chosen: Chosen,
        make: Callable[[int], Render | Tokenize | Detokenize],
        kind: type[R],
    ) -> R:
        """What the engine says to a question, unless the client leaves. Raises RequestFailed."""
        report = await unless_gone(request, self._jobs.ask(chosen.load, make).last())
        assert isinstance(report, kind)
        return report

    async def _rendered(
        self, request: Request, chosen: Chosen, prompt: Prompt, options: Mapping[str, Any]
    ) -> Rendered:
        """The prompt that a reply to these messages would read."""
        make = partial(Render, messages=prompt.messages, options=options)
        return await self._told(request, chosen, make, Rendered)

    async def _tokens(
        self, request: Request, chosen: Chosen, text: str, *, parse_special: bool, add_special: bool = False
    ) -> Tokens:
        make = partial(Tokenize, text=text, parse_special=parse_special, add_special=add_special)
        return await self._told(request, chosen, make, Tokens)

    def _loaded(self) -> Loaded:
        """The loaded pair. Raises RequestFailed while there is none."""
        if self._jobs.loaded is None:
            raise failed(503, "unavailable_error", "loading", self._jobs.stage or "loading the pair")
        return self._jobs.loaded
