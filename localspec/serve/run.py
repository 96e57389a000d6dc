"""The HTTP process: opens the port, answers until it is told to end."""

import asyncio
import logging
import socket
import sys
from http import HTTPStatus
from typing import Final, Protocol

import uvicorn
from starlette.types import ASGIApp

from localspec.engine.messages import LoadPair
from localspec.errors import BadSetting, LocalspecError
from localspec.events import Reply
from localspec.serve.app import application
from localspec.serve.connections import KEEP_ALIVE_SECONDS, Connection, Seldom, limits
from localspec.serve.guard import Access
from localspec.serve.jobs import Jobs, Process
from localspec.serve.problems import RequestFailed

GRACE_SECONDS: Final = 2  # for replies that are being sent when the server is told to end
_FAREWELL_SECONDS: Final = 1  # for the error that ends the others
_EXCLUSIVE: Final = -5  # SO_EXCLUSIVEADDRUSE, which Python names on Windows only


class NotLoaded(LocalspecError):
    """The pair that the server was started for cannot be loaded."""


class View(Protocol):
    """Whoever watches."""

    def said(self, text: str) -> None: ...

    def replied(self, reply: Reply) -> None: ...

    def refused(self, method: str, path: str, status: int) -> None: ...

    def changed(self, jobs: Jobs) -> None: ...


class Server(uvicorn.Server):
    """uvicorn's; replies that are not done soon after the end was asked for end with an error, not in the middle."""

    def __init__(self, config: uvicorn.Config, jobs: Jobs) -> None:
        super().__init__(config)
        self._jobs = jobs

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().call_later(GRACE_SECONDS, self._jobs.stop)
        await super().shutdown(sockets)


def serve(
    engine: Process,
    load: LoadPair,
    *,
    host: str,
    port: int,
    access: Access,
    any_model: bool,
    called: str,
    view: View,
) -> None:
    """Answer until Ctrl-C; `engine` was told to load, what the user `called` so.

    Raises BadSetting, and NotLoaded for the load.
    """
    listening = listener(host, port)
    with listening:
        asyncio.run(_serve(engine, load, listening, access, any_model, called, view))


async def _serve(
    engine: Process,
    load: LoadPair,
    listening: socket.socket,
    access: Access,
    any_model: bool,
    called: str,
    view: View,
) -> None:
    jobs = Jobs(engine, load)
    jobs.on_change = lambda: view.changed(jobs)
    jobs.on_reply = view.replied

    def answered(method: str, path: str, status: int) -> None:
        if status >= HTTPStatus.BAD_REQUEST:
            view.refused(method, path, status)

    server = Server(_config(application(jobs, access, any_model, called, on_answer=answered)), jobs)
    view.said(f"listening on {address_of(listening)}")
    loading = asyncio.create_task(_load(jobs, load, server, view))
    try:
        await server.serve(sockets=[listening])
    finally:
        loading.cancel()
        jobs.close()
    if loading.done() and not loading.cancelled() and (error := loading.exception()):
        raise error


def _config(app: ASGIApp) -> uvicorn.Config:
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).addFilter(Seldom())
    Connection.most, backlog = limits()
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        backlog=backlog,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS + _FAREWELL_SECONDS,
    )


async def _load(jobs: Jobs, load: LoadPair, server: uvicorn.Server, view: View) -> None:
    """Say when the pair is there; end the server when it cannot be loaded. Raises NotLoaded."""
    try:
        await jobs.submit(load, None).next()
    except RequestFailed:
        if server.should_exit or jobs.trouble is None:
            return
        server.should_exit = True
        raise NotLoaded(jobs.trouble.what, hint=jobs.trouble.hint) from None
    assert jobs.loaded is not None
    ready = jobs.loaded.ready
    draft = f", drafted by {ready.draft}" if ready.draft else ""
    view.said(f"{ready.pair} is ready: {ready.target}{draft}; {ready.context_length} tokens of context")


def listener(host: str, port: int) -> socket.socket:
    """A bound socket. Raises BadSetting for an address that cannot be had."""
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
        raise BadSetting(
            f"{host}:{port} cannot be listened on: {reason}",
            hint="end what uses it, or take another --host or --port",
        ) from error
    return found


def reuse_option(platform: str) -> int:
    """On Windows "reuse" would let a second program take the port over, requests and keys included."""
    return _EXCLUSIVE if platform == "win32" else socket.SO_REUSEADDR


def address_of(listening: socket.socket) -> str:
    """The address as clients write it."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
