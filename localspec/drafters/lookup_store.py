"""Earlier replies of a target, kept on disk when the user asks for it: written once, drafted for free.

The file holds token ids, not text, but they are as readable as the text to anyone with the model: it is
created for its owner only (mode 0600 in a folder of mode 0700). Windows has no such modes; there the user's
profile folder, which holds the data folder, is closed to other users by its inherited access list.
"""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from localspec.drafters.lookup import FixedIndex
from localspec.files import set_aside, write_atomically
from localspec.locks import locked

BETWEEN = -1  # stands between two replies, so that no match runs across
MOST_TOKENS = 500_000  # 2 MB; the oldest half goes when it is full
TOKEN = np.dtype("<i4")

log = logging.getLogger(__name__)


class ReplyStore:
    """The replies of one target; `path` names the file."""

    def __init__(self, path: Path, *, most: int = MOST_TOKENS) -> None:
        self._path = path
        self._most = most

    def index(self, vocabulary: int) -> FixedIndex:
        """What is stored, ready to be searched; empty where the file cannot be read or holds something else."""
        return FixedIndex(self._read(vocabulary).astype(np.int32))

    def add(self, reply: Sequence[int]) -> None:
        """Append a finished reply. OSError when the file cannot be written."""
        tokens = np.array([*reply, BETWEEN], dtype=TOKEN)
        with locked(self._path.parent):
            with open(self._path, "ab", opener=for_owner) as file:
                cut_to_whole_tokens(file)
                file.write(tokens.tobytes())
                full = file.tell() > self._most * TOKEN.itemsize
            if full:
                self._drop_oldest()

    def forget(self) -> None:
        """Delete everything that is stored."""
        self._path.unlink(missing_ok=True)

    def _read(self, vocabulary: int) -> np.ndarray:
        """The stored tokens; a file of other numbers is set aside, so that the next reply starts afresh."""
        try:
            content = self._path.read_bytes()
            stored = whole_tokens(content)
            if not len(stored) or (stored.min() >= BETWEEN and stored.max() < vocabulary):
                return stored
            with locked(self._path.parent):
                if self._path.read_bytes() == content:  # else another process has set it aside
                    set_aside(self._path)
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("earlier replies in %s cannot be read: %s", self._path, error.strerror or error)
        return np.empty(0, dtype=TOKEN)

    def _drop_oldest(self) -> None:
        """Keep whole replies from the newer half; a crash leaves the old file."""
        stored = whole_tokens(self._path.read_bytes())
        ends = np.flatnonzero(stored == BETWEEN)
        cut = ends[np.searchsorted(ends, len(stored) // 2) :]
        kept = stored[cut[0] + 1 :] if len(cut) else stored[:0]
        write_atomically(self._path, kept.tobytes())


def whole_tokens(content: bytes) -> np.ndarray:
    """The tokens in a file's content, int32 [n]; a last one that was only half written is left out."""
    return np.frombuffer(content, dtype=TOKEN, count=len(content) // TOKEN.itemsize)


def cut_to_whole_tokens(file: BinaryIO) -> None:
    """Drop a token that was only half written, or all that follow it would be read in wrong pieces."""
    if torn := file.tell() % TOKEN.itemsize:
        file.truncate(file.tell() - torn)


def for_owner(path: str, flags: int) -> int:
    """Open a file that, where it is new, only its owner can read."""
    return os.open(path, flags, 0o600)
