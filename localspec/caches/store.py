"""The folder of prompt caches: its files, its budget, and the thread that writes into it.

A file begins with a head (format, facts, tokens) and the head's checksum. A search reads only this beginning.
The parts of the cached state follow, then a checksum of all bytes before it.
"""

import errno
import os
import re
import secrets
import shutil
import stat
import struct
import sys
import tempfile
import threading
import time
import zlib
from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from localspec.files import AHEAD_SECONDS, after_fork, loads_as, locked, rename, sync_folder

if TYPE_CHECKING:  # numpy is imported late, because `localspec list` does not need it
    import numpy as np

FORMAT = b"localspec cache\x03"
_HEAD = struct.Struct("<16sII")  # format, number of bytes in the facts, number of tokens
_CRC = struct.Struct("<I")  # a checksum, to find damage by the disk


class Damaged(ValueError):
    """The error for a file that is truncated, changed, or of another format."""


@dataclass(frozen=True, slots=True)
class Facts:
    key: str  # a digest of everything that the cached state depends on
    model: str  # path of the model file; if this file is gone, the prompt cache is removed
    steps_back: bool  # whether every prefix of the tokens can be restored
    marks: tuple[int, ...]  # number of tokens in each checkpoint, in the order of the checkpoints in `parts`
    parts: tuple[int, ...]  # sizes in bytes: the whole state, its checkpoints, the state of a head
    conversation: str = ""  # the stored conversation whose deletion removes the file
    disk: int = 0  # the device number of the file system with the model


@dataclass(frozen=True, slots=True)
class Stored:
    """A prompt cache on disk; `tokens` are big-endian uint32, because these bytes sort like the tokens."""

    path: Path
    facts: Facts
    tokens: bytes
    bytes: int

    @property
    def length(self) -> int:
        return len(self.tokens) // 4

    def usable(self, shared: int) -> int:
        """Return how many tokens this file can restore for a text whose first `shared` tokens are the file's."""
        if self.facts.steps_back or shared == self.length:
            return shared
        return max((mark for mark in self.facts.marks if mark <= shared), default=0)


def packed(tokens: Sequence[int]) -> bytes:
    import numpy as np

    return np.asarray(tokens, dtype=">u4").tobytes()


def unpacked(tokens: bytes) -> list[int]:
    import numpy as np

    return [int(token) for token in np.frombuffer(tokens, dtype=">u4")]


def write_text(file: BinaryIO, head: bytes, parts: "Sequence[np.ndarray]") -> None:
    """Write the content of a prompt cache, and wait until it is on the disk. Raises OSError."""
    checksum = 0
    for piece in (memoryview(head), *(part.data for part in parts)):
        checksum = zlib.crc32(piece, checksum)
        file.write(piece)
    file.write(_CRC.pack(checksum))
    file.flush()
    os.fsync(file.fileno())


def read_parts(stored: Stored) -> "list[np.ndarray]":
    """Return the parts of a prompt cache. Raises Damaged if the file is truncated or changed, and OSError."""
    import numpy as np

    with _opened(stored.path) as file:
        now, head = _read_head(file, stored.path)
        if (now.facts, now.tokens) != (stored.facts, stored.tokens):
            raise Damaged("another text")
        checksum = zlib.crc32(head)
        parts = [np.empty(size, dtype=np.uint8) for size in now.facts.parts]
        for part in parts:
            if file.readinto(part.data) != len(part):
                raise Damaged("a part of a file")
            checksum = zlib.crc32(part.data, checksum)
        if file.read(_CRC.size + 1) != _CRC.pack(checksum):
            raise Damaged("changed bytes")
        return parts


def _head(tokens: bytes, facts: Facts) -> bytes:
    import msgspec  # imported late, because `localspec list` does not need msgspec

    encoded = msgspec.json.encode(facts)
    head = _HEAD.pack(FORMAT, len(encoded), len(tokens) // 4) + encoded + tokens
    return head + _CRC.pack(zlib.crc32(head))


def _read_head(file: BinaryIO, path: Path) -> tuple[Stored, bytes]:
    size, first = os.fstat(file.fileno()).st_size, file.read(_HEAD.size)
    if len(first) < _HEAD.size:
        raise Damaged("a part of a file")
    mark, size_of_facts, count = _HEAD.unpack(first)
    if mark != FORMAT or size_of_facts > 1 << 16 or 4 * count > size:
        raise Damaged("another format")
    rest = file.read(more := size_of_facts + 4 * count + _CRC.size)
    head = first + rest
    if len(rest) != more or _CRC.unpack(head[-4:])[0] != zlib.crc32(head[:-4]):
        raise Damaged("a changed head")
    facts = loads_as(Facts, rest[:size_of_facts].decode())
    if size != len(head) + sum(facts.parts) + _CRC.size:
        raise Damaged("a part of a file")
    return Stored(path, facts, rest[size_of_facts:-4], size), head


def _opened(path: Path) -> BufferedReader:
    """Open a file. Raises OSError, also for a link or for a file of another user."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    file = os.fdopen(os.open(path, flags), "rb")
    if sys.platform != "win32" and os.fstat(file.fileno()).st_uid != os.geteuid():
        file.close()
        raise PermissionError(errno.EPERM, "another user's file", str(path))
    return file


def _remove(path: Path) -> bool:
    with suppress(OSError):
        path.unlink(missing_ok=True)
        return True
    return False


_NAME = re.compile(r"[0-9a-f]{32}\.cache(\.part\w+)?")
_DEAD_SECONDS = 120.0  # a temporary file unchanged for longer is removed, because its writer has ended
LEFT_FREE = 5_000_000_000  # bytes of the disk that prompt caches leave free
_LOOKED_AT = 64  # number of neighbours on each side in the sorted list that `nearest` compares
OLD_SECONDS = 30 * 86_400.0  # a prompt cache that is unused for longer is removed


class Store:
    """A folder of prompt caches, which several threads and processes may share."""

    def __init__(self, folder: Path, budget: int, exists: Callable[[str], bool] = bool) -> None:
        """`budget`: maximum bytes in the folder; `exists`: whether a conversation of this name exists."""
        self._folder, self._budget, self._exists = folder, budget, exists
        # Prompt caches, sorted by key, then by tokens. Prompt caches with a common prefix are then neighbours.
        self._texts: list[Stored] = []
        self._known: dict[str, Stored | None] = {}  # prompt caches by file name; None for an unreadable file
        self._changing = threading.Lock()

    def clean(self) -> None:
        """Remove prompt caches that are old, over budget, or without their model or conversation; ignore OSError."""
        if self._folder.is_dir():
            with suppress(OSError), locked(self._folder), self._changing:
                self._refresh()
                stats, now = _stats(self._folder), time.time()
                for text in list(self._texts):
                    used = stats[text.path.name].st_mtime if text.path.name in stats else now
                    model, disk = text.facts.model, text.facts.disk
                    # A missing model may be on a disk that is not mounted now; then its prompt caches stay.
                    is_gone = not os.path.exists(model) and disk in (0, disk_of(Path(model)))
                    if now - used > OLD_SECONDS or is_gone or not self._has_place(text.facts):
                        self._drop(text)
                self._free_space(0)

    def _has_place(self, facts: Facts) -> bool:
        return not facts.conversation or self._exists(facts.conversation)

    def has_model(self, model: str) -> bool:
        with self._changing:
            with suppress(OSError):
                self._refresh()
            return any(text.facts.model == model for text in self._texts)

    def nearest(self, key: str, tokens: bytes) -> list[tuple[Stored, int]]:
        """Return prompt caches with this key, each with its common prefix length with `tokens`, the longest first."""
        with self._changing:
            with suppress(OSError):
                self._refresh()
            texts = self._texts
        at = bisect_left(texts, (key, tokens), key=lambda text: (text.facts.key, text.tokens))
        near = texts[max(at - _LOOKED_AT, 0) : at + _LOOKED_AT]  # neighbours share the longest prefixes
        found = [(text, _shared(text.tokens, tokens)) for text in near if text.facts.key == key]
        return sorted((each for each in found if each[1]), key=lambda each: -each[1])[:_LOOKED_AT]

    def read(self, stored: Stored) -> "list[np.ndarray] | None":
        """Return the parts of a prompt cache, and mark it as used; None if unreadable. A damaged file is removed."""
        try:
            parts = read_parts(stored)
            os.utime(stored.path)
        except (OSError, MemoryError):  # the file was removed meanwhile, or the disk fails
            return None
        except ValueError:
            _remove(stored.path)
            return None
        return parts

    def write(self, tokens: bytes, facts: Facts, parts: "Sequence[np.ndarray]") -> bool:
        """Store a prompt cache, and remove those that are prefixes of it. Return False if nothing is stored."""
        head = _head(tokens, facts)
        size = len(head) + sum(facts.parts) + _CRC.size
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(self._folder), self._changing:
            self._refresh()
            if not self._has_place(facts) or not self._free_space(size):
                return False
            name = f"{secrets.token_hex(16)}.cache"
            handle, temporary = tempfile.mkstemp(dir=self._folder, prefix=f"{name}.part")
        try:
            with os.fdopen(handle, "wb") as file:
                os.ftruncate(handle, size)  # reserve all bytes, because other processes count them
                write_text(file, head, parts)
            with suppress(FileNotFoundError):  # the file was deleted with its conversation meanwhile
                rename(temporary, self._folder / name)
            sync_folder(self._folder)
        except BaseException:
            _remove(Path(temporary))
            raise
        if not self._has_place(facts):  # the conversation was deleted during the write
            return not _remove(self._folder / name)
        with self._changing:
            self._refresh()
            for text in self._texts:
                is_begun = text.facts.key == facts.key and tokens.startswith(text.tokens)
                # A prefix of less than half the length stays, because other prompts may continue it.
                if is_begun and 2 * len(text.tokens) >= len(tokens) and text.path.name != name:
                    self._drop(text)
        return True

    def _refresh(self) -> None:
        """Read the heads of new files, and forget removed files. Raises OSError."""
        here = {entry.name: entry for entry in _files(self._folder)}
        known = {name: text for name, text in self._known.items() if name in here}
        for name, entry in here.items():
            if name not in known and not _temporary(name):
                known[name] = _read(Path(entry.path))
        self._known = known
        self._texts = sorted(filter(None, known.values()), key=lambda text: (text.facts.key, text.tokens))

    def _free_space(self, size: int) -> bool:
        files = _stats(self._folder)
        now = time.time()
        used = {n: stat.st_mtime if stat.st_mtime < now + AHEAD_SECONDS else 0.0 for n, stat in files.items()}
        for name in [name for name in files if _temporary(name) and used[name] < now - _DEAD_SECONDS]:
            if _remove(self._folder / name):
                del files[name], used[name]
        taken = sum(stat.st_size for stat in files.values())
        most = min(self._budget, taken + shutil.disk_usage(self._folder).free - LEFT_FREE)
        if size > most and size:
            return False
        here = (text for text in self._texts if text.path.name in used)
        for text in sorted(here, key=lambda text: used[text.path.name]):
            if taken + size > most:
                taken -= text.bytes if self._drop(text) else 0
        return taken + size <= most

    def _drop(self, text: Stored) -> bool:
        self._texts = [other for other in self._texts if other is not text]
        return _remove(text.path)


def usage(folder: Path) -> tuple[int, int]:
    files = _stats(folder)
    return len(files), sum(stat.st_size for stat in files.values())


def empty(folder: Path) -> list[Path]:
    paths = [Path(entry.path) for entry in _files(folder)]
    for path in paths:
        path.unlink(missing_ok=True)
    return paths


def forget_conversation(folder: Path, name: str) -> None:
    """Remove the prompt caches of a conversation, and all half-written files. Raises OSError."""
    for entry in _files(folder):
        text = None if _temporary(entry.name) else _read(Path(entry.path))
        if _temporary(entry.name) or (text and text.facts.conversation == name):
            Path(entry.path).unlink(missing_ok=True)


def why_not_trusted(folder: Path) -> str:
    """Return why other users may have written into the folder; "" if the folder is private or missing."""
    if sys.platform == "win32" or not folder.is_dir():
        return ""
    found = folder.stat()
    if found.st_uid != os.geteuid():
        return "the folder is another user's"
    return "other users may write there" if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


def _files(folder: Path) -> list[os.DirEntry[str]]:
    """Return the finished and half-written prompt caches in a folder, without links."""
    try:
        with os.scandir(folder) as entries:
            return [e for e in entries if _NAME.fullmatch(e.name) and e.is_file(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _stats(folder: Path) -> dict[str, os.stat_result]:
    stats = {}
    for entry in _files(folder):
        with suppress(FileNotFoundError):
            stats[entry.name] = entry.stat(follow_symlinks=False)
    return stats


def _temporary(name: str) -> bool:
    return not name.endswith(".cache")


def _read(path: Path) -> Stored | None:
    try:
        with _opened(path) as file:
            return _read_head(file, path)[0]
    except OSError:
        return None
    except ValueError:
        _remove(path)
        return None


def disk_of(path: Path) -> int:
    return next((above.stat().st_dev for above in (path, *path.parents) if above.exists()), 0)


def _shared(one: bytes, other: bytes) -> int:
    import numpy as np

    most = min(len(one), len(other))
    first, second = (np.frombuffer(each, dtype=np.uint32, count=most // 4) for each in (one, other))
    return most // 4 if one[:most] == other[:most] else int(np.argmax(first != second))


_disk = ThreadPoolExecutor(1, "caches")
_waiting: set[Future[object]] = set()


@after_fork
def _forget_parent() -> None:
    global _disk
    _disk = ThreadPoolExecutor(1, "caches")
    _waiting.clear()


def later(work: Callable[[], object]) -> None:
    """Run `work` in the writing thread, after earlier writes; while Python exits, run `work` at once."""
    try:
        write = _disk.submit(work)
    except RuntimeError:
        work()
        return
    _waiting.add(write)
    write.add_done_callback(_waiting.discard)


def writing() -> bool:
    return bool(_waiting)


def finish(seconds: float = 30.0) -> None:
    wait(_waiting.copy(), seconds)
