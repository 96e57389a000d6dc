"""Admits programs of this machine, or with the key; never an unknown web page."""

import hmac
import ipaddress
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localspec.serve.bodies import GONE, Problem
from localspec.serve.http import answer

PUBLIC: Final = ("/health", "/v1/health")
LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")
_ALLOWED: Final = {  # to a page that may ask
    "access-control-allow-methods": "GET, POST, OPTIONS",
    "access-control-allow-headers": "authorization, content-type, x-api-key",
    "vary": "Origin",
}


@dataclass(frozen=True, slots=True)
class Access:
    """Callers admitted beside programs of this machine."""

    api_key: str = ""  # without one, only names that no foreign web page can have are answered
    hosts: frozenset[str] = frozenset()  # other names of this machine, in small letters
    origins: frozenset[str] = frozenset()  # of web pages: SCHEME://HOST[:PORT], SCHEME://* or *

    def has_host(self, host: str) -> bool:
        """Whether a request to this Host is answered."""
        return bool(self.api_key) or is_local_name(host) or name_in(host) in self.hosts

    def has_origin(self, origin: str) -> bool:
        """Whether a page of this origin may ask."""
        written = origin.lower()
        wanted = {"*", written, f"{written.partition('://')[0]}://*"}
        return is_local_origin(origin) or not wanted.isdisjoint(self.origins)


class Guard:
    """Checks Host, Origin and key before anything else looks at a request."""

    def __init__(
        self, app: ASGIApp, access: Access, on_answer: Callable[[Scope, int, float], object]
    ) -> None:
        """`on_answer` gets the request, the status and the seconds, at the answer's end or when the client leaves."""
        self._app = app
        self._access = access
        self._api_key = access.api_key.encode()
        self._on_answer = on_answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        status, began = GONE, time.monotonic()

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
                await answer(problem.body(), status=problem.status)(scope, receive, sending)
            elif scope["method"] == "OPTIONS":
                await Response(status_code=204)(scope, receive, sending)
            else:
                await self._app(scope, receive, sending)
        finally:
            self._on_answer(scope, status, time.monotonic() - began)

    def _problem(self, scope: Scope, headers: Headers) -> Problem | None:
        """Why a request is refused."""
        origin, host = headers.get("origin"), headers.get("host", "")
        if origin is not None and not self._access.has_origin(origin):
            remedy = "start the server with --allow-origin and this origin"
            return Problem(403, "origin", f"web pages of {origin[:80]!r} may not ask here ({remedy})")
        if not self._access.has_host(host):
            what = f"this server does not answer to the Host {name_in(host)[:80]!r}"
            return Problem(403, "host", f"{what} (start it with --allow-host and this name, or with a key)")
        free = scope["method"] == "OPTIONS" or scope["path"] in PUBLIC
        if self._api_key and not free and not self._has_key(headers):
            return Problem(401, "invalid_api_key", "the API key is missing or wrong")
        return None

    def _has_key(self, headers: Headers) -> bool:
        bearer = headers.get("authorization", "")
        given = bearer[7:] if bearer[:7].lower() == "bearer " else headers.get("x-api-key", "")
        return hmac.compare_digest(given.encode(), self._api_key)


def is_local_name(host: str) -> bool:
    """Whether DNS cannot give this Host to a foreign page: it is localhost, or an address in digits."""
    name = name_in(host)
    try:
        return name == "localhost" or bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def name_in(host: str) -> str:
    """The name in a Host, without its port."""
    name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
    return name.lower()


def is_local_origin(origin: str) -> bool:
    """Whether a page comes from this machine."""
    scheme, separator, rest = origin.partition("://")
    if not separator or scheme not in ("http", "https"):
        return scheme in ("app", "tauri", "vscode-webview", "vscode-file") and bool(separator)
    name = name_in(rest)
    return name in LOOPBACK_NAMES or name.endswith(".localhost")
