"""Recover a damaged file of conversations, page by page, because SQLite ends a table at its first bad page.

First the damaged file is renamed. Then a new file is built beside it, and gets the old name when it is complete. So a
recovery can be resumed after each step. Source of the format: https://sqlite.org/fileformat2.html.
"""

import json
import logging
import mmap
import os
import sqlite3
import struct
from collections.abc import Collection, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from localspec.files import rename, rename_damaged, sync_folder

_TABLE, _INDEX, _INDEX_ABOVE, _TABLE_ABOVE = 13, 10, 2, 5  # kinds of pages: leaves, and inner pages
_HEADER: Final = b"SQLite format 3\0"
_INTEGERS: Final = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}  # bytes of an integer by its type
_PROMPT_COLUMNS: Final = 2  # columns of a typed prompt; a conversation has more
_LIKE: Final = 20  # a cut prompt counts as the deleted one if their first characters, this many, are equal
_LONG: Final = 20  # a text of this many bytes is in no other conversation by chance

log = logging.getLogger(__name__)

Buffer = bytes | mmap.mmap


@dataclass(frozen=True, slots=True)
class Cell:
    """One record of a page, and where its bytes are in the file."""

    kind: int  # the kind of its page
    rowid: int
    values: tuple[Any, ...]  # fewer than `columns` if the record is cut
    columns: int
    is_whole: bool
    parts: tuple[tuple[int, int], ...]  # begin and end of each part in the file


def in_progress(path: Path) -> bool:
    """Return whether a recovery of the file at `path` has begun and not ended."""
    return any(os.path.lexists(f"{path}{ending}") for ending in (".recovering", ".recovering-wal"))


def recover(path: Path, schema: str, tables: dict[str, str]) -> None:
    """Recover the file at `path`, or end an interrupted recovery of it. Raises OSError, sqlite3.Error."""
    source, new = Path(f"{path}.recovering"), Path(f"{path}.new")
    wal = Path(f"{source}-wal")
    if not source.exists():
        if not wal.exists():
            with suppress(FileNotFoundError):
                rename(f"{path}-wal", wal)
        Path(f"{path}-shm").unlink(missing_ok=True)
        rename(path, source)
        sync_folder(path.parent)
    if path.exists():  # the new file is complete, so only the old one is left to be put away
        _put_away(source, path, unread=1)
        return
    if wal.exists():
        _fold(source, wal)
    found, unread = _build(source, new, schema, tables)
    rename(new, path)
    sync_folder(path.parent)
    kept = _put_away(source, path, unread)
    left_out = f", {_counted(unread, 'part')} could not be read" if unread else ""
    log.warning("%s was damaged%s; recovered: %s%s", path, kept, _counted(found, "conversation"), left_out)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _put_away(source: Path, path: Path, unread: int) -> str:
    """Keep the damaged file if some of it could not be read; if all was taken over, remove it."""
    if not unread:
        source.unlink()
        return ""
    return f" and is kept as {rename_damaged(source, path.name).name} until you remove it"


def _build(source: Path, new: Path, schema: str, tables: dict[str, str]) -> tuple[int, int]:
    """Write the readable rows of `source` into a new file; return the numbers of conversations and of unread parts."""
    for ending in ("", "-journal", "-wal", "-shm"):
        Path(f"{new}{ending}").unlink(missing_ok=True)
    os.close(os.open(new, os.O_RDWR | os.O_CREAT, 0o600))
    by_columns = {len(columns.split(", ")): (table, columns) for table, columns in tables.items()}
    unread = 0
    with closing(sqlite3.connect(new)) as db:
        db.executescript(schema)
        with closing(Pages(source)) as pages, db:
            for cell in pages.cells():
                if cell.kind != _TABLE:
                    continue
                is_row = cell.columns in by_columns
                if not cell.is_whole or (is_row and not _is_readable(cell)):
                    unread += 1
                elif is_row:
                    table, columns = by_columns[cell.columns]
                    values = "?" + ", ?" * cell.columns
                    again = f"INSERT OR IGNORE INTO {table} (rowid, {columns}) VALUES ({values})"
                    db.execute(again, (cell.rowid, *cell.values))
            unread += len(pages.unknown())
        (conversations,) = db.execute("SELECT count(*) FROM conversations").fetchone()
        with suppress(sqlite3.OperationalError):
            db.execute("PRAGMA journal_mode = WAL").fetchone()
    with open(new, "r+b") as file:
        os.fsync(file.fileno())
    return conversations, unread


def _is_readable(cell: Cell) -> bool:
    """Return whether a row is whole: where a part was overwritten with zeros, its JSON cannot be parsed."""
    if cell.columns == _PROMPT_COLUMNS:
        return True
    try:
        return isinstance(json.loads(cell.values[-1]), dict)
    except (TypeError, ValueError, RecursionError):
        return False


def blank(kept: Path, names: Collection[str], texts: Collection[str]) -> None:
    """Overwrite deleted conversations and prompts in a kept file with zeros. Raises OSError.

    Whole records are overwritten. In pages whose records cannot be read, only `names` and long `texts` are
    overwritten, where they are in one piece: a short text may belong to another conversation.
    """
    with closing(Pages(kept, writable=True)) as pages:
        for cell in list(pages.cells()):
            named = any(isinstance(value, str) and value in names for value in cell.values)
            if named or (cell.columns == _PROMPT_COLUMNS and _is_one_of(cell, texts)):
                for begin, end in cell.parts:
                    pages.blank(begin, end)
        lost = [((page - 1) * pages.size, page * pages.size) for page in sorted(pages.unknown())]
        long = (text for text in texts if len(text.encode().strip(b"\0")) >= _LONG)
        for word in (text.encode() for text in (*names, *long)):
            for begin, end in lost:
                while (at := pages.data.find(word, begin, end + len(word))) >= 0:
                    pages.blank(at, at + len(word))


def _is_one_of(prompt: Cell, texts: Collection[str]) -> bool:
    """Return whether a typed prompt is one of the texts, or, if the prompt is cut, the beginning of one."""
    text = str(prompt.values[0]) if prompt.values else ""
    if prompt.is_whole:
        return text in texts
    return bool(text) and any(other.startswith(text[:_LIKE]) for other in texts)


class Pages:
    """The pages of a SQLite file, read one by one without the trees of its tables."""

    def __init__(self, path: Path, writable: bool = False) -> None:
        self._file = path.open("r+b" if writable else "rb")
        size = path.stat().st_size
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self.data: Buffer = mmap.mmap(self._file.fileno(), 0, access=access) if size else b""
        self.size = page_size(bytes(self.data[:100]))
        self.count = -(-size // self.size)
        self._used = set[int]()  # pages whose content is known

    def close(self) -> None:
        if isinstance(self.data, mmap.mmap):
            self.data.close()
        self._file.close()

    def blank(self, begin: int, end: int) -> None:
        assert not isinstance(self.data, bytes)
        self.data[begin:end] = bytes(end - begin)

    def unknown(self) -> set[int]:
        """Return the pages with unknown content: no cell and no list of free pages has them. Call `cells` first."""
        trunk, free = int.from_bytes(self.data[32:36], "big"), set[int]()
        while 0 < trunk <= self.count and trunk not in free:
            place = (trunk - 1) * self.size
            length = int.from_bytes(self.data[place + 4 : place + 8], "big")
            leaves = self.data[place + 8 : place + 8 + 4 * min(length, self.size // 4 - 2)]
            numbers = struct.iter_unpack(">I", leaves[: len(leaves) // 4 * 4])
            free |= {trunk, *(number for (number,) in numbers)}
            trunk = int.from_bytes(self.data[place : place + 4], "big")
        return {number for number in range(1, self.count + 1) if number not in self._used | free}

    def cells(self) -> Iterator[Cell]:
        for number in range(1, self.count + 1):
            begin = (number - 1) * self.size
            head = begin + 100 * (number == 1)
            page = self.data[begin : begin + self.size]
            kind = self.data[head] if head < len(self.data) else 0
            if kind not in (_TABLE, _INDEX, _INDEX_ABOVE, _TABLE_ABOVE):
                continue
            self._used.add(number)
            if kind == _TABLE_ABOVE:
                continue
            above = kind == _INDEX_ABOVE
            amount = int.from_bytes(self.data[head + 3 : head + 5], "big")
            first = head - begin + (12 if above else 8)
            for n in range(min(amount, self.size // 2)):
                at = int.from_bytes(page[first + 2 * n : first + 2 * n + 2], "big")
                if cell := self._cell(kind, begin, at + 4 * above):
                    yield cell

    def _cell(self, kind: int, begin: int, at: int) -> Cell | None:
        end_of_page = min(begin + self.size, len(self.data))
        try:
            length, place = _varint(self.data, begin + at, end_of_page)
            rowid, place = _varint(self.data, place, end_of_page) if kind == _TABLE else (0, place)
        except IndexError:
            return None
        most = self.size - 35 if kind == _TABLE else (self.size - 12) * 64 // 255 - 23
        least = (self.size - 12) * 32 // 255 - 23
        if not 0 < length <= len(self.data):
            return None
        local = length
        if length > most:
            local = least + (length - least) % (self.size - 4)
            local = local if local <= most else least
        parts, payload = [(place, min(place + local, end_of_page))], bytearray()
        if local < length:
            parts += self._chain(place + local, length - local)
        for first, end in parts:
            payload += self.data[first:end]
        values, columns = _record(bytes(payload))
        signed = rowid - (1 << 64) if rowid >= 1 << 63 else rowid
        whole = len(payload) == length and len(values) == columns
        return Cell(kind, signed, values, columns, whole, tuple(parts)) if columns else None

    def _chain(self, place: int, length: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of a record that do not fit into its page: they are in pages of their own."""
        number, seen = int.from_bytes(self.data[place : place + 4], "big"), set[int]()
        while length > 0 and 0 < number <= self.count and number not in seen:
            seen.add(number)
            begin = (number - 1) * self.size
            end = min(begin + 4 + min(length, self.size - 4), len(self.data))
            if begin + 4 >= end:
                return
            self._used.add(number)
            yield begin + 4, end
            length -= end - begin - 4
            number = int.from_bytes(self.data[begin : begin + 4], "big")


def page_size(header: bytes) -> int:
    """Return the size in a file's header, or SQLite's default if the header is damaged."""
    size = int.from_bytes(header[16:18], "big")
    size = 65_536 if size == 1 else size
    return size if header.startswith(_HEADER) and 512 <= size <= 65_536 and not size & (size - 1) else 4096


def _varint(data: Buffer, place: int, end: int) -> tuple[int, int]:
    """Return SQLite's integer of 1 to 9 bytes at `place`, and the place after it. Raises IndexError."""
    value = 0
    for n in range(9):
        if place >= end:
            raise IndexError(place)
        byte = data[place]
        place += 1
        if n == 8:
            return value << 8 | byte, place
        value = value << 7 | byte & 127
        if byte < 128:
            break
    return value, place


def _record(payload: bytes) -> tuple[tuple[Any, ...], int]:
    """Return those values of a record whose bytes are there, and the number of its columns; 0 if it is no record."""
    try:
        length, place = _varint(payload, 0, len(payload))
        types, end = [], length
        while place < end:
            kind, place = _varint(payload, place, len(payload))
            types.append(kind)
    except IndexError:
        return (), 0
    values: list[Any] = []
    part, size = b"", 0
    for kind in types:
        size = _INTEGERS.get(kind, 8 if kind == 7 else (kind - 12) // 2 if kind >= 12 else 0)
        part, place = payload[place : place + size], place + size
        if kind in (10, 11):
            return (), 0
        if kind >= 12:
            values.append(part.decode("utf-8", "replace") if kind % 2 else part)
        elif len(part) == size:
            number = struct.unpack(">d", part)[0] if kind == 7 else int.from_bytes(part, "big", signed=True)
            values.append({0: None, 8: 0, 9: 1}.get(kind, number))
        if len(part) < size:
            break
    return tuple(values), len(types) if place == len(payload) or len(part) < size else 0


def _fold(source: Path, wal: Path) -> None:
    """Write the committed pages of a write-ahead log into the database file, and remove the log. Raises OSError."""
    content = wal.read_bytes()
    size, order = int.from_bytes(content[8:12], "big"), ">" if content[3:4] == b"\x83" else "<"
    sums, salts = _checksum(content[:24], (0, 0), order), content[16:24]
    waiting: dict[int, int] = {}
    with source.open("r+b") as file:
        for place in range(32, len(content) - size - 23, 24 + size) if 512 <= size <= 65_536 else ():
            head, page = content[place : place + 24], content[place + 24 : place + 24 + size]
            sums = _checksum(page, _checksum(head[:8], sums, order), order)
            if head[8:16] != salts or struct.unpack(">II", head[16:]) != sums:
                break  # an unfinished frame, or one from before the last reset of the log
            number, commit = struct.unpack(">II", head[:8])
            waiting[number] = place + 24
            for committed, begin in waiting.items() if commit else ():
                file.seek((committed - 1) * size)
                file.write(content[begin : begin + size])
            waiting = {} if commit else waiting
        file.flush()
        os.fsync(file.fileno())
    wal.unlink()


def _checksum(data: bytes, sums: tuple[int, int], order: str) -> tuple[int, int]:
    first, second = sums
    for one, other in struct.iter_unpack(f"{order}II", data[: len(data) // 8 * 8]):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return first, second
