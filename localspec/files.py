"""Find paths and programs; read and change small files that several processes share."""

import errno
import hashlib
import itertools
import json
import logging
import os
import re
import stat
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any, TypeVar

from localspec.errors import BadSetting, LocalspecError

log = logging.getLogger(__name__)

AHEAD_SECONDS = 86_400.0  # seconds; a file time further in the future comes from a wrong clock


def expanded(path: str | Path) -> Path:
    """Expand a leading `~` or `~NAME` of a path. Raises BadSetting for an unknown user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        what = f"{path} begins with the home folder of a user who does not exist"
        raise BadSetting(what, hint="write the full path") from None


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file. Raises BadSetting, caused by FileNotFoundError for a missing file."""
    try:
        if path.exists() and not path.is_file():  # a pipe would block the read
            raise OSError(errno.EINVAL, "it is not a file")
        return tomllib.loads(path.read_text("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise BadSetting(f"{path} is not valid TOML: {error}", hint="repair or remove the file") from error
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> BadSetting:
    return BadSetting(f"{path} cannot be read: {error.strerror}", hint="check the path and its permissions")


def program(name: str) -> str | None:
    """Return the path of a program on PATH. Leave out the working directory, where Windows searches first."""
    suffix = ".exe" if sys.platform == "win32" and not name.endswith(".exe") else ""
    places = (Path(folder, name + suffix) for folder in os.get_exec_path() if os.path.isabs(folder))
    return next((str(place) for place in places if place.is_file() and os.access(place, os.X_OK)), None)


def write_text_atomically(path: Path, text: str) -> None:
    """Write a text with `write_atomically`. Raises BadSetting if a file name in the text is not UTF-8."""
    try:
        content = text.encode()
    except UnicodeEncodeError:
        hint = "rename the file whose name is in another encoding"
        what = f"{path} was not written, because one of the file names for it is not UTF-8"
        raise BadSetting(what, hint=hint) from None
    write_atomically(path, content)


def write_atomically(path: Path, content: bytes, *, lasting: bool = True) -> None:
    """Replace the content of a small file; a reader sees the old or the new content, never a part of it.

    Only the owner can read a new file; an old file keeps its mode, and a link stays a link. `lasting`:
    whether the content must survive a power cut after the return. Raises OSError.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            if lasting:
                os.fsync(file.fileno())  # otherwise a power cut may keep the new name and lose the content
        with suppress(FileNotFoundError):
            os.chmod(temporary, stat.S_IMODE(path.stat().st_mode))
        rename(temporary, path)
        if lasting:
            sync_folder(path.parent)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


# Seconds between attempts to rename an open file, which only Windows refuses.
_PAUSES: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if sys.platform == "win32" else ()


def rename(source: str | Path, target: str | Path) -> None:
    """Rename a file, even if the new name belongs to another file. Raises OSError.

    On Windows, try again while another process has one of the two files open, for example a virus scanner.
    """
    for pause in _PAUSES:
        try:
            os.replace(source, target)
            return
        except PermissionError:
            sleep(pause)
    os.replace(source, target)


def sync_folder(folder: Path) -> None:
    """Write a folder's list of files to the disk, so that a rename survives a power cut. Raises OSError."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def lies_in(path: Path, folder: Path) -> bool:
    """Return whether a path is below a folder. A link counts by its own place, not by the place of its target."""
    return Path(os.path.realpath(path.parent)).is_relative_to(os.path.realpath(folder))


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or {} if no file exists. Raises ValueError for a damaged file, and OSError."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    return content


def change_json_object(path: Path, changes: Mapping[str, object]) -> str:
    """Update a JSON object in a file that other processes also change. A name with the value None is removed.

    Rename a damaged file, and return a notice about it; return "" for an intact file. Raises OSError.
    """
    notice = ""
    with locked(path.parent):
        try:
            content = read_json_object(path)
        except ValueError as error:
            content = {}
            notice = f"{path} was damaged ({error}); it is kept as {rename_damaged(path).name}"
        content = {name: value for name, value in (content | dict(changes)).items() if value is not None}
        write_atomically(path, repaired(json.dumps(content, indent=1, ensure_ascii=False)).encode())
        for left in path.parent.glob(f".{path.name}.*"):  # remove unfinished files of a killed process
            left.unlink(missing_ok=True)
    return notice


def read_numbers(path: Path, most: float) -> dict[str, float]:
    """Return the numbers from 0 to `most` in the JSON object of a file; {} for an unreadable file."""
    try:
        values = read_json_object(path).items()
    except (OSError, ValueError):
        return {}
    return {name: float(n) for name, n in values if type(n) in (int, float) and 0 <= n <= most}


def remember_number(path: Path, name: str, value: float) -> None:
    """Write a number into the JSON object of a file; ignore a file that cannot be written."""
    with suppress(OSError):
        if notice := change_json_object(path, {name: value}):
            log.warning("%s", notice)


def rename_damaged(path: Path, name: str = "") -> Path:
    """Rename a damaged file to NAME.damaged, NAME.damaged-2 and so on; return the path. Raises OSError."""
    path = Path(os.path.realpath(path))
    endings = itertools.chain([""], (f"-{n}" for n in itertools.count(2)))
    names = (path.with_name(f"{name or path.name}.damaged{ending}") for ending in endings)
    kept = next(name for name in names if not os.path.lexists(name))
    rename(path, kept)
    return kept


def repaired(text: str) -> str:
    """Return a text that UTF-8 can encode. Join or replace the surrogates that argv and JSON may contain."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


if TYPE_CHECKING:
    from filelock import BaseFileLock

_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
_TIMEOUT_SECONDS = 10.0  # the longest wait for a lock; a change takes milliseconds


class FileLock:
    """A lock between processes; `try_acquire` never waits, and `release` removes the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: BaseFileLock | None = None

    def try_acquire(self) -> bool:
        """Take the lock; return False if another process holds it. Raises OSError."""
        self._held = _acquired(self._path, 0)
        return self._held is not None

    def release(self) -> None:
        held, self._held = self._held, None
        if held is None:
            return
        if sys.platform != "win32":  # on Windows, filelock removes the file
            # Remove the file before the release, so that a waiting process makes a new one.
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
        held.release()


@contextmanager
def alone(lock: FileLock, what: str, hint: str) -> Iterator[None]:
    """Hold the lock. Raises OSError, or LocalspecError(what, hint) if another process holds the lock."""
    if not lock.try_acquire():
        raise LocalspecError(what, hint=hint)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder's small files; the file `.lock` remains. Raises OSError."""
    held = _acquired(folder / ".lock", _TIMEOUT_SECONDS)
    if held is None:
        raise TimeoutError(errno.ETIMEDOUT, "another localspec is changing files in this folder", str(folder))
    try:
        yield
    finally:
        held.release()


def _acquired(path: Path, seconds: float) -> "BaseFileLock | None":
    """Return the lock on a file; None if another process still holds it after `seconds`. Raises OSError."""
    from filelock import FileLock, Timeout  # imported late, because the import takes 15 ms

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # No soft lock, because it would remain after its process is killed.
    lock = FileLock(path, mode=0o600, thread_local=False, fallback_to_soft=False, poll_interval=0.01)
    try:
        lock.acquire(seconds)
    except Timeout:
        return None
    except OSError as error:
        if error.errno not in _NO_LOCKS:  # a network file system may lack locks; continue without one
            raise
        path.unlink(missing_ok=True)
    return lock


def after_fork(forget: Callable[[], None]) -> None:
    """Call `forget` in every child of fork(), because a child has none of its parent's other threads."""
    if hasattr(os, "register_at_fork"):  # Windows has no fork()
        os.register_at_fork(after_in_child=forget)


T = TypeVar("T")


def loads_as(kind: type[T], text: str) -> T:
    """Convert JSON to the type `kind`. Raises ValueError, also for missing or unknown fields and infinite numbers."""
    import msgspec  # imported late, because the import takes 20 ms

    try:
        value = msgspec.convert(written := json.loads(text), kind)
        if msgspec.json.decode(msgspec.json.encode(value)) != written:
            raise ValueError(f"missing or unknown fields of {kind.__name__}")
    except (RecursionError, OverflowError) as error:
        raise ValueError("nested too deeply, or a number too large") from error
    return value


def file_of(folder: Path, *key: str) -> Path:
    digest = hashlib.sha256("\0".join(key).encode(errors="surrogateescape")).hexdigest()
    return folder / f"{digest[:32]}.json"


def recalled(file: Path, kind: type[T]) -> T | None:
    """Return a value that `store` or `remember` wrote; None if the value is missing, damaged or not a `kind`."""
    try:
        return loads_as(kind, file.read_text("utf-8"))
    except (OSError, ValueError):
        return None


def store(file: Path, value: object) -> None:
    """Write a value for `recalled` in a later process; a power cut may damage the file. Raises OSError."""
    import msgspec  # imported late, because the import takes 20 ms

    write_atomically(file, msgspec.json.encode(value), lasting=False)


def remember(file: Path, value: T) -> T:
    """Write a value with `store`, and return it. Ignore OSError, because losing the value costs only time."""
    with suppress(OSError):
        store(file, value)
    return value


MOST_BYTES = 8_000_000  # bytes; a longer text fits into no context
_FENCES = re.compile(r"^`{3,}", re.MULTILINE)


def with_files(prompt: str, paths: Iterable[str | Path]) -> str:
    """Return a prompt followed by text files in Markdown. Raises BadSetting for a file that is not text."""
    return "\n\n".join(part for part in [prompt, *map(attached, paths)] if part.strip())


def attached(path: str | Path) -> str:
    """Return a text file as Markdown: its name, and its content in a code block. Raises BadSetting."""
    file = expanded(path)
    text = text_of(file).rstrip("\n")
    fence = max(["```", *(found + "`" for found in _FENCES.findall(text))], key=len)
    return f"{file.name}:\n\n{fence}{file.suffix[1:]}\n{text}\n{fence}"


def text_of(path: str | Path) -> str:
    """Return the text of the user's file. Raises BadSetting."""
    file, hint = expanded(path), "give a text file"
    try:
        with file.open("rb") as opened:  # read with a limit: a device or a pipe may have no end
            content = opened.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES and b"\0" not in content:
            what = f"{file} is longer than any model can read"
            raise BadSetting(what, hint="attach only the part that matters")
        if b"\0" in content:
            hint += "; `localspec run --image FILE` reads images, and documents cannot be read"
            raise BadSetting(f"{file} is not a text file", hint=hint)
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadSetting(f"{file} is not UTF-8 text", hint=hint) from error
    except (OSError, ValueError) as error:
        raise BadSetting(f"{file} cannot be read: {getattr(error, 'strerror', error)}", hint=hint) from error
