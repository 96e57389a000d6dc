"""The check of each request: local programs and programs with the key pass, unknown web pages do not."""

import hmac
import ipaddress
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localspec.serve import anthropic, ollama
from localspec.serve.http import answer
from localspec.serve.options import GONE, Problem
from localspec.serve.page import is_for_page

PUBLIC: Final = ("/health", "/v1/health")
_ALLOWED: Final = {  # CORS headers of an answer to a web page whose origin is allowed
    "access-control-allow-methods": "GET, POST, OPTIONS",
    "access-control-allow-headers": "authorization, content-type, x-api-key",
    "vary": "Origin",
}


# A function that is called when an answer ends or its client leaves, with scope, HTTP status and seconds taken.
OnAnswer = Callable[[Scope, int, float], object]


@dataclass(frozen=True, slots=True)
class Access:
    """The API key of the server, and the host names and web pages that may reach the server."""

    api_key: str = ""  # the key that requests must have; "" means no key
    hosts: frozenset[str] = frozenset()  # names of this machine that a Host header may contain, in lower case
    origins: frozenset[str] = frozenset()  # allowed web pages, as SCHEME://HOST[:PORT], SCHEME://* or *

    def has_origin(self, origin: str) -> bool:
        written = origin.lower()
        wanted = {"*", written, f"{written.partition('://')[0]}://*"}
        return is_local_origin(origin) or not wanted.isdisjoint(self.origins)


class Guard:
    """Middleware that checks the Host, Origin and key of a request before the app gets the request."""

    def __init__(
        self, app: ASGIApp, access: Access, on_answer: OnAnswer, too_many: Callable[[], bool] = bool
    ) -> None:
        self._app, self._access, self._on_answer = app, access, on_answer
        self._too_many = too_many  # a function that returns whether too many connections are open
        self._bodies: dict[int, int] = {}  # bytes received for each open request, by the id() of its scope

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Remove double slashes, because some clients join addresses carelessly.
        path = re.sub(r"^https?://[^/]*", "", scope["path"])  # some proxies send the whole URL
        scope["path"] = "/" + "/".join(filter(None, path.split("/")))
        headers = Headers(scope=scope)
        origin, status, began = headers.get("origin"), GONE, time.monotonic()

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if origin is not None and self._access.has_origin(origin):
                    allowed = {**_ALLOWED, "access-control-allow-origin": origin}
                    if wanted := headers.get("access-control-request-headers"):
                        allowed["access-control-allow-headers"] = wanted
                    added = [(k.encode(), v.encode("latin-1", "replace")) for k, v in allowed.items()]
                    message["headers"] = [*message["headers"], *added]
            await send(message)

        try:
            if problem := self._problem(scope, headers):
                scope["reason"] = problem.message
                refusal = answer(error_body(scope["path"], problem), status=problem.status)
                await refusal(scope, receive, sending)
            elif scope["method"] == "OPTIONS":
                await Response()(scope, receive, sending)
            else:
                key = key_in(headers)
                scope["bodies"] = self._bodies
                scope["owner"] = sha256(key.encode()).hexdigest() if key else ""
                await self._app(scope, receive, sending)
        finally:
            self._bodies.pop(id(scope), None)
            self._on_answer(scope, status, time.monotonic() - began)

    def _problem(self, scope: Scope, headers: Headers) -> Problem | None:
        if scope["path"] not in PUBLIC and self._too_many():
            return Problem(503, "too_many_connections", "too many connections are open (retry later)")
        origin, host, key = headers.get("origin"), headers.get("host", ""), self._access.api_key
        is_own = origin is not None and origin.lower().partition("://")[2] == host.lower()
        if origin is not None and not is_own and not self._access.has_origin(origin):
            hint = "start the server with --allow-origin and this origin"
            return Problem(403, "origin", f"web pages of {origin[:80]!r} may not send requests ({hint})")
        if not (key or "host" not in headers or is_local_name(host) or name_in(host) in self._access.hosts):
            what = f"this server does not answer to the Host {name_in(host)[:80]!r}"
            return Problem(403, "host", f"{what} (start it with --allow-host and this name, or with a key)")
        free = scope["method"] == "OPTIONS" or scope["path"] in PUBLIC or is_for_page(scope)
        if key and not free and not hmac.compare_digest(key_in(headers).encode(), key.encode()):
            return Problem(401, "invalid_api_key", "the API key is missing or wrong")
        return None


def error_body(path: str, problem: Problem) -> object:
    """Return the body of an error in the form of the interface that has this path."""
    if path.startswith("/api/"):
        return ollama.error_body(problem)
    is_anthropic = path.removeprefix("/v1").startswith("/messages")
    return anthropic.error_body(problem) if is_anthropic else problem.body()


def key_in(headers: Headers) -> str:
    bearer = headers.get("authorization", "")
    return bearer[7:] if bearer[:7].lower() == "bearer " else headers.get("x-api-key", "")


def is_local_name(host: str) -> bool:
    """Return whether a Host is localhost or an IP address, which DNS rebinding cannot use."""
    name = name_in(host)
    try:
        return name == "localhost" or bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def name_in(host: str) -> str:
    name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
    return name.lower()


def is_local_origin(origin: str) -> bool:
    scheme, separator, rest = origin.partition("://")
    if not separator or scheme not in ("http", "https"):
        return scheme in ("app", "tauri", "vscode-webview", "vscode-file") and bool(separator)
    name = name_in(rest)
    return name in ("localhost", "127.0.0.1", "::1") or name.endswith(".localhost")
