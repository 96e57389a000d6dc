"""Paths, programs, small files that several processes change, and files that grow by lines."""

import itertools
import json
import logging
import os
import stat
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from localspec.errors import BadSetting
from localspec.locks import locked

log = logging.getLogger(__name__)


def expanded(path: str | Path) -> Path:
    """The path with `~` or `~NAME` at its beginning spelled out. Raises BadSetting for an unknown user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise BadSetting(
            f"{path} begins with the folder of a user that this machine does not know",
            hint="write the path out",
        ) from None


def program(name: str) -> str | None:
    """The whole path of a program on the search path; never one in the working directory, where Windows looks first."""
    suffix = ".exe" if sys.platform == "win32" and not name.endswith(".exe") else ""
    places = (Path(folder, name + suffix) for folder in os.get_exec_path() if os.path.isabs(folder))
    return next((str(place) for place in places if place.is_file() and os.access(place, os.X_OK)), None)


def write_text_atomically(path: Path, text: str, *, lasting: bool = True) -> None:
    """`write_atomically` in UTF-8."""
    write_atomically(path, text.encode(), lasting=lasting)


def write_atomically(path: Path, content: bytes, *, lasting: bool = True) -> None:
    """Write a small file so that a reader sees the old content or the new one, never a part of it.

    A new file is its owner's only; an old one keeps its mode, and a link to one stays a link. What is `lasting` is on
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

    All other names stay. A damaged file is set aside; the sentence that tells so is returned, else "". Raises OSError.
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
    """Put a number into such a file; a disk that is full loses it and nothing else."""
    with suppress(OSError):
        if told := change_json_object(path, {name: value}):
            log.warning("%s", told)


def set_aside(path: Path) -> Path:
    """Rename a damaged file to NAME.damaged, or to NAME.damaged-2 and so on, and return that. Raises OSError."""
    path = Path(os.path.realpath(path))
    endings = itertools.chain([""], (f"-{n}" for n in itertools.count(2)))
    free = (path.with_name(f"{path.name}.damaged{ending}") for ending in endings)
    aside = next(place for place in free if not os.path.lexists(place))
    os.replace(path, aside)
    return aside


def append_json_lines(path: Path, values: Iterable[object], *, head: object = None) -> None:
    """Append each value as a line of JSON, after `head` where the file is new or empty. A new file is its owner's only.

    Returns when the lines are on the disk; after an OSError none of them is. Lone surrogates, which argv and JSON may
    hold, become U+FFFD.
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
    """The values in a file of JSON lines, and how many lines were none, as a crash leaves one. Raises OSError."""
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
    """True after a crash that cut the last line short; what follows must start a line of its own."""
    if os.lseek(descriptor, 0, os.SEEK_END) == 0:
        return False
    os.lseek(descriptor, -1, os.SEEK_END)
    return os.read(descriptor, 1) != b"\n"
