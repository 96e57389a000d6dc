"""Texts of a target, with its likeliest tokens at every place, in files."""

import io
import os
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import time_ns
from zlib import crc32

import numpy as np

from localspec.errors import BadSetting
from localspec.files import write_atomically
from localspec.sampler.chain import largest

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
    for path in sorted(folder.glob("[0-9]*.npz")):
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
