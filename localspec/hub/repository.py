"""What is asked of the Hugging Face Hub, through huggingface_hub: what a file is, and its bytes."""

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from localspec.errors import DownloadFailed, LocalspecError
from localspec.hub.failures import is_passing, translated, wait_asked_for

if TYPE_CHECKING:
    import httpx2

_Answer = TypeVar("_Answer")

_METADATA_SECONDS = 15.0
_SILENCE_SECONDS = 30.0  # without a byte: the connection is dead


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file on the Hub as it is there now."""

    repo: str
    file: str
    commit: str
    url: str  # where the bytes are
    bytes: int
    sha256: str | None  # None: the Hub does not say, so only the bytes can
    with_token: bool  # False: the bytes lie with a stranger, who must not see it

    @property
    def name(self) -> str:
        return f"{self.repo}:{self.file}"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to try again while nothing comes."""

    tries: int = 5
    first_wait_seconds: float = 0.5
    longest_wait_seconds: float = 30.0  # that a server may ask for
    sleep: Callable[[float], None] = time.sleep

    def allows(self, asked: float | None) -> bool:
        """Whether a wait that the server asked for is short enough."""
        return asked is None or asked <= self.longest_wait_seconds

    def pause(self, failures: int, asked: float | None) -> None:
        """Wait before the next try: what the server asked for, or twice as long each time."""
        self.sleep(self.first_wait_seconds * 2 ** (failures - 1) if asked is None else asked)


def offline() -> bool:
    from huggingface_hub import constants

    return constants.is_offline_mode()


def look(repo: str, file: str, revision: str = "main", patience: Patience | None = None) -> RemoteFile:
    """One HEAD request. Raises DownloadFailed, or UnknownPair when there is no such repository or file."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    def ask() -> RemoteFile:
        _check_token()
        _session()
        url = hf_hub_url(repo, file, revision=revision, endpoint=_endpoint())
        found = get_hf_file_metadata(url, timeout=_METADATA_SECONDS, endpoint=_endpoint())
        if not found.commit_hash or found.size is None:
            raise DownloadFailed(
                f"the server at {urlsplit(url).hostname} does not answer like a Hugging Face Hub",
                hint="check HF_ENDPOINT and the proxy settings",
            )
        etag = found.etag or ""
        return RemoteFile(
            repo=repo,
            file=file,
            commit=found.commit_hash,
            url=found.location,
            bytes=found.size,
            sha256=etag if re.fullmatch(r"[0-9a-f]{64}", etag) else None,
            with_token=_origin(found.location) == _origin(url),
        )

    return _patiently(ask, f"{repo}:{file}", patience or Patience())


@dataclass(frozen=True, slots=True)
class Listing:
    """A repository's files as they are there now."""

    repo: str
    commit: str
    files: tuple[RemoteFile, ...]


def listing(repo: str, revision: str = "main") -> Listing:
    """One request. Raises DownloadFailed, or UnknownPair when there is no such repository."""
    from huggingface_hub import HfApi

    def ask() -> Listing:
        _check_token()
        _session()
        api = HfApi(endpoint=_endpoint(), library_name="localspec")
        found = api.model_info(repo, revision=revision, files_metadata=True, timeout=_METADATA_SECONDS)
        if not found.sha:
            raise DownloadFailed(
                f"the server does not say which version of {repo} it has", hint="check HF_ENDPOINT"
            )
        files = tuple(
            RemoteFile(repo, file.rfilename, found.sha, "", file.size, file.lfs.sha256, with_token=True)
            for file in found.siblings or ()
            if file.size and file.lfs
        )
        return Listing(repo, found.sha, files)

    return _patiently(ask, repo, Patience())


@contextlib.contextmanager
def stream(remote: RemoteFile, start: int, end: int | None = None) -> Iterator[tuple[int, Iterator[bytes]]]:
    """The file's bytes from `start` on, to `end` exclusively where it is given, as they arrive.

    Entering gives where they really start: 0 from a server that ignores ranges. Raises what httpx2 raises.
    """
    import httpx2
    from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

    timeout = httpx2.Timeout(_SILENCE_SECONDS, connect=_METADATA_SECONDS)
    headers = _headers(remote.with_token) | {"Accept-Encoding": "identity"}
    if start or end is not None:
        headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
    with _session().stream("GET", remote.url, headers=headers, timeout=timeout) as response:
        hf_raise_for_status(response)
        yield _first_byte(response, remote, start), response.iter_raw()


def read_range(remote: RemoteFile, start: int, length: int) -> bytes:
    """Exactly those bytes, or fewer at the end of the file. Raises DownloadFailed."""

    def ask() -> bytes:
        with stream(remote, start, min(start + length, remote.bytes)) as (at, chunks):
            if at != start:
                raise DownloadFailed(
                    f"the server of {remote.name} sends whole files only: its header cannot be read alone",
                    hint="fetch the file: its header is checked before the rest comes",
                )
            data = b""
            for chunk in chunks:
                data += chunk
                if len(data) >= length:
                    break
            return data[:length]

    return _patiently(ask, remote.name, Patience())


def _patiently(ask: Callable[[], _Answer], name: str, patience: Patience) -> _Answer:
    from httpx2 import HTTPError, InvalidURL
    from huggingface_hub.errors import HFValidationError

    failures = 0
    while True:
        try:
            return ask()
        except LocalspecError:
            raise
        except (OSError, HTTPError, InvalidURL, HFValidationError) as error:
            failures += 1
            asked = wait_asked_for(error)
            if failures >= patience.tries or not is_passing(error) or not patience.allows(asked):
                raise translated(error, name) from error
            patience.pause(failures, asked)


def _first_byte(response: "httpx2.Response", remote: RemoteFile, start: int) -> int:
    if response.status_code == 200:
        return 0
    said = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
    if response.status_code != 206 or not said or int(said[1]) != start:
        raise DownloadFailed(
            f"the server answered a request for part of {remote.name} with something else "
            f"(status {response.status_code})",
            hint="a proxy may be in the way; try again later",
        )
    if said[2] not in ("*", str(remote.bytes)):
        raise DownloadFailed(
            f"{remote.name} changed on the server while it was read: {int(said[2]):,} bytes, "
            f"{remote.bytes:,} before",
            hint="start again",
        )
    return start


def _headers(with_token: bool) -> dict[str, str]:
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    return build_hf_headers(token=None if with_token else False, library_name="localspec")


def _session() -> "httpx2.Client":
    """huggingface_hub's own; making it reads the proxy variables and the certificates."""
    from httpx2 import InvalidURL
    from huggingface_hub import get_session

    try:
        return get_session()
    except OSError as error:
        raise DownloadFailed(
            f"the certificates cannot be read: {error.strerror or error}",
            hint="check SSL_CERT_FILE and SSL_CERT_DIR",
        ) from error
    except (ImportError, ValueError, InvalidURL) as error:
        raise DownloadFailed(
            f"the proxy settings cannot be used: {error}",
            hint="check ALL_PROXY, HTTPS_PROXY, HTTP_PROXY and NO_PROXY",
        ) from error


def _check_token() -> None:
    """A header that cannot be sent would be quoted in an error, and the token with it."""
    from huggingface_hub import get_token

    try:
        right = re.fullmatch(r"[!-~]*", get_token() or "")
    except ValueError:  # the file that holds it is no text
        right = None
    if not right:
        raise DownloadFailed(
            "the token for the Hub holds characters that no token has",
            hint="correct HF_TOKEN, or log in anew: `hf auth login`",
        )


def _endpoint() -> str:
    from huggingface_hub import constants

    endpoint = (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
    if not endpoint.startswith(("http://", "https://")):
        raise DownloadFailed(
            f"HF_ENDPOINT={endpoint.rpartition('@')[2]} is not the address of a server",
            hint="begin it with https://",
        )
    return endpoint


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)
