"""The folder of stored texts: its budget, what makes room, and the stored text that begins most like another."""

import heapq
import os
import re
import secrets
import shutil
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

import numpy as np

from localspec.caches import state_file
from localspec.caches.state_file import Facts, Stored
from localspec.files import AHEAD_SECONDS, locked, sync_folder

_NAME = re.compile(r"[0-9a-f]{32}\.cache(\.part\w+)?")
_DEAD_SECONDS = 120.0  # a file that grows no more: its writer is gone
_TICK = 1_000_000_000  # ns: two changes in one tick of a file system have one time
LEFT_FREE = 5_000_000_000  # bytes of the disk


class Store:
    """Several threads and processes may use one folder."""

    def __init__(self, folder: Path, budget: int) -> None:
        """At most `budget` bytes."""
        self._folder = folder
        self._budget = budget
        self._texts: list[Stored] = []  # by key, then by tokens: those that begin alike are neighbours
        self._known: dict[str, Stored | None] = {}  # by name; None: unreadable, and not ours to remove
        self._seen = 0  # the folder's time when it was read
        self._changing = threading.Lock()

    def clean(self) -> None:
        """Hold the budget, and remove what no program can use any more; the first write tells of a bad folder."""
        if self._folder.is_dir():
            with suppress(OSError), locked(self._folder), self._changing:
                self._refresh(again=True)
                for text in list(self._texts):
                    if not os.path.exists(text.facts.model):
                        self._drop(text)
                self._make_room(0)

    def nearest(self, key: str, tokens: bytes) -> Iterator[tuple[Stored, int]]:
        """The texts of a key that begin like these tokens, and how many they share: the most first."""
        with self._changing:
            with suppress(OSError):
                self._refresh()
            texts = self._texts

        def alike(indexes: range) -> Iterator[tuple[Stored, int]]:
            of_key = takewhile(lambda text: text.facts.key == key, (texts[index] for index in indexes))
            return takewhile(
                lambda each: each[1] > 0, ((text, _shared(text.tokens, tokens)) for text in of_key)
            )

        at = bisect_left(texts, (key, tokens), key=_order)
        sides = alike(range(at, len(texts))), alike(range(at - 1, -1, -1))  # neighbours share most
        return heapq.merge(*sides, key=lambda each: -each[1])

    def read(self, stored: Stored) -> list[np.ndarray] | None:
        """The parts of a text, which counts as used now; None if they cannot be read.

        A damaged file is removed.
        """
        try:
            parts = state_file.read_parts(stored)
            os.utime(stored.path)
        except (OSError, MemoryError):  # removed meanwhile, or a disk that fails
            return None
        except ValueError:
            state_file.forget(stored.path)
            return None
        return parts

    def write(self, tokens: bytes, facts: Facts, parts: Sequence[np.ndarray]) -> bool:
        """Store a text in place of its own beginnings; False where it has no room. Raises OSError."""
        size = state_file.size_of(tokens, facts)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(self._folder), self._changing:
            self._refresh()
            if not self._make_room(size):
                return False
            name = f"{secrets.token_hex(16)}.cache"
            handle, temporary = tempfile.mkstemp(dir=self._folder, prefix=f"{name}.part")
        try:
            with os.fdopen(handle, "wb") as file:
                _reserve(handle, size)
                state_file.write(file, tokens, facts, parts)
            os.replace(temporary, self._folder / name)
            sync_folder(self._folder)
        except BaseException:
            state_file.forget(Path(temporary))
            raise
        with self._changing:
            self._refresh()
            for text in self._texts:
                is_begun = text.facts.key == facts.key and tokens.startswith(text.tokens)
                # A shorter beginning still serves other continuations.
                if is_begun and 2 * len(text.tokens) >= len(tokens) and text.path.name != name:
                    self._drop(text)
        return True

    def _refresh(self, *, again: bool = False) -> None:
        """Read the heads of new files, and forget those that are gone. Raises OSError."""
        try:
            seen = self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            seen = 0
        if seen == self._seen and not again:
            return
        self._seen = seen if time.time_ns() - seen > _TICK else 0
        here = {entry.name: entry for entry in _files(self._folder)}
        known = {name: text for name, text in self._known.items() if name in here}
        for name, entry in here.items():
            if name not in known and not _temporary(name):
                known[name] = _read(Path(entry.path))
        self._known = known
        self._texts = sorted(filter(None, known.values()), key=_order)

    def _make_room(self, size: int) -> bool:
        """Remove texts until this many bytes fit in; False if they cannot."""
        files = _stats(self._folder)
        now = time.time()
        used = {n: stat.st_mtime if stat.st_mtime < now + AHEAD_SECONDS else 0.0 for n, stat in files.items()}
        for name in [name for name in files if _temporary(name) and used[name] < now - _DEAD_SECONDS]:
            if state_file.forget(self._folder / name):
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
        """Remove a text; False if the system does not allow it."""
        self._texts = [other for other in self._texts if other is not text]
        return state_file.forget(text.path)


def usage(folder: Path) -> tuple[int, int]:
    """The number of stored texts, and their bytes."""
    files = _stats(folder)
    return len(files), sum(stat.st_size for stat in files.values())


def empty(folder: Path) -> list[Path]:
    """Remove every stored text; returns their paths. Raises OSError."""
    paths = [Path(entry.path) for entry in _files(folder)]
    for path in paths:
        path.unlink(missing_ok=True)
    return paths


def _files(folder: Path) -> list[os.DirEntry[str]]:
    """What has the name of a stored text, whole or half written, and is no link."""
    try:
        with os.scandir(folder) as entries:
            return [e for e in entries if _NAME.fullmatch(e.name) and e.is_file(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _stats(folder: Path) -> dict[str, os.stat_result]:
    """Of these files by name, without those that another writer puts in place meanwhile."""
    found = {}
    for entry in _files(folder):
        with suppress(FileNotFoundError):
            found[entry.name] = entry.stat(follow_symlinks=False)
    return found


def _temporary(name: str) -> bool:
    return not name.endswith(".cache")


def _read(path: Path) -> Stored | None:
    """The text of a file, which is removed if it is damaged."""
    try:
        return state_file.read_head(path)
    except OSError:
        return None
    except ValueError:
        state_file.forget(path)
        return None


def _reserve(handle: int, size: int) -> None:
    """Take the room on the disk at once: other processes count it, and a full disk says so. Raises OSError."""
    with suppress(AttributeError):  # not everywhere
        os.posix_fallocate(handle, 0, size)
        return
    os.ftruncate(handle, size)


def _order(text: Stored) -> tuple[str, bytes]:
    return text.facts.key, text.tokens


def _shared(one: bytes, other: bytes) -> int:
    """How many tokens of their beginnings two texts share."""
    most = min(len(one), len(other))
    first, second = (np.frombuffer(each, dtype=np.uint32, count=most // 4) for each in (one, other))
    return most // 4 if one[:most] == other[:most] else int(np.argmax(first != second))
