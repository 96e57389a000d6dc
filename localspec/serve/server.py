"""The HTTP process: the port, the connections, the routes; it answers until the user ends it."""

import asyncio
import socket
import sys
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, Protocol

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

from localspec.engine.client import EngineProcess
from localspec.engine.messages import LoadPair
from localspec.errors import BadSetting, LocalspecError
from localspec.serve import anthropic, ollama
from localspec.serve.bodies import Problem
from localspec.serve.guard import PUBLIC, Access, Guard
from localspec.serve.http import ErrorBody, Handler, answer, guarded
from localspec.serve.jobs import Jobs
from localspec.serve.llama_server import LlamaServer
from localspec.serve.numbers import Served
from localspec.serve.openai import OpenAI
from localspec.serve.pairs import Pairs
from localspec.serve.responses import Responses

GRACE_SECONDS: Final = 2  # for unfinished replies when the server ends
ARRIVAL_SECONDS: Final = 60.0  # from the connection, or the last answer's next byte, to the end of a body
_FAREWELL_SECONDS: Final = 1  # for the error that ends the others
_KEEP_ALIVE_SECONDS: Final = 65  # longer than clients keep idle connections, so that they close first
_LOOK_SECONDS: Final = 0.05  # between two looks whether the load has begun
_MOST: Final = 512  # connections
_OWN_FILES: Final = 64  # descriptors that the rest of the process needs
_EXCLUSIVE: Final = -5  # SO_EXCLUSIVEADDRUSE, which Python names on Windows only
_NO_VECTORS: Final = "localspec makes no embeddings, run an embedding model in another server"
_NO_PULLS: Final = "`localspec pull` and `localspec rm` manage pairs"
_PULLS: Final = (
    "POST /api/pull",
    "POST /api/push",
    "POST /api/create",
    "POST /api/copy",
    "DELETE /api/delete",
)


class NotLoaded(LocalspecError):
    """The pair that the server was started for cannot be loaded."""


class View(Protocol):
    """Shows the state of the server."""

    def said(self, text: str) -> None: ...

    def noted(self, text: str) -> None: ...

    def served(self, served: Served) -> None: ...

    def changed(self, jobs: Jobs) -> None: ...


class Server(uvicorn.Server):
    """uvicorn's; replies that outlast the grace end with an error, not in the middle."""

    def __init__(self, config: uvicorn.Config, jobs: Jobs) -> None:
        super().__init__(config)
        self._jobs = jobs

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._jobs.running:
            hint = f"open replies have {GRACE_SECONDS} seconds; Ctrl-C again ends them now"
            self._jobs.on_event(f"the server is being ended: {hint}")
        asyncio.get_running_loop().call_later(GRACE_SECONDS, self._jobs.stop)
        await super().shutdown(sockets)
        if self.force_exit and (answering := self.server_state.tasks):  # a second Ctrl-C
            self._jobs.stop()
            await asyncio.wait(answering, timeout=_FAREWELL_SECONDS)


async def serve(
    engine: EngineProcess,
    load: LoadPair,
    listening: socket.socket,
    view: View,
    access: Access,
    *,
    any_model: bool,
    called: str,
    keep_alive_seconds: float | None,
) -> None:
    """Answer until Ctrl-C; `engine` loads `load` already, which the user `called` so. Raises NotLoaded."""
    jobs = Jobs(engine, load, keep_alive_seconds)
    jobs.on_change = lambda: view.changed(jobs)

    def answered(scope: Scope, status: int, seconds: float) -> None:
        reason = scope.get("reason", "")
        done = scope["replies"].done if "replies" in scope else []
        replies = tuple(each.reply for each in done)
        waited = max((each.waited_seconds for each in done), default=0.0)
        failed = reason or status >= HTTPStatus.BAD_REQUEST
        if replies or (failed and scope["path"] not in PUBLIC):
            view.served(Served(scope["method"], scope["path"], status, seconds, reason, replies, waited))

    routes = routes_of(jobs, Pairs(jobs, any_model=any_model, called=called))
    app = Starlette(routes=routes, exception_handlers={HTTPException: failed, Exception: failed})
    Connection.most, backlog = limits()
    config = uvicorn.Config(
        Guard(app, access, answered),
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        backlog=backlog,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS + _FAREWELL_SECONDS,
    )
    server = Server(config, jobs)
    key = "your" if access.api_key else "any"
    loading = asyncio.create_task(loaded(jobs, load, server, view, address_of(listening), key))
    try:
        await server.serve(sockets=[listening])
    finally:
        loading.cancel()
        jobs.close()
    if loading.done() and not loading.cancelled() and (error := loading.exception()):
        raise error


async def loaded(
    jobs: Jobs, load: LoadPair, server: uvicorn.Server, view: View, address: str, key: str
) -> None:
    """Say the address once the options hold, and when the pair is loaded; end the server if its load fails.

    Raises NotLoaded.
    """
    job, report = jobs.submit(load, None), None
    try:
        while report is None and not jobs.stage.startswith("loading"):
            report = await job.next(_LOOK_SECONDS)
        view.said(f"listening on {address}")
        if report is None:
            await job.next()
    except Problem:
        if server.should_exit or jobs.trouble is None:
            return
        server.should_exit = True
        raise NotLoaded(jobs.trouble.what, hint=jobs.trouble.hint) from None
    assert jobs.loaded is not None
    ready = jobs.loaded.ready
    draft = f", drafted by {ready.draft}" if ready.draft else ""
    lanes = f", {ready.parallel} replies at once" if ready.parallel > 1 else ""
    view.said(
        f"{ready.pair} is ready: {ready.target}{draft}; {ready.context_length} tokens of context{lanes}"
    )
    view.said(f"OpenAI's clients: base URL {address}/v1, {key} key; Ctrl-C ends it")
    jobs.on_event = view.noted


def listener(host: str, port: int) -> socket.socket:
    """A bound socket. Raises BadSetting for an address that is taken or wrong."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small segments at once only where the protocol is named; else answers wait 40 ms.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, reuse_option(sys.platform), 1)
        found.bind((host, port))
        found.listen(limits()[1])
    except (OSError, TypeError, UnicodeError) as error:  # the latter two for names that DNS cannot have
        found.close()
        reason = (isinstance(error, OSError) and error.strerror) or error
        hint = "end the program that uses it, or take another --host or --port"
        raise BadSetting(f"{host}:{port} cannot be listened on: {reason}", hint=hint) from error
    return found


def reuse_option(platform: str) -> int:
    """On Windows "reuse" would let a second program take the port over, requests and keys included."""
    return _EXCLUSIVE if platform == "win32" else socket.SO_REUSEADDR


def address_of(listening: socket.socket) -> str:
    """The address as clients write it."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def routes_of(jobs: Jobs, pairs: Pairs) -> list[Route]:
    """Clients differ in their base URL: OpenAI's and Anthropic's paths exist with and without /v1."""
    openai, messages = OpenAI(jobs, pairs), anthropic.Anthropic(jobs, pairs)
    llama, api = LlamaServer(jobs, pairs), ollama.Ollama(jobs, pairs)
    no_vectors, no_pulls = map(refusing, (_NO_VECTORS, _NO_PULLS))
    of_openai = {
        "POST /chat/completions": openai.chat,
        "POST /completions": openai.completions,
        "POST /responses": Responses(jobs, pairs).responses,
        "GET /models": openai.models,
        "GET /models/{name:path}": openai.model,
        "GET /health": llama.health,
        **dict.fromkeys(("POST /embeddings", "POST /rerank", "POST /reranking"), no_vectors),
    }
    of_anthropic = {"POST /messages": messages.messages, "POST /messages/count_tokens": messages.count_tokens}
    of_llama_server = {
        "GET /": greeting,
        "GET /props": llama.props,
        "GET /slots": llama.slots,
        "GET /metrics": llama.metrics,
        "POST /completion": llama.completion,
        "POST /embedding": no_vectors,
        "POST /infill": llama.infill,
        "POST /tokenize": llama.tokenize,
        "POST /detokenize": llama.detokenize,
        "POST /apply-template": llama.apply_template,
    }
    of_ollama = {
        "GET /api/version": api.version,
        "GET /api/tags": api.tags,
        "GET /api/ps": api.running,
        "POST /api/chat": api.chat,
        "POST /api/generate": api.generate,
        "POST /api/show": api.show,
        **dict.fromkeys(("POST /api/embed", "POST /api/embeddings"), no_vectors),
        **dict.fromkeys(_PULLS, no_pulls),
    }
    families: list[tuple[Mapping[str, Handler], ErrorBody, tuple[str, ...]]] = [
        (of_openai, Problem.body, ("/v1", "")),
        (of_anthropic, anthropic.error_body, ("/v1", "")),
        (of_llama_server, Problem.body, ("",)),
        (of_ollama, ollama.error_body, ("",)),
    ]
    return [
        Route(prefix + name.partition(" ")[2], guarded(handler, error_body), methods=[name.partition(" ")[0]])
        for handlers, error_body, prefixes in families
        for name, handler in handlers.items()
        for prefix in prefixes
    ]


async def greeting(request: Request) -> Response:
    return Response("localspec is running\n", media_type="text/plain")


def refusing(why: str) -> Handler:
    """A handler of paths that localspec does not serve."""

    async def refuse(request: Request) -> Response:
        raise Problem(501, "not_supported", f"{request.url.path[:80]} is not supported: {why}")

    return refuse


async def failed(request: Request, error: Exception) -> Response:
    """The answer to an unknown path or method, or to a mistake of localspec's own."""
    if not isinstance(error, HTTPException):
        problem, headers = Problem.failure(error), None
    else:
        path, headers = request.url.path[:200], error.headers
        what = f"there is no path {path} here"
        if headers and "Allow" in headers:
            allowed = ", ".join(sorted(headers["Allow"].split(", ")))
            what = f"{path} takes {allowed}, not {request.method}"
        code = "not_found_error" if error.status_code == 404 else "invalid_request_error"
        problem = Problem(error.status_code, code, what)
    request.scope["reason"] = problem.message
    error_body = ollama.error_body if request.url.path.startswith("/api/") else Problem.body
    return answer(error_body(problem), status=problem.status, headers=headers)


def limits() -> tuple[int, int]:
    """Most connections, and how many the kernel may hold until they are accepted: together they leave files free."""
    if sys.platform == "win32":
        return _MOST, 128
    import resource

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = _MOST * 8 if files == resource.RLIM_INFINITY else max(files - _OWN_FILES, 16)
    # Several rounds of accepting pass before the first of them counts as a connection.
    return min(_MOST, free // 2), min(128, free // 8)


class Connection(H11Protocol):
    """uvicorn's, with a time limit for each request; where there are too many, one without a whole request goes."""

    most = _MOST

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **kwargs)
        self._since = time.monotonic()  # it was opened, or answered last
        self._deadline: asyncio.TimerHandle | None = None  # while a request is on its way

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        if len(self.connections) > self.most:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._since = time.monotonic()
        super().on_response_complete()

    def _watch(self) -> None:
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._unwatch()
        elif self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(ARRIVAL_SECONDS, self.transport.abort)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _make_room(self) -> None:
        """End the oldest one that no reply is being made for, half-sent requests first; else the new one itself."""
        others = [c for c in self.connections if isinstance(c, Connection)]
        waiting = [c for c in others if c._deadline or c.cycle is None or c.cycle.response_complete]
        oldest = min(waiting, key=lambda c: (not c._deadline, c._since), default=self)
        oldest.transport.abort()
        self.connections.discard(oldest)
