"""A stand-in for the Hugging Face Hub on loopback: real HTTP for the real huggingface_hub."""

import hashlib
import json
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_PIECE = 1 << 14  # bytes sent at a time


@dataclass
class Served:
    """One file of the hub, and what its server does wrong."""

    path: Path
    sha256: str
    size: int
    statuses: list[int] = field(default_factory=list)  # answers to the coming GETs instead of the file
    head_status: int | None = None
    error_code: str = ""  # X-Error-Code that goes with a status
    retry_after: str = ""
    rate_limit: str = ""
    drops: list[int] = field(default_factory=list)  # the coming GETs break off after so many bytes
    after_a_drop: list[int] = field(default_factory=list)  # statuses of the GETs that follow a drop
    ignores_range: bool = False
    elsewhere: str = ""  # origin that HEAD redirects to
    flip: int | None = None  # position of a byte that arrives changed
    sent_size: int | None = None
    sent_sha256: str | None = None


@dataclass
class Request:
    method: str
    path: str
    authorization: str | None


class Hub:
    """`with Hub() as hub: hub.add(...)`; `hub.endpoint` goes into HF_ENDPOINT."""

    def __init__(self, bytes_per_second: float | None = None) -> None:
        self.files: dict[str, Served] = {}
        self.requests: list[Request] = []
        self.sent: Counter[str] = Counter()  # bytes of bodies, by file name
        self.bytes_per_second = bytes_per_second
        self.page: bytes | None = None  # answers every request with 200, as a portal's login page does
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def add(self, repo: str, file: str, path: Path, sha256: str = "") -> Served:
        """Serve a file, under `main` and under COMMIT; a hash that is given is not computed."""
        if not sha256:
            with path.open("rb") as source:
                sha256 = hashlib.file_digest(source, "sha256").hexdigest()
        served = Served(path, sha256, path.stat().st_size)
        for revision in (COMMIT, "main"):
            self.files[f"/{repo}/resolve/{revision}/{file}"] = served
        return served

    def gets(self) -> list[Request]:
        return [request for request in self.requests if request.method == "GET"]

    def __enter__(self) -> "Hub":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Clients that were killed or hung up are what the tests are about."""


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        if self._answer_with_page(body=False):
            return
        if (served := self._asked_for()) is None:
            return
        if served.head_status is not None:
            self._fail(served.head_status, served)
            return
        self.send_response(302 if served.elsewhere else 200)
        if served.elsewhere:
            self.send_header("Location", served.elsewhere + self.path)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("X-Linked-Etag", f'"{served.sent_sha256 or served.sha256}"')
        self.send_header("X-Linked-Size", str(served.sent_size or served.size))
        self.send_header("Content-Length", "0" if served.elsewhere else str(served.sent_size or served.size))
        self.end_headers()

    def do_GET(self) -> None:
        if self._answer_with_page(body=True):
            return
        if found := re.match(r"/api/models/([^/]+/[^/?]+)", self.path):
            self._list(found[1])
            return
        if (served := self._asked_for()) is None:
            return
        if served.statuses:
            self._fail(served.statuses.pop(0), served)
            return
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start, end = 0, served.size
        if wanted and not served.ignores_range:
            start = int(wanted[1])
            end = min(int(wanted[2]) + 1, served.size) if wanted[2] else served.size
            if start >= served.size:
                self._fail(416, served)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{served.size}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        self._send(served, start, end)

    def _answer_with_page(self, body: bool) -> bool:
        if (page := self.hub.page) is None:
            return False
        self.send_response(200)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        if body:
            self.wfile.write(page)
        return True

    def _list(self, repo: str) -> None:
        prefix = f"/{repo}/resolve/main/"
        held = [(path, file) for path, file in self.hub.files.items() if path.startswith(prefix)]
        if not held:
            self._fail(404, None, "RepoNotFound")
            return
        siblings = []
        for path, file in held:
            lfs = {"sha256": file.sha256, "size": file.size, "pointerSize": 100}
            siblings.append({"rfilename": path.removeprefix(prefix), "size": file.size, "lfs": lfs})
        body = json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send(self, served: Served, start: int, end: int) -> None:
        stop = min(end, start + served.drops.pop(0)) if served.drops else end
        position = start
        with served.path.open("rb") as file:
            file.seek(start)
            while position < stop:
                piece = file.read(min(_PIECE, stop - position))
                if served.flip is not None and position <= served.flip < position + len(piece):
                    at = served.flip - position
                    piece = piece[:at] + bytes([piece[at] ^ 1]) + piece[at + 1 :]
                try:
                    self.wfile.write(piece)
                except OSError:
                    self.close_connection = True
                    return
                position += len(piece)
                self.hub.sent[served.path.name] += len(piece)
                if self.hub.bytes_per_second:
                    time.sleep(len(piece) / self.hub.bytes_per_second)
        if stop < end:
            self.close_connection = True
            served.statuses, served.after_a_drop = served.after_a_drop, []

    def _asked_for(self) -> Served | None:
        self.hub.requests.append(Request(self.command, self.path, self.headers.get("Authorization")))
        served = self.hub.files.get(self.path)
        if served is None:
            if any(self.path.replace(COMMIT, "main") == path for path in self.hub.files):
                self._fail(404, None, "RevisionNotFound")
                return None
            repo = "/".join(self.path.split("/")[:3]) + "/"
            is_known = any(path.startswith(repo) for path in self.hub.files)
            self._fail(404, None, "EntryNotFound" if is_known else "RepoNotFound")
        return served

    def _fail(self, status: int, served: Served | None, code: str = "") -> None:
        self.send_response(status)
        if code or (served and served.error_code):
            self.send_header("X-Error-Code", code or (served.error_code if served else ""))
        if served and served.retry_after:
            self.send_header("Retry-After", served.retry_after)
        if served and served.rate_limit:
            self.send_header("RateLimit", served.rate_limit)
        self.send_header("Content-Length", "0")
        self.end_headers()
