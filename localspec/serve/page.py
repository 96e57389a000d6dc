"""The answer at `/`: a chat for browsers, in one file without a framework, and one line for programs."""

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope


def is_for_page(scope: Scope) -> bool:
    """Return whether a browser opens the address of the server."""
    wanted = Headers(scope=scope).get("accept", "")
    return scope["method"] == "GET" and scope["path"] == "/" and "text/html" in wanted


async def greeting(request: Request) -> Response:
    if is_for_page(request.scope):
        return Response(page(), headers=headers(), media_type="text/html")
    return Response("localspec is running\n", headers={"vary": "Accept"}, media_type="text/plain")


@cache
def page() -> str:
    # Use read_text, which makes LF line ends: the hash of a script is that of its text with LF line ends.
    return files("localspec.serve").joinpath("page.html").read_text("utf-8")


@cache
def headers() -> dict[str, str]:
    policy = (
        "default-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"frame-ancestors 'none'; script-src {allowed('script')}; style-src {allowed('style')}"
    )
    return {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-store",
        "vary": "Accept",
    }


def allowed(tag: str) -> str:
    """Return the sources for a Content-Security-Policy that allows only the page's own `tag`."""
    texts = re.findall(rf"<{tag}>(.*?)</{tag}>", page(), re.DOTALL)
    return " ".join(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in texts)
