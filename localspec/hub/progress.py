"""What a pull tells while it works, and the arithmetic of rates behind it."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from localspec.gguf.header import Header

_WINDOW_SECONDS = 5.0  # over which the rate is taken
_INTERVAL_SECONDS = 0.1  # between two reports


class PullStage(StrEnum):
    WAITING = "waiting"  # another process is fetching the same file
    HASHING = "hashing"  # bytes that are here already
    FETCHING = "fetching"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a pull is."""

    stage: PullStage
    file: str
    done: int  # bytes of all files of the pair that have to be fetched
    total: int
    bytes_per_second: float
    seconds_left: float | None  # None: not known yet


@dataclass(frozen=True, slots=True)
class Proved:
    """Both headers are here and fit each other; nearly all of the bytes are still to come."""

    target: Header
    draft: Header | None


@dataclass(frozen=True, slots=True)
class FileReady:
    """A file is here and every byte of it has been hashed."""

    file: str
    path: Path
    fetched: int  # bytes that came over the network just now; 0: it was here already


@dataclass(frozen=True, slots=True)
class Note:
    """One sentence that the user should see."""

    text: str


PullEvent = Progress | Proved | FileReady | Note
OnProgress = Callable[[PullEvent], None]


class TransferRate:
    """Counts bytes of one pull and reports them, a few times a second."""

    def __init__(self, report: OnProgress, total: int) -> None:
        self._report, self._total = report, total
        self._done: dict[str, int] = {}
        self._recent: deque[tuple[float, int]] = deque()  # when, bytes fetched since the start
        self._fetched = 0
        self._last = -1.0
        self._counting = threading.Lock()  # files come side by side

    def add(self, stage: PullStage, file: str, count: int, file_total: int) -> None:
        """`count` more bytes of a file have been fetched or hashed; 0 only reports."""
        with self._counting:
            self._add(stage, file, count, file_total)

    def _add(self, stage: PullStage, file: str, count: int, file_total: int) -> None:
        self._done[file] = self._done.get(file, 0) + count
        now = time.monotonic()
        if stage is PullStage.FETCHING:
            self._fetched += count
            self._recent.append((now, self._fetched))
            while now - self._recent[0][0] > _WINDOW_SECONDS:
                self._recent.popleft()
        finished = self._done[file] >= file_total
        if finished or now - self._last >= _INTERVAL_SECONDS:
            self._last = now
            self._report(self._progress(stage, file))

    def forget(self, file: str) -> None:
        """What was there of a file is gone."""
        with self._counting:
            self._done[file] = 0

    def _progress(self, stage: PullStage, file: str) -> Progress:
        done, rate = sum(self._done.values()), self._rate()
        left = (self._total - done) / rate if rate else None
        return Progress(stage, file, done, self._total, rate, left)

    def _rate(self) -> float:
        if len(self._recent) < 2:
            return 0.0
        (began, before), (now, after) = self._recent[0], self._recent[-1]
        return (after - before) / (now - began) if now > began else 0.0
