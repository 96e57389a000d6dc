"""The file of one stored text: whole and unchanged, or not used.

A head (format, key, tokens, lengths of the parts) with a checksum of its own, so that texts are found without reading
the parts; then the parts, and a checksum over everything before it.
"""

import os
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from localspec.files import loads_as

FORMAT = b"localspec cache\x02"
_HEAD = struct.Struct("<16sII")  # format, bytes of the facts, number of tokens
_CRC = struct.Struct("<I")  # damage comes from disks: who may write into the folder has the user's rights
_MOST_FACTS = 1 << 16  # bytes


class Damaged(ValueError):
    """A file is cut, changed, or of another format."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a file says of its state beside the tokens."""

    key: str  # of all that the state depends on
    model: str  # its file: without it the state is of no use
    steps_back: bool  # whether the cache can be cut at any token
    marks: tuple[int, ...]  # lengths, in tokens, of the checkpoints in the parts behind the first
    parts: tuple[int, ...]  # bytes: the whole state, its checkpoints, and what a head keeps
    token_seconds: float  # of reading a token of it without the file


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored text: `tokens` are big-endian uint32, which sort as the texts do."""

    path: Path
    facts: Facts
    tokens: bytes
    bytes: int

    @property
    def length(self) -> int:
        return len(self.tokens) // 4

    def usable(self, shared: int) -> int:
        """How many of the first `shared` tokens a cache has after restoring it."""
        if self.facts.steps_back or shared == self.length:
            return shared
        return max((mark for mark in self.facts.marks if mark <= shared), default=0)


def packed(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, dtype=">u4").tobytes()


def unpacked(tokens: bytes) -> list[int]:
    return [int(token) for token in np.frombuffer(tokens, dtype=">u4")]


def size_of(tokens: bytes, facts: Facts) -> int:
    """Bytes of the whole file."""
    return len(_head(tokens, facts)) + sum(facts.parts) + _CRC.size


def write(file: BinaryIO, tokens: bytes, facts: Facts, parts: Sequence[np.ndarray]) -> None:
    """Write everything, and return when it is on the disk. Raises OSError."""
    checksum = 0
    for piece in (memoryview(_head(tokens, facts)), *(part.data for part in parts)):
        checksum = zlib.crc32(piece, checksum)
        file.write(piece)
    file.write(_CRC.pack(checksum))
    file.flush()
    os.fsync(file.fileno())


def read_head(path: Path) -> Stored:
    """The text of a file, its parts unread. Raises Damaged, OSError."""
    with _opened(path) as file:
        return _read_head(file, path)[0]


def read_parts(stored: Stored) -> list[np.ndarray]:
    """The parts of a file whose every byte is as it was written. Raises Damaged, OSError."""
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
    told = msgspec.json.encode(facts)
    head = _HEAD.pack(FORMAT, len(told), len(tokens) // 4) + told + tokens
    return head + _CRC.pack(zlib.crc32(head))


def _read_head(file: BinaryIO, path: Path) -> tuple[Stored, bytes]:
    """The head, and its bytes."""
    size, first = os.fstat(file.fileno()).st_size, file.read(_HEAD.size)
    if len(first) < _HEAD.size:
        raise Damaged("a part of a file")
    mark, told, count = _HEAD.unpack(first)
    if mark != FORMAT or told > _MOST_FACTS or 4 * count > size:
        raise Damaged("another format")
    rest = file.read(told + 4 * count + _CRC.size)
    head = first + rest
    if len(rest) != told + 4 * count + _CRC.size or _CRC.unpack(head[-4:])[0] != zlib.crc32(head[:-4]):
        raise Damaged("a changed head")
    facts = loads_as(Facts, rest[:told].decode())
    if size != len(head) + sum(facts.parts) + _CRC.size:
        raise Damaged("a part of a file")
    return Stored(path, facts, rest[told:-4], size), head


def _opened(path: Path) -> BufferedReader:
    """The file itself, never one that a link leads to. Raises OSError."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, flags), "rb")


def forget(path: Path) -> bool:
    """Remove a file of the store; False if the system does not allow it."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
        return True
    return False
