"""The engine behind a `localspec serve` elsewhere: the same messages over HTTP, so the terminal UI needs no other."""

import http.client
import json
import secrets
import threading
from collections import deque
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from localspec.engine import frames
from localspec.engine.messages import (
    PROTOCOL,
    Ask,
    Cancel,
    CompareReplies,
    Died,
    Failure,
    ListPairs,
    LoadPair,
    Pull,
    Report,
    Request,
)
from localspec.errors import BadSetting, EngineDied

PATH: Final = "/localspec/engine"
CONNECTION: Final = "x-localspec-connection"  # a header: whose reply a cancel means
PAIR: Final = "x-localspec-pair"
VERSION: Final = "x-localspec-protocol"
SILENCE_SECONDS: Final = 30.0  # the server says something every few seconds
_NOT_HERE: Final = "the server's pairs are managed where it runs, and replies are compared there"


class RemoteEngine:
    """Satisfies `localspec.engine.client.Engine`; a thread for each request."""

    def __init__(self, url: str, api_key: str = "") -> None:
        """Raises BadSetting for what is no address."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadSetting(
                f"{url} is no address of a server", hint="give one such as http://127.0.0.1:8080"
            )
        self._secure = parts.scheme == "https"
        self._place = parts.hostname, parts.port
        self._url = url
        self._headers = {"content-type": "application/json", CONNECTION: secrets.token_hex(8)}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._pair = ""
        self._inbox: deque[Report] = deque()
        self._alive = False

    @property
    def alive(self) -> bool:
        """Whether the server answered, the last time that it was asked."""
        return self._alive

    def start(self) -> None:
        self._alive = True

    def send(self, request: Request) -> None:
        match request:
            case LoadPair(pair=pair):
                self._pair = pair or ""
                self._begin(request, 0)
            case Ask(serial=serial):
                self._begin(request, serial)
            case Cancel() | ListPairs():
                self._begin(request, 0)
            case CompareReplies(serial=serial) | Pull(serial=serial):
                hint = "run localspec there"
                self._inbox.append(Failure("BadSetting", _NOT_HERE, hint, serial))

    def drain(self) -> list[Report]:
        return [self._inbox.popleft() for _ in range(len(self._inbox))]

    def close(self) -> None:
        """The server cancels what runs when the connections end, with this process."""
        self._alive = False

    def _begin(self, request: Request, serial: int) -> None:
        threading.Thread(target=self._talk, args=(request, serial), daemon=True).start()

    def _talk(self, request: Request, serial: int) -> None:
        try:
            for report in self._reports(request, serial):
                self._inbox.append(report)
        except (OSError, http.client.HTTPException, EngineDied) as error:
            if self._alive and not isinstance(request, Cancel):
                self._alive = False
                what = f"the server at {self._url} cannot be reached: {error or type(error).__name__}"
                self._inbox.append(Died(what, "see whether localspec serve still runs there"))

    def _reports(self, request: Request, serial: int) -> Iterator[Report]:
        """What the server says. Raises OSError, HTTPException, EngineDied."""
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(*self._place, timeout=SILENCE_SECONDS)
        try:
            connection.request("POST", PATH, frames.encode(request), {**self._headers, PAIR: self._pair})
            answer = connection.getresponse()
            if answer.status != http.client.OK:
                yield Failure("BadSetting", refusal(answer.read()), "", serial)
                return
            if answer.getheader(VERSION) != str(PROTOCOL):
                raise EngineDied("it is another version of localspec", hint="update both ends")
            for line in answer:
                if line.strip():  # an empty one says that the connection is alive
                    yield frames.decode(line)
        finally:
            connection.close()


def refusal(body: bytes) -> str:
    """What a server said that refused a request."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "the server answers, but it is no localspec serve"
