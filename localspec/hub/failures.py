"""One sentence for each way in which the Hub can fail; which failures pass by themselves."""

import errno
from contextlib import suppress

from localspec.errors import DownloadFailed, LocalspecError, UnknownPair

_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_LATER = "run the same command again later; a pull goes on where it stopped"
_ELSEWHERE = "make the folder writable, or set LOCALSPEC_HOME to another one"


class RevisionGone(DownloadFailed):
    """The pinned revision is not there any more."""


def is_passing(error: Exception) -> bool:
    """Whether trying again soon may help."""
    import httpx2

    status = _status(error)
    if status is not None:
        return status in _PASSING
    return isinstance(error, httpx2.TransportError) and not isinstance(
        error, httpx2.UnsupportedProtocol | httpx2.LocalProtocolError
    )


def wait_asked_for(error: Exception) -> float | None:
    """Seconds that the server asked to wait for; None when it did not say."""
    response = getattr(error, "response", None)
    if response is not None:
        with suppress(ValueError):
            return max(0.0, float(response.headers.get("Retry-After", "")))
    return None


def translated(error: Exception, name: str) -> LocalspecError:
    """What to tell the user about an error of huggingface_hub, httpx2 or the system while fetching `name`."""
    import httpx2
    from huggingface_hub import errors

    repo = name.split(":", 1)[0]
    token = "check the name; for a private repository set HF_TOKEN or run `hf auth login`"
    match error:
        case LocalspecError():
            return error
        case errors.OfflineModeIsEnabled():
            return DownloadFailed(
                f"{name} cannot be fetched: HF_HUB_OFFLINE is set", hint="unset it to fetch files"
            )
        case errors.GatedRepoError():
            return DownloadFailed(
                f"{repo} is gated: its owner wants the terms accepted first",
                hint=f"accept them at https://huggingface.co/{repo} and set HF_TOKEN or run `hf auth login`",
            )
        case errors.DisabledRepoError():
            return DownloadFailed(f"{repo} has been disabled on the Hub", hint="choose another pair")
        case errors.RepositoryNotFoundError():
            return UnknownPair(f"the repository {repo} does not exist, or is private", hint=token)
        case errors.RevisionNotFoundError():
            return RevisionGone(
                f"the pinned revision of {name} is gone from the Hub", hint="choose another pair"
            )
        case errors.EntryNotFoundError():
            file = name.split(":", 1)[-1]
            return UnknownPair(
                f"{repo} has no file {file}", hint=f"see https://huggingface.co/{repo}/tree/main"
            )
        case errors.HFValidationError():
            return UnknownPair(f"{repo} is not the name of a repository", hint="it looks like org/name")
    status = _status(error)
    if status is not None:
        return _of_status(status, name, token, wait_asked_for(error))
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        return DownloadFailed(
            f"{name} cannot be fetched: {error.strerror or error}{where}",
            hint="check the network and the variables that name files for it",
        )
    return _of_connection(error if isinstance(error, httpx2.HTTPError) else None, error, name)


def of_system(error: OSError, name: str, done: str = "stored") -> DownloadFailed:
    """What to tell the user when the disk or the folder is the problem and `name` cannot be `done`."""
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DownloadFailed(f"the disk is full: {name} did not fit", hint="make room, then " + _LATER)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return DownloadFailed(
            f"{name} cannot be {done}: no permission to write{where}",
            hint=_ELSEWHERE,
        )
    no_folder = error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EEXIST)
    return DownloadFailed(
        f"{name} cannot be {done}: {error.strerror or error}{where}",
        hint=_ELSEWHERE if no_folder else _LATER,
    )


def _of_status(status: int, name: str, token: str, wait: float | None) -> DownloadFailed:
    if status == 401:
        return DownloadFailed(f"the Hub does not accept the token for {name} (401)", hint=token)
    if status == 403:
        return DownloadFailed(f"the Hub does not let this token fetch {name} (403)", hint=token)
    if status == 404:
        return DownloadFailed(
            f"{name} is not on the server (404)", hint="check HF_ENDPOINT, or choose another pair"
        )
    if status == 416:
        return DownloadFailed(
            f"the server's {name} is shorter than what is here already (416)", hint="try again"
        )
    if status == 429:
        asked = f" and asks to wait {wait:.0f} s" if wait else ""
        return DownloadFailed(f"the Hub says that there were too many requests (429){asked}", hint=_LATER)
    if status >= 500:
        return DownloadFailed(f"the Hub has a problem of its own ({status}) with {name}", hint=_LATER)
    return DownloadFailed(f"the Hub answered {status} for {name}", hint=_LATER)


def _of_connection(known: Exception | None, error: Exception, name: str) -> DownloadFailed:
    import httpx2

    why = str(error).rstrip(".") or type(error).__name__
    if isinstance(known, httpx2.ProxyError):
        return DownloadFailed(
            f"the proxy does not work: {why}", hint="check HTTPS_PROXY, HTTP_PROXY and NO_PROXY"
        )
    if isinstance(known, httpx2.TimeoutException):
        return DownloadFailed(f"the server stopped answering while {name} was fetched", hint=_LATER)
    if isinstance(known, httpx2.ConnectError):
        return DownloadFailed(
            f"the server cannot be reached: {why}", hint="check the network, then " + _LATER
        )
    return DownloadFailed(f"the connection broke while {name} was fetched: {why}", hint=_LATER)


def _status(error: Exception) -> int | None:
    response = getattr(error, "response", None)
    return None if response is None else int(response.status_code)
