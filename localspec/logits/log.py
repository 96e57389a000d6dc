"""The log of a target's replies, where the user asks for one: rows are copied at once, and read by another thread."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from math import inf
from pathlib import Path
from threading import Semaphore

import numpy as np

from localspec.logits.texts import Text, add_texts, likely_in, paths_in
from localspec.passes import Candidates, Row
from localspec.stopping import Closing

PROMPT = 256  # tokens: what a text has of its prompt, from the end
PART = 256  # tokens: what a text has of a reply, about; the next text goes on from there
BUDGET_BYTES = 512 * 2**20  # of one target's files
WAITING = 64  # rows that were copied and not read; no cycle emits as many tokens

log = logging.getLogger(__name__)


class LogitLog(Closing):
    """The log of one target: one file for each text, the oldest deleted where there are too many."""

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
        """Add a text; in the log's thread. A failure costs the text, and is told once."""
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
    """A reply while it is written. Where its rows come faster than they are read, the rest of it is left out."""

    def __init__(self, log: LogitLog, prompt: Sequence[int]) -> None:
        self._log = log
        self._whole = True
        # What follows is the log's thread's alone.
        self._before = list(prompt[-PROMPT:])
        self._tokens: list[int] = []  # that are in no file yet
        self._likely: list[tuple[np.ndarray, np.ndarray]] = []
        self._written = 0  # tokens

    def see(self, rows: Sequence[Row], tokens: Sequence[int]) -> None:
        """What a cycle emitted, and where each token was taken from; the rows are copied."""
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
        """The reply has so many tokens: its last cycle may have been cut."""
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
