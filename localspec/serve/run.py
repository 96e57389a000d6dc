"""The HTTP process: opens the port, answers until it is told to end."""

import asyncio
import socket
from http import HTTPStatus
from typing import Protocol

import uvicorn

from localspec.engine.messages import LoadPair
from localspec.errors import BadSetting, LocalspecError
from localspec.events import Reply
from localspec.serve.app import application
from localspec.serve.jobs import Jobs, Process
from localspec.serve.problems import RequestFailed

GRACE_SECONDS = 2  # for replies that are being sent when the server is told to end
_BACKLOG = 128


class NotLoaded(LocalspecError):
    """The pair that the server was started for cannot be loaded."""


class View(Protocol):
    """Whoever watches."""

    def said(self, text: str) -> None: ...

    def replied(self, reply: Reply) -> None: ...

    def refused(self, method: str, path: str, status: int) -> None: ...

    def changed(self, jobs: Jobs) -> None: ...


def serve(
    engine: Process,
    load: LoadPair,
    *,
    host: str,
    port: int,
    api_key: str,
    any_model: bool,
    view: View,
) -> None:
    """Answer until Ctrl-C; `engine` was told to load. Raises BadSetting, and NotLoaded for the load."""
    listening = listener(host, port)
    with listening:
        asyncio.run(_serve(engine, load, listening, api_key, any_model, view))


async def _serve(
    engine: Process,
    load: LoadPair,
    listening: socket.socket,
    api_key: str,
    any_model: bool,
    view: View,
) -> None:
    jobs = Jobs(engine, load)
    jobs.on_change = lambda: view.changed(jobs)
    jobs.on_reply = view.replied

    def answered(method: str, path: str, status: int) -> None:
        if status >= HTTPStatus.BAD_REQUEST:
            view.refused(method, path, status)

    app = application(jobs, api_key=api_key, any_model=any_model, on_answer=answered)
    config = uvicorn.Config(
        app, lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=GRACE_SECONDS
    )
    server = uvicorn.Server(config)
    view.said(f"listening on {address_of(listening)}")
    loading = asyncio.create_task(_load(jobs, load, server, view))
    try:
        await server.serve(sockets=[listening])
    finally:
        loading.cancel()
        jobs.close()
    if loading.done() and not loading.cancelled() and (error := loading.exception()):
        raise error


async def _load(jobs: Jobs, load: LoadPair, server: uvicorn.Server, view: View) -> None:
    """Say when the pair is there; end the server when it cannot be loaded. Raises NotLoaded."""
    try:
        await jobs.submit(load, None).next()
    except RequestFailed:
        server.should_exit = True
        assert jobs.trouble is not None
        raise NotLoaded(jobs.trouble.what, hint=jobs.trouble.hint) from None
    assert jobs.loaded is not None
    ready = jobs.loaded.ready
    draft = f", drafted by {ready.draft}" if ready.draft else ""
    view.said(f"{ready.pair} is ready: {ready.target}{draft}; {ready.context_length} tokens of context")


def listener(host: str, port: int) -> socket.socket:
    """A listening socket. Raises BadSetting for an address that cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small segments at once only where the protocol is named; else answers wait 40 ms.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(_BACKLOG)
    except OSError as error:
        found.close()
        raise BadSetting(
            f"{host}:{port} cannot be listened on: {error.strerror or error}",
            hint="end what uses it, or take another --port",
        ) from error
    return found


def address_of(listening: socket.socket) -> str:
    """The address as clients write it."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
