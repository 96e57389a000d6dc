"""The HTTP process: its port, connections and routes. The process answers until the user ends it."""

import asyncio
import ctypes
import logging
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from time import monotonic
from typing import Any, Final, Protocol, cast

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from localspec.engine.client import EngineProcess
from localspec.engine.messages import LoadPair
from localspec.errors import BadSetting, LocalspecError
from localspec.serve import anthropic, ollama
from localspec.serve.embeddings import Embeddings
from localspec.serve.guard import PUBLIC, Access, Guard, error_body
from localspec.serve.http import ErrorBody, Handler, answer, failure_of, with_errors
from localspec.serve.jobs import Jobs
from localspec.serve.llama_server import LlamaServer
from localspec.serve.numbers import Served
from localspec.serve.openai import OpenAI
from localspec.serve.options import Problem
from localspec.serve.page import greeting
from localspec.serve.replies import Names, Pairs
from localspec.serve.responses import Responses

GRACE_SECONDS: Final = 2  # replies that still run when the server ends get this many seconds
ARRIVAL_SECONDS: Final = 65.0  # a request must arrive completely within this many seconds
_FAREWELL_SECONDS: Final = 1  # seconds to send the error that ends unfinished replies
_M_MMAP_THRESHOLD: Final = -3  # the value of M_MMAP_THRESHOLD in glibc's malloc.h
_POLL_SECONDS: Final = 0.05  # seconds between two checks whether the load has begun
_MOST: Final = 512  # limit of open connections


class View(Protocol):
    def show_line(self, text: str) -> None: ...
    def noted(self, text: str) -> None: ...
    def served(self, served: Served) -> None: ...
    def changed(self, jobs: Jobs) -> None: ...


class Server(uvicorn.Server):
    """uvicorn's server, which also ends silent connections, and ends all replies GRACE_SECONDS after a shutdown begins.

    uvicorn's `limit_concurrency` is not used, because it refuses /health and never ends a half-sent request.
    """

    most = _MOST

    def __init__(self, config: uvicorn.Config, jobs: Jobs) -> None:
        super().__init__(config)
        self._jobs = jobs
        self._waiting = dict[Any, float]()  # when each connection without a complete request was first seen

    async def on_tick(self, counter: int) -> bool:
        self.is_full()
        return await super().on_tick(counter)

    def is_full(self) -> bool:
        """End connections whose request does not arrive; return whether too many connections are still open."""
        now, connections = monotonic(), cast(set[Any], self.server_state.connections)
        cycles = [(c, c.cycle) for c in connections]
        arriving = [c for c, at in cycles if at is None or at.response_complete or at.more_body]
        self._waiting = {c: self._waiting.get(c, now) for c in arriving}
        late = {c for c, since in self._waiting.items() if since < now - ARRIVAL_SECONDS}
        oldest = sorted(self._waiting, key=lambda c: (self._waiting[c], c.cycle is not None))
        # Keep the newest connection, because it may be the one of the present request.
        for connection in late.union(oldest[:-1][: max(len(connections) - self.most, 0)]):
            connection.transport.abort()
            connections.discard(connection)
        return len(connections) > self.most

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._jobs.running:
            hint = f"running replies have {GRACE_SECONDS} seconds; Ctrl-C again ends them now"
            self._jobs.on_event(f"the server is shutting down: {hint}")
        asyncio.get_running_loop().call_later(GRACE_SECONDS, self._jobs.stop)
        await super().shutdown(sockets)
        if self.force_exit and (answering := self.server_state.tasks):  # after a second Ctrl-C
            self._jobs.stop()
            await asyncio.wait(answering, timeout=_FAREWELL_SECONDS)


def return_large_blocks() -> None:
    """Let glibc return freed blocks of 128 kB or more to the system. By default each larger block raises this limit."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library than glibc has no such setting
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 17)


async def serve(
    engine: EngineProcess,
    load: LoadPair,
    listening: Sequence[socket.socket],
    view: View,
    access: Access,
    names: Names,
    keep_alive_seconds: float | None,
) -> None:
    """Answer requests until Ctrl-C; `load`: the pair that `engine` is loading. Raises LocalspecError."""
    return_large_blocks()
    jobs = Jobs(engine, load, keep_alive_seconds)
    jobs.on_change = lambda: view.changed(jobs)

    def answered(scope: Scope, status: int, seconds: float) -> None:
        reason, done = scope.get("reason", ""), scope["replies"].done if "replies" in scope else []
        if done or ((reason or status >= HTTPStatus.BAD_REQUEST) and scope["path"] not in PUBLIC):
            waited = max((each.waited_seconds for each in done), default=0.0)
            replies = tuple(each.reply for each in done)
            notices = tuple(text for each in done for text in each.notices)
            request = scope["method"], scope["path"], status, seconds
            view.served(Served(*request, reason, replies, waited, notices))

    routes = routes_of(jobs, Pairs(jobs, names))
    app = Starlette(routes=routes, exception_handlers={HTTPException: failed, Exception: failed})
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # its warnings are of writes to clients that left
    Server.most, backlog = limits()
    guard = Guard(app, access, answered, lambda: server.is_full())
    options: dict[str, Any] = {"ws": "none", "lifespan": "off", "log_config": None, "access_log": False}
    options["timeout_graceful_shutdown"] = GRACE_SECONDS + _FAREWELL_SECONDS
    # Keep connections longer than most clients do, so that the clients close idle connections.
    options |= {"timeout_keep_alive": int(ARRIVAL_SECONDS), "backlog": backlog}
    config = uvicorn.Config(guard, http="h11", **options)
    server = Server(config, jobs)
    key = "your" if access.api_key else "any"
    loading = asyncio.create_task(loaded(jobs, load, server, view, [*map(address_of, listening)], key))
    try:
        await server.serve(sockets=[*listening])
    finally:
        loading.cancel()
        jobs.close()
    if loading.done() and not loading.cancelled() and (error := loading.exception()):
        raise error


async def loaded(
    jobs: Jobs, load: LoadPair, server: uvicorn.Server, view: View, addresses: Sequence[str], key: str
) -> None:
    """Show the addresses when the load begins; end the server if the load fails."""
    job, report = jobs.submit(load, None), None
    try:
        while report is None and not jobs.stage.startswith("loading"):
            report = await job.next(_POLL_SECONDS)
        view.show_line(f"listening on {' and '.join(addresses)}")
        if report is None:
            await job.next()
    except Problem:
        if server.should_exit or jobs.trouble is None:
            return
        server.should_exit = True
        raise LocalspecError(jobs.trouble.what, hint=jobs.trouble.hint) from None
    ready = jobs.loaded
    assert ready is not None
    draft = f", drafted by {ready.draft}" if ready.draft else ""
    slots = f", {ready.parallel} replies at once" if ready.parallel > 1 else ""
    length = f"{ready.context_length} tokens of context"
    models = f": {ready.target}{draft}" if draft or ready.target != ready.pair else ""
    view.show_line(f"{ready.pair} is ready{models}; {length}{slots}")
    view.show_line(f"OpenAI's clients: base URL {addresses[0]}/v1, {key} key; Ctrl-C stops the server")
    view.show_line(f"a chat in the browser: {addresses[0]}")
    jobs.on_event = view.noted


def listener(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises BadSetting for an address that is taken or wrong."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With IPPROTO_TCP asyncio sends small segments at once; without it, answers wait for 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, reuse_option(sys.platform), 1)
        listening.bind((host, port))
        listening.listen(limits()[1])
    except (OSError, TypeError, UnicodeError) as error:  # UnicodeError: an invalid host name
        listening.close()
        reason = (isinstance(error, OSError) and error.strerror) or error
        hint = "end the program that uses this port, or choose another --host or --port"
        raise BadSetting(f"{host}:{port} is not available: {reason}", hint=hint) from error
    return listening


def reuse_option(platform: str) -> int:
    """Return the socket option for a port. On Windows, SO_REUSEADDR would let other programs share the port."""
    # -5 is SO_EXCLUSIVEADDRUSE, which Python names only on Windows.
    return -5 if platform == "win32" else socket.SO_REUSEADDR


def address_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def routes_of(jobs: Jobs, pairs: Pairs) -> list[Route]:
    openai, messages = OpenAI(jobs, pairs), anthropic.Anthropic(jobs, pairs)
    llama, api, responses = LlamaServer(jobs, pairs), ollama.Ollama(jobs, pairs), Responses(jobs, pairs)
    vectors, bare, versioned = Embeddings(jobs, pairs), ("",), ("/v1", "")
    families: list[tuple[tuple[str, ...], ErrorBody, Mapping[str, Handler]]] = [
        (bare, Problem.body, {  # if several routes have the same path, the first one answers
            "GET /": greeting,
            "GET /props": llama.props,
            "GET /slots": llama.slots,
            "GET /metrics": llama.metrics,
            "POST /completion": llama.completion,
            "POST /completions": llama.completion,  # llama-server's; OpenAI's is /v1/completions
            **dict.fromkeys(("POST /embedding", "POST /embeddings"), vectors.llama),
            "POST /infill": llama.infill,
            "POST /tokenize": llama.tokenize,
            "POST /detokenize": llama.detokenize,
            "POST /apply-template": llama.apply_template,
        }),
        (versioned, Problem.body, {
            "POST /chat/completions": openai.chat,
            "POST /chat/completions/input_tokens": openai.input_tokens,
            "POST /completions": openai.completions,
            "POST /responses": responses.responses,
            "POST /responses/input_tokens": responses.input_tokens,
            "GET /models": openai.models,
            "GET /models/{name:path}": openai.model,
            "GET /health": llama.health,
            "POST /embeddings": vectors.openai,
            **dict.fromkeys(("POST /rerank", "POST /reranking"), vectors.rerank),
        }),
        (versioned, anthropic.error_body, {
            "POST /messages": messages.messages,
            "POST /messages/count_tokens": messages.count_tokens,
        }),
        (bare, ollama.error_body, {
            "GET /api/version": api.version,
            "GET /api/tags": api.tags,
            "GET /api/ps": api.running,
            "POST /api/chat": api.chat,
            "POST /api/generate": api.generate,
            "POST /api/show": api.show,
            "POST /api/pull": no_pull,
            "POST /api/embed": vectors.ollama,
            "POST /api/embeddings": vectors.ollama_one,
        }),
    ]  # fmt: skip
    return [
        Route(prefix + path, with_errors(handler, error_body), methods=[method])
        for prefixes, error_body, handlers in families
        for (method, _, path), handler in ((name.partition(" "), each) for name, each in handlers.items())
        for prefix in prefixes
    ]


async def no_pull(request: Request) -> Response:
    raise Problem(
        501,
        "not_supported",
        "the endpoint downloads no models: run `localspec pull NAME` on the server's machine",
    )


async def failed(request: Request, error: Exception) -> Response:
    problem, headers, path = failure_of(error), None, request.url.path
    if isinstance(error, HTTPException):
        what, headers = f"there is no path {path[:200]} here", error.headers or {}
        if "Allow" in headers:
            allowed = ", ".join(sorted(headers["Allow"].split(", ")))
            what = f"{path[:200]} takes {allowed}, not {request.method}"
        problem = Problem(error.status_code, "invalid_request_error", what)
    request.scope["reason"] = problem.message
    return answer(error_body(path, problem), status=problem.status, headers=headers)


def limits() -> tuple[int, int]:
    """Return the limits of open and of waiting connections, which follow from the limit of open files."""
    if sys.platform == "win32":
        return _MOST, 128
    import resource

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = _MOST * 8 if files == resource.RLIM_INFINITY else max(files - 64, 16)
    # Stay far below `free`, because asyncio accepts sockets before uvicorn counts them.
    return min(_MOST, free // 2), min(128, free // 8)
