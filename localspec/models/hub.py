"""Questions to the Hugging Face Hub, through huggingface_hub: facts and bytes of files, a sentence for each failure."""

import errno
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import sleep
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from localspec.errors import DownloadFailed, LocalspecError, UnknownPair

if TYPE_CHECKING:
    import httpx2

_Answer = TypeVar("_Answer")

_METADATA_SECONDS = 15.0
_SILENCE_SECONDS = 30.0  # without a byte: the connection is dead
_TRIES, _FIRST_WAIT_SECONDS = 5, 0.5
_LONGEST_WAIT_SECONDS = 30.0  # that a server may ask for
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_LATER = "run the same command again later"
_RESUMES = f"{_LATER}; it resumes where it stopped"
_ELSEWHERE = "make the folder writable, or set LOCALSPEC_HOME to another one"
_TOKEN = "check the name; for a private repository set HF_TOKEN or run `hf auth login`"
_PROXIES = "check ALL_PROXY, HTTPS_PROXY, HTTP_PROXY and NO_PROXY"


class Unreachable(DownloadFailed):
    """No server answers."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file as the Hub has it now."""

    repo: str
    file: str
    commit: str
    url: str  # of the bytes
    bytes: int
    sha256: str | None  # None: the Hub does not say, so only the bytes can
    with_token: bool  # False: another origin has the bytes and must not see the token

    @property
    def name(self) -> str:
        return f"{self.repo}:{self.file}"


def wait(failures: int, error: Exception, name: str) -> None:
    """Wait before the next try, as the server asks or twice as long each time. Raises if another try is useless."""
    asked = _seconds_asked_for(error)
    if failures >= _TRIES or not _is_passing(error) or (asked or 0) > _LONGEST_WAIT_SECONDS:
        raise translated(error, name) from error
    sleep(_FIRST_WAIT_SECONDS * 2 ** (failures - 1) if asked is None else asked)


def look(repo: str, file: str, revision: str = "main") -> RemoteFile:
    """One HEAD request. Raises DownloadFailed, or UnknownPair for an unknown repository or file."""
    endpoint = _endpoint()
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    def ask() -> RemoteFile:
        _session()
        url = hf_hub_url(repo, file, revision=revision, endpoint=endpoint)
        found = get_hf_file_metadata(url, timeout=_METADATA_SECONDS, endpoint=endpoint)
        if not found.commit_hash or found.size is None:
            raise DownloadFailed(
                f"the server at {urlsplit(url).hostname} does not answer like a Hugging Face Hub",
                hint="check HF_ENDPOINT and the proxy settings",
            )
        sha256 = found.etag if re.fullmatch(r"[0-9a-f]{64}", found.etag or "") else None
        with_token = _origin(found.location) == _origin(url)
        return RemoteFile(repo, file, found.commit_hash, found.location, found.size, sha256, with_token)

    return _patiently(ask, f"{repo}:{file}")


def listing(repo: str, revision: str = "main") -> tuple[RemoteFile, ...]:
    """The files of a repository, in one request. Raises DownloadFailed, or UnknownPair for an unknown one."""
    endpoint = _endpoint()
    from huggingface_hub import HfApi

    def ask() -> tuple[RemoteFile, ...]:
        _session()
        api = HfApi(endpoint=endpoint, library_name="localspec")
        found = api.model_info(repo, revision=revision, files_metadata=True, timeout=_METADATA_SECONDS)
        if not found.sha:
            raise DownloadFailed(f"the server does not say the commit of {repo}", hint="check HF_ENDPOINT")
        return tuple(
            RemoteFile(repo, file.rfilename, found.sha, "", file.size, file.lfs.sha256, with_token=True)
            for file in found.siblings or ()
            if file.size and file.lfs
        )

    return _patiently(ask, repo)


@contextmanager
def known_to_be_there() -> Iterator[None]:
    """Inside it a file or repository that is gone is a failure, and no wrong name. Raises DownloadFailed."""
    try:
        yield
    except UnknownPair as error:
        raise DownloadFailed(str(error), hint=error.hint) from error


@contextmanager
def stream(remote: RemoteFile, start: int, end: int) -> Iterator[tuple[int, Iterator[bytes]]]:
    """The file's bytes from `start` to `end` (exclusive) as they arrive, and the position of the first.

    It is 0 for a server that ignores ranges. Raises the errors of httpx2.
    """
    import httpx2
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

    headers = build_hf_headers(token=None if remote.with_token else False, library_name="localspec")
    headers |= {"Accept-Encoding": "identity"}
    if start or end < remote.bytes:
        headers["Range"] = f"bytes={start}-{end - 1}"
    timeout = httpx2.Timeout(_SILENCE_SECONDS, connect=_METADATA_SECONDS)
    with _session().stream("GET", remote.url, headers=headers, timeout=timeout) as response:
        hf_raise_for_status(response)
        yield _first_byte(response, remote, start), response.iter_raw()


def read_range(remote: RemoteFile, start: int, length: int) -> bytes:
    """Exactly those bytes, or fewer at the end of the file. Raises DownloadFailed."""

    def ask() -> bytes:
        with stream(remote, start, min(start + length, remote.bytes)) as (at, chunks):
            if at != start:
                raise DownloadFailed(
                    f"the server of {remote.name} sends whole files only, so localspec cannot read its header",
                    hint="fetch the file: a pull checks the header first",
                )
            data = b""
            for chunk in chunks:
                data += chunk
                if len(data) >= length:
                    break
            return data[:length]

    return _patiently(ask, remote.name)


def translated(error: Exception, name: str) -> LocalspecError:
    """The sentence about an error of huggingface_hub, httpx2 or the system while `name` is fetched."""
    import httpx2
    from huggingface_hub import errors

    repo, _, file = name.partition(":")
    page, status = f"https://huggingface.co/{repo}", _status(error)
    why = str(error).rstrip(".") or type(error).__name__
    failure: type[LocalspecError] = DownloadFailed
    match error:
        case errors.OfflineModeIsEnabled():
            failure = Unreachable
            text, hint = f"{name} cannot be fetched: HF_HUB_OFFLINE is set", "unset it to fetch files"
        case errors.GatedRepoError():
            text = f"{repo} is gated: its owner wants the terms accepted first"
            hint = f"accept them at {page} and set HF_TOKEN or run `hf auth login`"
        case errors.DisabledRepoError():
            text, hint = f"{repo} has been disabled on the Hub", "choose another pair"
        case errors.RepositoryNotFoundError():
            failure, text, hint = UnknownPair, f"the repository {repo} does not exist, or is private", _TOKEN
        case errors.RevisionNotFoundError():
            text, hint = f"the pinned revision of {name} is gone from the Hub", "choose another pair"
        case errors.EntryNotFoundError():
            failure, text, hint = UnknownPair, f"{repo} has no file {file or name}", f"see {page}/tree/main"
        case errors.HFValidationError():
            failure, text, hint = UnknownPair, f"{repo} is not the name of a repository", "write ORG/NAME"
        case _ if status is not None:
            text, hint = _of_status(status, name, _seconds_asked_for(error))
        case OSError():
            text = f"{name} cannot be fetched: {error.strerror or error}{_where(error)}"
            hint = "check the network and the variables that name files for it"
        case httpx2.ProxyError():
            failure, text, hint = Unreachable, f"the proxy does not work: {why}", _PROXIES
        case httpx2.TimeoutException():
            failure, text, hint = Unreachable, f"{_host(error)} stopped answering about {name}", _RESUMES
        case httpx2.ConnectError():
            why = "no network, or no server of that name" if _is_unnamed(error) else why
            failure, text = Unreachable, f"{_host(error)} cannot be reached: {why}"
            hint = f"check the network, then {_LATER}"
        case _:
            text, hint = f"the connection broke while {name} was fetched: {why}", _RESUMES
    return failure(text, hint=hint)


def of_system(error: OSError, name: str, done: str = "stored") -> DownloadFailed:
    """The sentence about a disk or folder that keeps `name` from being `done`."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DownloadFailed(f"the disk is full: {name} did not fit", hint=f"make room, then {_RESUMES}")
    no_folder = error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EEXIST)
    no_permission = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
    why = "no permission to write" if no_permission else error.strerror or error
    hint = _ELSEWHERE if no_folder or no_permission else _LATER
    return DownloadFailed(f"{name} cannot be {done}: {why}{_where(error)}", hint=hint)


def _of_status(status: int, name: str, asked: float | None) -> tuple[str, str]:
    wait = f" and asks to wait {asked:.0f} s" if asked else ""
    sentences = {
        401: (f"the Hub does not accept the token for {name} (401)", _TOKEN),
        403: (f"the Hub does not let this token fetch {name} (403)", _TOKEN),
        404: (f"{name} is not on the server (404)", "check HF_ENDPOINT, or choose another pair"),
        416: (f"the server's {name} is shorter than the part that is here (416)", "try again"),
        429: (f"the Hub reports too many requests (429){wait}", _LATER),
    }
    problem = "has a problem of its own" if status >= 500 else "refuses"
    return sentences.get(status, (f"the Hub {problem} ({status}): {name}", _LATER))


def _where(error: OSError) -> str:
    return f" ({error.filename})" if error.filename else ""


def host() -> str:
    """The name of the server that is asked for models. Raises DownloadFailed."""
    return urlsplit(_endpoint()).hostname or ""


def _host(error: Exception) -> str:
    """The server that a request went to."""
    with suppress(AttributeError, RuntimeError):  # no request is known
        return str(error.request.url.host)  # type: ignore[attr-defined]
    return host()


def _is_unnamed(error: BaseException | None) -> bool:
    """Whether the name of a server led to no address."""
    while error is not None and not isinstance(error, socket.gaierror):
        error = error.__cause__ or error.__context__
    return error is not None


def _status(error: Exception) -> int | None:
    response = getattr(error, "response", None)
    return None if response is None else int(response.status_code)


def _is_passing(error: Exception) -> bool:
    """Whether trying again soon may help."""
    import httpx2

    if (status := _status(error)) is not None:
        return status in _PASSING
    lasting = httpx2.UnsupportedProtocol | httpx2.LocalProtocolError
    return isinstance(error, httpx2.TransportError) and not isinstance(error, lasting)


def _seconds_asked_for(error: Exception) -> float | None:
    """The wait that a server asks for; None without one."""
    with suppress(AttributeError, ValueError):
        return max(0.0, float(error.response.headers.get("Retry-After", "")))  # type: ignore[attr-defined]
    return None


def _patiently(ask: Callable[[], _Answer], name: str) -> _Answer:
    from httpx2 import HTTPError, InvalidURL
    from huggingface_hub.errors import HFValidationError

    failures = 0
    while True:
        try:
            return ask()
        except (OSError, HTTPError, InvalidURL, HFValidationError) as error:
            failures = (
                _TRIES if _is_unnamed(error) else failures + 1
            )  # nothing has been fetched: no use in patience
            wait(failures, error, name)


def _first_byte(response: "httpx2.Response", remote: RemoteFile, start: int) -> int:
    if response.status_code == 200:
        return 0
    if not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
        raise DownloadFailed(
            f"the server sent another part of {remote.name} than the one asked for "
            f"(status {response.status_code})",
            hint="a proxy may be in the way; try again later",
        )
    return start


def _session() -> "httpx2.Client":
    """The client of huggingface_hub, which reads the proxy variables and the certificates. Raises DownloadFailed."""
    from httpx2 import InvalidURL
    from huggingface_hub import get_session, get_token

    try:
        right = re.fullmatch(r"[!-~]*", get_token() or "")
    except ValueError:  # the token's file is not text
        right = None
    if not right:  # a header that cannot be sent would be quoted in an error, and the token with it
        raise DownloadFailed(
            "the token for the Hub holds characters that no token has",
            hint="correct HF_TOKEN, or log in again: `hf auth login`",
        )
    try:
        return get_session()
    except OSError as error:
        raise DownloadFailed(
            f"the certificates cannot be read: {error.strerror or error}",
            hint="check SSL_CERT_FILE and SSL_CERT_DIR",
        ) from error
    except (ImportError, ValueError, InvalidURL) as error:
        raise DownloadFailed(f"the proxy settings cannot be used: {error}", hint=_PROXIES) from error


def _endpoint() -> str:
    """The address of the Hub. Raises DownloadFailed for one on which the import of huggingface_hub would fail."""
    endpoint = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    with suppress(ValueError):
        if urlsplit(endpoint).scheme in ("http", "https"):
            return endpoint
    raise DownloadFailed(
        f"HF_ENDPOINT={endpoint} is not the address of a server", hint="begin it with https://"
    )


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)
