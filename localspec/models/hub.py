"""Send requests to the Hugging Face Hub, and turn each failure into an error with a hint."""

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import isfinite
from time import sleep
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from localspec.errors import DownloadFailed, LocalspecError, UnknownPair

if TYPE_CHECKING:
    import httpx2

_Answer = TypeVar("_Answer")

_METADATA_SECONDS = 15.0
_TRIES, _FIRST_WAIT_SECONDS = 5, 0.5
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_LATER = "run the same command again later"
_RESUMES = f"{_LATER}; it resumes where it stopped"
_ELSEWHERE = "make the folder writable, or set LOCALSPEC_HOME to another one"
_TOKEN = "check the name; for a private repository set HF_TOKEN or run `hf auth login`"
_PROXIES = "check ALL_PROXY, HTTPS_PROXY, HTTP_PROXY and NO_PROXY"


class Unreachable(DownloadFailed):
    """The error for a server that does not answer, or cannot be reached."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    repo: str
    file: str
    commit: str
    url: str
    bytes: int
    sha256: str | None  # None if the Hub does not give it
    with_token: bool  # whether to send the Hub's token to the server of `url`

    @property
    def name(self) -> str:
        return f"{self.repo}:{self.file}"


def wait(failures: int, error: Exception, name: str) -> None:
    """Wait before a failed request is tried again. Raises the error if another try cannot help."""
    import httpx2

    asked, status = _seconds_asked_for(error), _status(error)
    lasting = httpx2.UnsupportedProtocol | httpx2.LocalProtocolError
    broken = isinstance(error, httpx2.TransportError) and not isinstance(error, lasting)
    may_pass = broken if status is None else status in _PASSING
    if failures >= _TRIES or not may_pass or (asked or 0) > 30:  # a server may ask to wait hours
        raise translated(error, name) from error
    sleep(_FIRST_WAIT_SECONDS * 2 ** (failures - 1) if asked is None else asked)


def look(repo: str, file: str, revision: str = "main") -> RemoteFile:
    """Look up a remote file by one HEAD request. Raises UnknownPair for a missing file, else DownloadFailed."""
    endpoint = _endpoint()
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    def ask() -> RemoteFile:
        _session()
        url = hf_hub_url(repo, file, revision=revision, endpoint=endpoint)
        with _hub_shaped():
            found = get_hf_file_metadata(url, timeout=_METADATA_SECONDS, endpoint=endpoint)
        if not found.commit_hash or found.size is None:
            raise _no_hub()
        sha256 = found.etag if re.fullmatch(r"[0-9a-f]{64}", found.etag or "") else None
        with_token = _origin(found.location) == _origin(url)
        return RemoteFile(repo, file, found.commit_hash, found.location, found.size, sha256, with_token)

    return _patiently(ask, f"{repo}:{file}")


def listing(repo: str, revision: str = "main") -> tuple[RemoteFile, ...]:
    """Return a repository's files in Git LFS. Raises DownloadFailed, or UnknownPair for an unknown name."""
    endpoint = _endpoint()
    from huggingface_hub import HfApi

    def ask() -> tuple[RemoteFile, ...]:
        _session()
        api = HfApi(endpoint=endpoint, library_name="localspec")
        with _hub_shaped():
            found = api.model_info(repo, revision=revision, files_metadata=True, timeout=_METADATA_SECONDS)
            files = tuple(
                RemoteFile(
                    repo, file.rfilename, found.sha or "", "", file.size, file.lfs.sha256, with_token=True
                )
                for file in found.siblings or ()
                if file.size and file.lfs
            )
        if not (found.sha and isinstance(found.sha, str)) or not all(map(_is_file, files)):
            raise _no_hub()
        return files

    return _patiently(ask, repo)


@contextmanager
def _hub_shaped() -> Iterator[None]:
    """Turn huggingface_hub's errors about answers of an unexpected shape into one sentence."""
    from httpx2 import InvalidURL

    try:
        yield
    except (InvalidURL, UnicodeEncodeError):  # errors of the request, not of its answer
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        from huggingface_hub.errors import HFValidationError

        if isinstance(error, HFValidationError):  # a ValueError about the name, not about the answer
            raise
        raise _no_hub() from error


def _is_file(remote: RemoteFile) -> bool:
    named, sized = isinstance(remote.file, str), isinstance(remote.bytes, int)
    return named and sized and re.fullmatch(r"[0-9a-f]{64}", str(remote.sha256)) is not None


def _no_hub() -> DownloadFailed:
    what = f"the server at {host()} does not answer like a Hugging Face Hub"
    return DownloadFailed(what, hint="check HF_ENDPOINT and the proxy settings, or log in to this network")


@contextmanager
def stream(remote: RemoteFile, start: int, end: int) -> Iterator[tuple[int, Iterator[bytes]]]:
    """Yield the position of the first received byte, and the bytes. If a server ignores `start`, the position is 0."""
    import httpx2
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

    headers = build_hf_headers(token=None if remote.with_token else False, library_name="localspec")
    headers |= {"Accept-Encoding": "identity"}
    if start or end < remote.bytes:
        headers["Range"] = f"bytes={start}-{end - 1}"
    timeout = httpx2.Timeout(30.0, connect=_METADATA_SECONDS)  # a connection without data for longer is dead
    with _session().stream("GET", remote.url, headers=headers, timeout=timeout) as response:
        hf_raise_for_status(response)
        ranged = response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
        if response.status_code != 200 and not ranged:
            what = f"the server sent another part of {remote.name} than the requested one"
            hint = "try again later, or without a proxy"
            raise DownloadFailed(f"{what} (status {response.status_code})", hint=hint)
        yield 0 if response.status_code == 200 else start, response.iter_raw()


def read_range(remote: RemoteFile, start: int, length: int) -> bytes:
    """Return `length` bytes of a file from `start` on, or fewer if the file ends. Raises DownloadFailed."""

    def ask() -> bytes:
        with stream(remote, start, min(start + length, remote.bytes)) as (at, chunks):
            if at != start:
                what = f"{remote.name} cannot be inspected without a download"
                hint = "pull the file; the pull checks its header as it arrives"
                raise DownloadFailed(f"{what}: its server sends whole files only", hint=hint)
            data = b""
            while len(data) < length and (chunk := next(chunks, b"")):
                data += chunk
            return data[:length]

    return _patiently(ask, remote.name)


def translated(error: Exception, name: str) -> LocalspecError:
    import httpx2
    from huggingface_hub import errors

    repo, _, file = name.partition(":")
    page, status = f"https://huggingface.co/{repo}", _status(error)
    why = str(error).rstrip(".") or type(error).__name__
    failure: type[LocalspecError] = DownloadFailed
    match error:
        case errors.OfflineModeIsEnabled():
            failure = Unreachable
            text, hint = f"{name} cannot be downloaded: HF_HUB_OFFLINE is set", "unset HF_HUB_OFFLINE"
        case errors.GatedRepoError():
            text = f"{repo} is gated: its owner wants the terms accepted first"
            hint = f"accept them at {page} and set HF_TOKEN or run `hf auth login`"
        case errors.RepositoryNotFoundError():
            failure, text, hint = UnknownPair, f"the repository {repo} does not exist, or is private", _TOKEN
        case errors.RevisionNotFoundError():
            text, hint = f"the pinned revision of {name} is gone from Hugging Face", "choose another pair"
        case errors.EntryNotFoundError():
            failure, text, hint = UnknownPair, f"{repo} has no file {file or name}", f"see {page}/tree/main"
        case errors.HFValidationError():
            failure, text, hint = UnknownPair, f"{repo} is not the name of a repository", "write ORG/NAME"
        case _ if status is not None:
            text, hint = _of_status(status, name, _seconds_asked_for(error))
        case OSError():
            return of_system(error, name, "downloaded")
        case httpx2.ProxyError():
            failure, text, hint = Unreachable, f"the proxy does not work: {why}", _PROXIES
        case httpx2.TimeoutException():
            failure, text, hint = Unreachable, f"{_host(error)} stopped answering about {name}", _RESUMES
        case httpx2.ConnectError() if proxy := _proxy_of(error):
            failure, text, hint = Unreachable, f"the proxy {proxy} cannot be reached: {why}", _PROXIES
        case httpx2.ConnectError():
            why = "no network, or no server of that name" if _is_unnamed(error) else why
            failure, text = Unreachable, f"{_host(error)} cannot be reached: {why}"
            hint = f"check the network, then {_LATER}"
        case _:
            text, hint = f"the connection broke while {name} was downloaded: {why}", _RESUMES
    return failure(text, hint=hint)


def of_system(error: OSError, name: str, done: str = "stored") -> DownloadFailed:
    """Translate an OSError about the file `name`; `done` is the verb of the message, like "downloaded"."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DownloadFailed(f"the disk is full: {name} did not fit", hint=f"make room, then {_RESUMES}")
    no_folder = error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EEXIST)
    no_permission = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
    why = "no permission to write" if no_permission else error.strerror or error
    where = f" ({error.filename})" * bool(error.filename)
    hint = _ELSEWHERE if no_folder or no_permission else _LATER
    return DownloadFailed(f"{name} cannot be {done}: {why}{where}", hint=hint)


def _of_status(status: int, name: str, asked: float | None) -> tuple[str, str]:
    wait = f" and asks to wait {asked:.0f} s" if asked else ""
    sentences = {
        401: (f"Hugging Face does not accept the token for {name} (401)", _TOKEN),
        403: (f"Hugging Face does not let this token download {name} (403)", _TOKEN),
        404: (f"{name} is not on the server (404)", "check HF_ENDPOINT, or choose another pair"),
        429: (f"Hugging Face reports too many requests (429){wait}", _LATER),
    }
    problem = "has a problem of its own" if status >= 500 else "refuses"
    return sentences.get(status, (f"Hugging Face {problem} ({status}): {name}", _LATER))


def host() -> str:
    return urlsplit(_endpoint()).hostname or ""


def _host(error: Exception) -> str:
    with suppress(AttributeError, RuntimeError):  # not every error has a request
        return str(error.request.url.host)  # type: ignore[attr-defined]
    return host()


def _proxy_of(error: Exception) -> str:
    """Return the address of the proxy that the request of `error` went to, or "" if the request needs no proxy."""
    from urllib.request import getproxies, proxy_bypass

    proxies, name = getproxies(), _host(error)
    address = proxies.get(urlsplit(_endpoint()).scheme) or proxies.get("all", "")
    return (urlsplit(address).netloc.rpartition("@")[2] or address) if not proxy_bypass(name) else ""


def _is_unnamed(error: BaseException | None) -> bool:
    import socket  # imported late, because the import takes 5 ms

    while error is not None and not isinstance(error, socket.gaierror):
        error = error.__cause__ or error.__context__
    return error is not None


def _status(error: Exception) -> int | None:
    response = getattr(error, "response", None)
    return None if response is None else int(response.status_code)


def _seconds_asked_for(error: Exception) -> float | None:
    """Return the seconds in `Retry-After`, or in the Hub's `RateLimit` (`"resolvers";r=0;t=9`)."""
    headers = getattr(getattr(error, "response", None), "headers", {})
    rate_limit = re.search(r";\s*t=(\d+)", headers.get("RateLimit", ""))
    with suppress(ValueError, OverflowError):
        seconds = float(headers.get("Retry-After") or (rate_limit[1] if rate_limit else ""))
        return max(0.0, seconds) if isfinite(seconds) else None
    return None


def _patiently(ask: Callable[[], _Answer], name: str) -> _Answer:
    from httpx2 import HTTPError, InvalidURL
    from huggingface_hub.errors import HFValidationError

    failures = 0
    while True:
        try:
            return ask()
        except (OSError, HTTPError, InvalidURL, HFValidationError) as error:
            # Do not try again if the host name has no address: another try would fail in the same way.
            failures = _TRIES if _is_unnamed(error) else failures + 1
            wait(failures, error, name)


def _session() -> "httpx2.Client":
    from httpx2 import InvalidURL
    from huggingface_hub import get_session, get_token

    try:
        right = re.fullmatch(r"[!-~]*", get_token() or "")
    except ValueError:  # the token's file is not text
        right = None
    if not right:  # never send this token, because httpx2 would show it in an error message
        hint = "correct HF_TOKEN, or log in again: `hf auth login`"
        raise DownloadFailed(
            "the token for Hugging Face is not valid: it has a space or a character outside ASCII", hint=hint
        )
    try:
        return get_session()
    except OSError as error:
        what = f"the certificates cannot be read: {error.strerror or error}"
        raise DownloadFailed(what, hint="check the paths in SSL_CERT_FILE and SSL_CERT_DIR") from error
    except (ImportError, ValueError, InvalidURL) as error:
        raise DownloadFailed(f"the proxy settings cannot be used: {error}", hint=_PROXIES) from error


def _endpoint() -> str:
    """Return the Hub's address. Raises DownloadFailed if the import of huggingface_hub would refuse it."""
    endpoint = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    with suppress(ValueError):
        if urlsplit(endpoint).scheme in ("http", "https"):
            return endpoint
    what = f"HF_ENDPOINT={endpoint} is not the address of a server"
    raise DownloadFailed(what, hint="begin the address with https://")


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)
