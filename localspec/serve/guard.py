"""Who may ask: programs of this machine, or those with the key; never a web page that found the port."""

import hmac
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localspec.serve.bodies import Problem
from localspec.serve.http import answer

PUBLIC: Final = ("/health", "/v1/health")
LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")
_ALLOWED_METHODS: Final = "GET, POST, OPTIONS"


@dataclass(frozen=True, slots=True)
class Access:
    """Who may ask, beside programs of this machine."""

    api_key: str = ""  # "" for none; then only names that no foreign web page can have are answered
    hosts: frozenset[str] = frozenset()  # names in small letters that others call this machine by
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

    def __init__(self, app: ASGIApp, access: Access, on_answer: Callable[[str, str, int], object]) -> None:
        """`on_answer` is told method, path and status."""
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

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._on_answer(scope["method"], scope["path"], message["status"])
                if origin is not None and self._access.has_origin(origin):
                    message["headers"] = [*message["headers"], *allowing(origin, headers)]
            await send(message)

        respond = self._refused(scope, headers) or self._app
        await respond(scope, receive, sending)

    def _refused(self, scope: Scope, headers: Headers) -> Response | None:
        origin = headers.get("origin")
        if origin is not None and not self._access.has_origin(origin):
            what = f"web pages of {origin[:80]!r} may not ask here"
            remedy = "start the server with --allow-origin and this origin"
            return refusal(403, "permission_error", "origin", f"{what} ({remedy})")
        host = headers.get("host", "")
        if not self._access.has_host(host):
            what = f"this server does not answer to the Host {name_in(host)[:80]!r}"
            remedy = "start it with --allow-host and this name, or with a key"
            return refusal(403, "permission_error", "host", f"{what} ({remedy})")
        if scope["method"] == "OPTIONS":
            return Response(status_code=204)
        if self._api_key and scope["path"] not in PUBLIC and not self._has_key(headers):
            return refusal(401, "authentication_error", "invalid_api_key", "the API key is missing or wrong")
        return None

    def _has_key(self, headers: Headers) -> bool:
        bearer = headers.get("authorization", "")
        given = bearer[7:] if bearer[:7].lower() == "bearer " else headers.get("x-api-key", "")
        return hmac.compare_digest(given.encode(), self._api_key)


def refusal(status: int, kind: str, code: str, message: str) -> Response:
    return answer({"error": Problem(status, kind, code, message).error}, status=status)


def is_local_name(host: str) -> bool:
    """Whether a Host is one that DNS cannot give to a foreign page: localhost, or an address in digits."""
    name = name_in(host)
    return name == "localhost" or is_address(name)


def name_in(host: str) -> str:
    """The name in a Host, without its port."""
    name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
    return name.lower()


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_local_origin(origin: str) -> bool:
    """Whether a page comes from this machine."""
    scheme, separator, rest = origin.partition("://")
    if not separator or scheme not in ("http", "https"):
        return scheme in ("app", "tauri", "vscode-webview", "vscode-file") and bool(separator)
    name = name_in(rest)
    return name in LOOPBACK_NAMES or name.endswith(".localhost")


def allowing(origin: str, headers: Headers) -> list[tuple[bytes, bytes]]:
    """What lets a page of this machine read the answer."""
    wanted = headers.get("access-control-request-headers", "authorization, content-type, x-api-key")
    found = {
        "access-control-allow-origin": origin,
        "access-control-allow-methods": _ALLOWED_METHODS,
        "access-control-allow-headers": wanted,
        "vary": "Origin",
    }
    return [(name.encode(), value.encode("latin-1", "replace")) for name, value in found.items()]
