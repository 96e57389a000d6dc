"""Texts of a target, with its likeliest tokens at every place, in files.

`LogitLog` writes them during replies if the user asks for it: the reply's thread copies rows, another thread reads
them.
"""

import io
import logging
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from math import inf
from pathlib import Path
from threading import Semaphore
from time import time_ns
from zlib import crc32

import numpy as np

from localspec.errors import BadSetting
from localspec.files import write_atomically
from localspec.health.stopping import Closing
from localspec.sampler.chain import largest
from localspec.sampler.passes import Candidates, Row

KEPT = 64  # likeliest tokens of every row
HELD_OUT = 16  # one prompt in 16 is never learned from
_COLUMNS = ("prompt", "tokens", "likely", "log_shares")
_serials = count()  # of files, where the clock ticks rarely


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and the target's answer; row i of `likely` is where token i was taken from."""

    prompt: np.ndarray  # int32 [p]
    tokens: np.ndarray  # int32 [n]
    likely: np.ndarray  # int32 [n, KEPT]
    log_shares: np.ndarray  # float16 [n, KEPT]: logarithms of their probabilities at temperature 1

    @property
    def length(self) -> int:
        """Number of tokens, without the last one of the answer."""
        return len(self.prompt) + len(self.tokens) - 1


def is_held_out(prompt: Sequence[int] | np.ndarray) -> bool:
    """Whether a prompt is held out; the same tokens always give the same answer."""
    return crc32(np.asarray(prompt, "<i4").tobytes()) % HELD_OUT == 0


def likely_in(row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The likeliest tokens of a row in descending order, and the logarithms of their probabilities."""
    ids, logits = largest(row, KEPT)
    order = np.argsort(-logits, kind="stable")
    total = np.exp(row - np.float32(logits.max())).sum(dtype=np.float64)
    log_shares = logits[order] - logits.max() - np.log(total)
    return ids[order].astype(np.int32), log_shares.astype(np.float16)


def add_texts(folder: Path, texts: Sequence[Text]) -> Path:
    """Write one more file; a crash leaves all of it or nothing. Raises OSError."""
    columns = {name: np.concatenate([getattr(text, name) for text in texts]) for name in _COLUMNS}
    columns["lengths"] = np.array([(len(text.prompt), len(text.tokens)) for text in texts], np.int32)
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **columns)
    path = folder / f"{time_ns()}-{next(_serials):06}-{os.getpid()}.npz"
    write_atomically(path, content.getvalue())
    return path


def texts_in(folder: Path) -> Iterator[Text]:
    """All texts of a folder, in the order in which they were written. Raises BadSetting if a file is damaged."""
    for path in paths_in(folder):
        try:
            with np.load(path) as part:
                columns = {name: part[name] for name in (*_COLUMNS, "lengths")}
        except FileNotFoundError:
            continue  # another process deleted it
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise BadSetting(
                f"{path} cannot be read: {error}", hint="delete it; the other files are whole"
            ) from None
        ends = columns["lengths"].cumsum(axis=0)
        for (prompt, tokens), (prompt_end, end) in zip(columns["lengths"], ends, strict=True):
            rows = slice(end - tokens, end)
            yield Text(
                columns["prompt"][prompt_end - prompt : prompt_end],
                *(columns[name][rows] for name in ("tokens", "likely", "log_shares")),
            )


def paths_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]*.npz"))


PROMPT = 256  # newest prompt tokens in a text
PART = 256  # tokens: the length of a stored part of a reply, about
BUDGET_BYTES = 512 * 2**20  # of one target's files
WAITING = 64  # rows that were copied and not read; no cycle emits as many tokens

log = logging.getLogger(__name__)


class LogitLog(Closing):
    """The log of one target: one file for each text; the oldest go first."""

    def __init__(self, folder: Path) -> None:
        self.room = Semaphore(WAITING)
        self._folder = folder
        self._bytes = inf  # until they are counted
        self._thread = ThreadPoolExecutor(1, "logit log")  # the interpreter ends after it
        self._failed = False

    def begin(self, prompt: Sequence[int]) -> "LoggedReply":
        return LoggedReply(self, prompt)

    def later(self, work: Callable[[], None]) -> None:
        """Have it done by the log's thread."""
        with suppress(RuntimeError):  # it is closed
            self._thread.submit(work)

    def write(self, text: Text) -> None:
        """Add a text; in the log's thread. A failure costs the text, and is reported once."""
        try:
            self._bytes += add_texts(self._folder, [text]).stat().st_size
            if self._bytes > BUDGET_BYTES:
                with suppress(FileNotFoundError):  # another process deletes them as well
                    self._drop_oldest()
        except OSError as error:
            if not self._failed:
                log.warning("replies cannot be logged in %s: %s", self._folder, error.strerror or error)
            self._failed = True

    def close(self) -> None:
        """Wait until everything is written."""
        self._thread.shutdown()

    def _drop_oldest(self) -> None:
        """A tenth at once, so that files are counted rarely."""
        sizes = {path: path.stat().st_size for path in paths_in(self._folder)}
        self._bytes = sum(sizes.values())
        for path, size in sizes.items():
            if self._bytes <= 0.9 * BUDGET_BYTES:
                break
            path.unlink(missing_ok=True)
            self._bytes -= size


class LoggedReply:
    """A reply while it is written. If rows come faster than the thread reads them, the rest is left out."""

    def __init__(self, log: LogitLog, prompt: Sequence[int]) -> None:
        self._log = log
        self._whole = True
        # What follows is the log's thread's alone.
        self._before = list(prompt[-PROMPT:])
        self._tokens: list[int] = []  # that are in no file yet
        self._likely: list[tuple[np.ndarray, np.ndarray]] = []
        self._written = 0  # tokens

    def see(self, rows: Sequence[Row], tokens: Sequence[int]) -> None:
        """Add a cycle's tokens and copies of their rows."""
        copies = list[np.ndarray]()
        for row in rows[: len(tokens)]:
            assert not isinstance(row, Candidates), "a target's rows are whole"
            self._whole = self._whole and self._log.room.acquire(blocking=False)
            if not self._whole:
                break
            copies.append(row.copy())
        if copies:
            self._log.later(lambda: self._add(copies, tokens))

    def end(self, count: int) -> None:
        """The reply has this number of tokens: its last cycle may have been cut."""
        self._log.later(lambda: self._end(count))

    def _add(self, rows: Sequence[np.ndarray], tokens: Sequence[int]) -> None:
        if len(self._tokens) >= PART:  # before the newest cycle, which may be cut
            self._write()
        for row, token in zip(rows, tokens, strict=False):
            self._likely.append(likely_in(row))
            self._tokens.append(token)
            self._log.room.release()

    def _end(self, count: int) -> None:
        del self._tokens[count - self._written :]
        if self._tokens:
            self._write()

    def _write(self) -> None:
        likely, log_shares = map(np.stack, zip(*self._likely[: len(self._tokens)], strict=True))
        prompt, tokens = (np.array(part, np.int32) for part in (self._before, self._tokens))
        self._log.write(Text(prompt, tokens, likely, log_shares))
        self._before = [*self._before, *self._tokens][-PROMPT:]
        self._written += len(self._tokens)
        self._tokens, self._likely = [], []
