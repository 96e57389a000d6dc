"""Paths, programs, small files that several processes change, and files that grow by lines."""

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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from localspec.errors import BadSetting, LocalspecError

log = logging.getLogger(__name__)

AHEAD_SECONDS = 86_400.0  # a time so far in the future was written by a wrong clock


def expanded(path: str | Path) -> Path:
    """The path with `~` or `~NAME` at its beginning spelled out. Raises BadSetting for an unknown user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise BadSetting(
            f"{path} begins with the folder of a user that this machine does not know",
            hint="write the path out",
        ) from None


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of the user's file. Raises BadSetting, from a FileNotFoundError without a file."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSetting(f"{path} is not valid TOML: {error}", hint="repair or remove the file") from error
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> BadSetting:
    return BadSetting(f"{path} cannot be read: {error.strerror}", hint="check the path and its permissions")


def program(name: str) -> str | None:
    """The whole path of a program on the search path; never one in the working directory, where Windows looks first."""
    suffix = ".exe" if sys.platform == "win32" and not name.endswith(".exe") else ""
    places = (Path(folder, name + suffix) for folder in os.get_exec_path() if os.path.isabs(folder))
    return next((str(place) for place in places if place.is_file() and os.access(place, os.X_OK)), None)


def write_text_atomically(path: Path, text: str) -> None:
    """`write_atomically` in UTF-8."""
    write_atomically(path, text.encode())


def write_atomically(path: Path, content: bytes, *, lasting: bool = True) -> None:
    """Write a small file so that a reader sees the old content or the new one, never a part of it.

    A new file is its owner's only; an old one keeps its mode, and a link to one stays a link. With `lasting` it is on
    the disk before this returns. Raises OSError.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            if lasting:
                os.fsync(file.fileno())  # else a power cut may keep the new name and lose the content
        with suppress(FileNotFoundError):
            os.chmod(temporary, stat.S_IMODE(path.stat().st_mode))
        os.replace(temporary, path)
        if lasting:
            sync_folder(path.parent)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut, where folders can be synced. Raises OSError."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def lies_in(path: Path, folder: Path) -> bool:
    """Whether a name, of a file or a link, is in a folder or below it, links to folders followed.

    Removing the name then removes nothing elsewhere.
    """
    return Path(os.path.realpath(path.parent)).is_relative_to(os.path.realpath(folder))


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file, {} where there is no file. Raises OSError, and ValueError for a damaged file."""
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
    """Put values into the JSON object of a file that other processes change too; None takes a name out.

    Other names stay. A damaged file is set aside; returns a sentence about it, else "". Raises OSError.
    """
    told = ""
    with locked(path.parent):
        try:
            content = read_json_object(path)
        except ValueError as error:
            content = {}
            told = f"{path} was damaged ({error}); it is kept as {set_aside(path).name}"
        content = {name: value for name, value in (content | dict(changes)).items() if value is not None}
        write_atomically(path, _utf8(json.dumps(content, indent=1, ensure_ascii=False)))
        for left in path.parent.glob(f".{path.name}.*"):  # by a process that was killed
            left.unlink(missing_ok=True)
    return told


def read_numbers(path: Path, most: float) -> dict[str, float]:
    """The numbers from 0 to `most` in the JSON object of a file; nothing where it cannot be read."""
    try:
        values = read_json_object(path)
    except (OSError, ValueError):
        return {}
    return {
        name: float(value)
        for name, value in values.items()
        if type(value) in (int, float) and 0 <= value <= most
    }


def remember_number(path: Path, name: str, value: float) -> None:
    """Write a number into the file; a full disk loses only the number."""
    with suppress(OSError):
        if told := change_json_object(path, {name: value}):
            log.warning("%s", told)


def set_aside(path: Path) -> Path:
    """Rename a damaged file to NAME.damaged, NAME.damaged-2 and so on; returns the new path. Raises OSError."""
    path = Path(os.path.realpath(path))
    endings = itertools.chain([""], (f"-{n}" for n in itertools.count(2)))
    free = (path.with_name(f"{path.name}.damaged{ending}") for ending in endings)
    aside = next(place for place in free if not os.path.lexists(place))
    os.replace(path, aside)
    return aside


def append_json_lines(path: Path, values: Iterable[object], *, head: object = None) -> None:
    """Append each value as a line of JSON, after `head` where the file is new or empty. A new file is its owner's only.

    Returns when the lines are on the disk; after an OSError the file has no new line. Lone surrogates, which argv and
    JSON may hold, become U+FFFD.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lines = b"".join(map(_line, values))
    # O_BINARY keeps Windows from turning the newlines into pairs.
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags, 0o600)
    try:
        before = os.fstat(descriptor).st_size
        if not before and head is not None:
            lines = _line(head) + lines
        elif _ends_inside_a_line(descriptor):
            lines = b"\n" + lines
        _write_whole(descriptor, lines, before)
    finally:
        os.close(descriptor)


def read_json_lines(path: Path) -> tuple[list[Any], int]:
    """The values in a file of JSON lines, and the number of damaged lines. Raises OSError."""
    values: list[Any] = []
    damaged = 0
    for line in path.read_bytes().split(b"\n"):
        if line.strip():
            try:
                values.append(json.loads(line))
            except (ValueError, RecursionError):
                damaged += 1
    return values, damaged


def _line(value: object) -> bytes:
    return _utf8(json.dumps(value, ensure_ascii=False)) + b"\n"


def _utf8(text: str) -> bytes:
    """Halves of characters are joined, or replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _write_whole(descriptor: int, content: bytes, before: int) -> None:
    try:
        while content:
            content = content[os.write(descriptor, content) :]
        os.fsync(descriptor)
    except OSError:
        with suppress(OSError):
            os.ftruncate(descriptor, before)
        raise


def _ends_inside_a_line(descriptor: int) -> bool:
    """True after a crash cut the last line short; the next value must start a new line."""
    if os.lseek(descriptor, 0, os.SEEK_END) == 0:
        return False
    os.lseek(descriptor, -1, os.SEEK_END)
    return os.read(descriptor, 1) != b"\n"


if TYPE_CHECKING:
    from filelock import BaseFileLock

_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
_PATIENCE_SECONDS = 10.0  # a change takes milliseconds


class FileLock:
    """A lock of one process at a time; `try_acquire` never waits, and the release removes the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: BaseFileLock | None = None

    def try_acquire(self) -> bool:
        """Take the lock; False while another process has it. Raises OSError if the file cannot be made."""
        self._held = _acquired(self._path, 0)
        return self._held is not None

    def release(self) -> None:
        """Release the lock and remove its file; idempotent."""
        held, self._held = self._held, None
        if held is None:
            return
        if sys.platform != "win32":  # there filelock removes it
            # Before the release: another process that opened it meanwhile notices and starts again.
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
        held.release()


@contextmanager
def alone(lock: FileLock, what: str, hint: str) -> Iterator[None]:
    """Hold the lock. Raises LocalspecError with these words while another process has it, OSError."""
    if not lock.try_acquire():
        raise LocalspecError(what, hint=hint)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder's small files; its `.lock` stays. Raises OSError."""
    held = _acquired(folder / ".lock", _PATIENCE_SECONDS)
    if held is None:
        raise TimeoutError(errno.ETIMEDOUT, "another localspec is changing files there", str(folder))
    try:
        yield
    finally:
        held.release()


def _acquired(path: Path, seconds: float) -> "BaseFileLock | None":
    """The acquired lock of that file; None if another process kept it. Raises OSError.

    Where the file system has no locks, as some network homes, the lock is open and nobody waits.
    """
    from filelock import FileLock, Timeout  # takes 15 ms

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Not a soft lock where there are no others: a killed process would leave it behind for good.
    lock = FileLock(path, mode=0o600, thread_local=False, fallback_to_soft=False, poll_interval=0.01)
    try:
        lock.acquire(seconds)
    except Timeout:
        return None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        path.unlink(missing_ok=True)
    return lock


T = TypeVar("T")


def loads_as(kind: type[T], text: str) -> T:
    """The value in a JSON document, as `read_as` reads it. Raises ValueError, nothing else."""
    try:
        return read_as(kind, json.loads(text))
    except (RecursionError, OverflowError) as error:
        raise ValueError("nested too deeply, or a number too large") from error


def read_as(kind: type[T], written: object) -> T:
    """A value of this kind that is written exactly so: its fields and no others, finite numbers. Raises ValueError."""
    import msgspec  # takes 20 ms

    value = msgspec.convert(written, kind)
    if msgspec.json.decode(msgspec.json.encode(value)) != written:
        raise ValueError(f"more or less than a {kind.__name__}")
    return value


def file_of(folder: Path, *key: str) -> Path:
    """The file of a value that belongs to this key."""
    digest = hashlib.sha256("\0".join(key).encode(errors="surrogateescape")).hexdigest()
    return folder / f"{digest[:32]}.json"


def recalled(file: Path, kind: type[T]) -> T | None:
    """The value of this kind that `store` or `remember` wrote; None without one."""
    try:
        return loads_as(kind, file.read_text("utf-8"))
    except (OSError, ValueError):
        return None


def store(file: Path, value: object) -> None:
    """Write a value for the next process; a power cut may damage the file. Raises OSError."""
    import msgspec  # takes 20 ms

    write_atomically(file, msgspec.json.encode(value), lasting=False)


def remember(file: Path, value: T) -> T:
    """`store`, where a value that cannot be written costs time only."""
    with suppress(OSError):
        store(file, value)
    return value


MOST_BYTES = 8_000_000  # more text than any context holds
_FENCES = re.compile(r"^`{3,}", re.MULTILINE)


def with_files(prompt: str, paths: Iterable[str | Path]) -> str:
    """The prompt, and after it each file. Raises BadSetting for a file that is not text."""
    return "\n\n".join(part for part in [prompt, *map(attached, paths)] if part.strip())


def attached(path: str | Path) -> str:
    """A text file as Markdown: its name, and its content in a code block. Raises BadSetting."""
    file = expanded(path)
    text = text_of(file).rstrip("\n")
    fence = max(["```", *(found + "`" for found in _FENCES.findall(text))], key=len)
    return f"{file.name}:\n\n{fence}{file.suffix[1:]}\n{text}\n{fence}"


def text_of(path: str | Path) -> str:
    """The text of a file that the user names. Raises BadSetting."""
    file, hint = expanded(path), "give a text file"
    try:
        if file.is_file() and file.stat().st_size > MOST_BYTES:
            raise BadSetting(f"{file} is too large for any context", hint="give the part that matters")
        content = file.read_bytes()
        if b"\0" in content:
            raise BadSetting(f"{file} is no text", hint=f"{hint}; images and documents cannot be read")
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadSetting(f"{file} is not UTF-8 text", hint=hint) from error
    except (OSError, ValueError) as error:
        raise BadSetting(f"{file} cannot be read: {getattr(error, 'strerror', error)}", hint=hint) from error
