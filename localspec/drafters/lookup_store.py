"""Earlier replies of a target, kept on disk when the user asks for it: written once, drafted for free.

The file holds token ids, not text, but they are as readable as the text to anyone with the model: it is
created for its owner only (mode 0600 in a folder of mode 0700). Windows has no such modes; there the user's
profile folder, which holds the data folder, is closed to other users by its inherited access list.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from localspec.drafters.lookup_index import FixedIndex

BETWEEN = -1  # stands between two replies, so that no match runs across
MOST_TOKENS = 500_000  # 2 MB; the oldest half goes when it is full
TOKEN = np.dtype("<i4")


class ReplyStore:
    """The replies of one target; `path` names the file."""

    def __init__(self, path: Path, *, most: int = MOST_TOKENS) -> None:
        self._path = path
        self._most = most

    def index(self, vocabulary: int) -> FixedIndex:
        """What is stored, ready to be searched; a damaged file is set aside and counts as empty."""
        return FixedIndex(self._read(vocabulary).astype(np.int32))

    def add(self, reply: Sequence[int]) -> None:
        """Append a finished reply. OSError when the file cannot be written."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        tokens = np.array([*reply, BETWEEN], dtype=TOKEN)
        with open(self._path, "ab", opener=for_owner) as file:
            file.write(tokens.tobytes())
            full = file.tell() > self._most * TOKEN.itemsize
        if full:
            self._drop_oldest()

    def forget(self) -> None:
        """Delete everything that is stored."""
        self._path.unlink(missing_ok=True)

    def _read(self, vocabulary: int) -> np.ndarray:
        try:
            stored = np.frombuffer(self._path.read_bytes(), dtype=TOKEN)
        except FileNotFoundError:
            return np.empty(0, dtype=TOKEN)
        except ValueError:  # not a whole number of tokens
            return self._set_aside()
        if len(stored) and (stored.min() < BETWEEN or stored.max() >= vocabulary):
            return self._set_aside()
        return stored

    def _set_aside(self) -> np.ndarray:
        os.replace(self._path, self._path.with_suffix(".damaged"))
        return np.empty(0, dtype=TOKEN)

    def _drop_oldest(self) -> None:
        """Keep whole replies from the newer half; a crash leaves the old file."""
        stored = np.frombuffer(self._path.read_bytes(), dtype=TOKEN)
        ends = np.flatnonzero(stored == BETWEEN)
        cut = ends[np.searchsorted(ends, len(stored) // 2) :]
        kept = stored[cut[0] + 1 :] if len(cut) else stored[:0]
        unfinished = self._path.with_suffix(f".{os.getpid()}.part")
        with open(unfinished, "wb", opener=for_owner) as file:
            file.write(kept.tobytes())
        os.replace(unfinished, self._path)


def for_owner(path: str, flags: int) -> int:
    """Open a file that, where it is new, only its owner can read."""
    return os.open(path, flags, 0o600)
