"""The SQLite file of conversations and typed prompts, readable by its owner only.

Each change is one transaction, which is on the disk before the screen shows the change as finished.
"""

import errno
import logging
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from localspec.errors import LocalspecError
from localspec.files import locked, rename, rename_damaged, sync_folder

FILE: Final = "chats.db"
VERSION: Final = 1  # version of the database schema
CHECKED_BYTES: Final = 64 << 20  # bytes; a larger file is checked for damage only before a deletion
MOST_BYTES: Final = 1 << 31  # bytes; if a damaged header gives a larger length, the file is not lengthened
WAIT_SECONDS: Final = 10.0  # the longest wait for a change by another process
TABLES: Final = {
    "conversations": "name, title, talked, pair, count, course_of, text, body",
    "prompts": "text, name",
}
_SCHEMA: Final = f"""BEGIN IMMEDIATE;
{"".join(f"CREATE TABLE IF NOT EXISTS {table} ({columns});" for table, columns in TABLES.items())}
CREATE UNIQUE INDEX IF NOT EXISTS one_name ON conversations (name);
CREATE INDEX IF NOT EXISTS listed ON conversations (talked, name, title, pair, count);
PRAGMA user_version = {VERSION};
COMMIT"""

_DAMAGED: Final = "database disk image is malformed"
# Path, device and inode of each file that this process has checked for damage and found undamaged.
_checked = set[tuple[Path, int, int]]()

log = logging.getLogger(__name__)


class StoreFailed(LocalspecError, OSError):
    """An error of SQLite or the disk: the file of conversations cannot be read or written."""


def select(folder: Path, query: str, *values: object) -> list[Any]:
    """Return the rows of a query; without a file of conversations, return no rows. Raises StoreFailed."""
    path = _path_in(folder)
    if not path.exists():
        return []
    for is_last in (False, True):
        try:
            with closing(_reader(path)) as db:
                version = _version(db, path)
                return db.execute(query, values).fetchall() if version else []
        except (sqlite3.Error, OSError) as error:
            if is_last or not _is_damage(error) or not os.access(path, os.W_OK):
                raise _failure(path, error) from error
            _recovered(path)
    raise AssertionError("the second attempt returns or raises")


def _path_in(folder: Path) -> Path:
    """Return the file's path with links resolved, because a recovery replaces the file and must keep the link."""
    return Path(os.path.realpath(folder / FILE))


def kept_files(folder: Path) -> list[Path]:
    """Return the damaged files that recoveries have kept."""
    path = _path_in(folder)
    return list(path.parent.glob(f"{path.name}.damaged*"))


def _reader(path: Path) -> sqlite3.Connection:
    """Open an existing file for reading, even if its folder is not writable. Raises sqlite3.Error."""
    mode = "rw"  # with "rw", the last reader removes the files of the write-ahead log
    if not os.access(path.parent, os.W_OK):
        logged = Path(f"{path}-wal").exists() and Path(f"{path}-shm").exists()
        mode = "ro" if logged else "ro&immutable=1"
    elif not os.access(path, os.W_OK):
        mode = "ro"
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", WAIT_SECONDS, uri=True)


def perform(folder: Path, *steps: tuple[Any, ...]) -> list[Any]:
    """Execute statements with values as one transaction; return the last statement's rows. Raises StoreFailed.

    The first call in a process checks the file for damage, unless the file has more than CHECKED_BYTES. The first
    call without statements checks any file; a deletion begins with such a call.
    """
    path, rows = _path_in(folder), list[Any]()
    for is_last in (False, False, True):
        try:
            opened = _made(path)
            with closing(sqlite3.connect(path, WAIT_SECONDS, isolation_level="IMMEDIATE")) as db:
                db.execute("PRAGMA secure_delete = ON")
                db.execute("PRAGMA synchronous = FULL")
                if _version(db, path) < VERSION:
                    with locked(path.parent):
                        _make_tables(db, path)
                if opened not in _checked and not (steps and path.stat().st_size > CHECKED_BYTES):
                    if db.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                        raise sqlite3.DatabaseError(_DAMAGED)
                    _checked.add(opened)
                with db:
                    for statement, *values in steps:
                        rows = db.execute(statement, values).fetchall()
            if opened == _identity(path):
                return rows  # if the path now has another file, a recovery replaced the written one, so write again
        except (sqlite3.Error, OSError) as error:
            if is_last or not _is_damage(error):
                raise _failure(path, error) from error
            _recovered(path)
    raise StoreFailed(f"{path} was replaced again and again", hint="close the other programs that use it")


def _made(path: Path) -> tuple[Path, int, int]:
    """Make the file if there is none, and return its path, device and inode. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite's other files get this mode, too
    return _identity(path)


def _identity(path: Path) -> tuple[Path, int, int]:
    status = path.stat()
    return path, status.st_dev, status.st_ino


def _version(db: sqlite3.Connection, path: Path) -> int:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise StoreFailed(f"a newer localspec wrote {path}", hint="update localspec")
    return int(version)


def _is_damage(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or str(error) == _DAMAGED


def _failure(path: Path, error: Exception) -> StoreFailed:
    if isinstance(error, StoreFailed):
        return error
    if _is_full(path, error):
        return StoreFailed(f"the disk is full, so {path} was not changed", hint="make room and try again")
    what = f"the conversations in {path} cannot be read or written: {error}"
    return StoreFailed(what, hint="check the disk and its permissions")


def _is_full(path: Path, error: Exception) -> bool:
    """Return whether a full disk caused the error, which SQLite may report as an input or output error."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL or getattr(error, "errno", 0) in (errno.ENOSPC, errno.EDQUOT):
        return True
    try:
        return code == sqlite3.SQLITE_IOERR and shutil.disk_usage(path.parent).free < 1 << 16
    except OSError:
        return False


def _recovered(path: Path) -> None:
    """Recover a damaged file, unless another process has recovered it already. Raises StoreFailed."""
    try:
        with locked(path.parent):
            with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(path)) as db:
                if db.execute("PRAGMA integrity_check(1)").fetchone() == ("ok",):
                    return
            _rebuild(path)
    except (sqlite3.Error, OSError) as error:
        raise _failure(path, error) from error


def _rebuild(path: Path) -> None:
    """Replace a damaged file by a new one with its readable rows, and keep a copy. Raises OSError, sqlite3.Error."""
    new, copy = Path(f"{path}.new"), Path(f"{path}.copy")
    with path.open("r+b") as file:  # lengthen a truncated file, because SQLite refuses to read one
        header = file.read(32)
        length = int.from_bytes(header[16:18], "big") * int.from_bytes(header[28:], "big")
        if path.stat().st_size < length < MOST_BYTES:
            file.truncate(length)
    new.unlink(missing_ok=True)
    os.close(os.open(new, os.O_RDWR | os.O_CREAT, 0o600))
    with closing(sqlite3.connect(path)) as old, closing(sqlite3.connect(new)) as db:
        old.text_factory = lambda text: text.decode(errors="replace")
        db.executescript(_SCHEMA)
        with db:
            for table, columns in TABLES.items():
                values = "?" + ", ?" * (columns.count(",") + 1)
                again = f"INSERT OR IGNORE INTO {table} (rowid, {columns}) VALUES ({values})"
                db.executemany(again, _readable(old, f"SELECT rowid, {columns} FROM {table} NOT INDEXED"))
        (count,) = db.execute("SELECT count(*) FROM conversations").fetchone()
        with suppress(sqlite3.DatabaseError):  # move the pages of the write-ahead log into the file
            old.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    shutil.copy(path, copy)
    kept = rename_damaged(copy, path.name).name
    for ending in ("-wal", "-shm"):  # these logs belong to the damaged file
        Path(f"{path}{ending}").unlink(missing_ok=True)
    rename(new, path)
    sync_folder(path.parent)
    more = "`sqlite3 FILE .recover` may read more of it, until you delete a conversation"
    log.warning("%s was damaged and is kept as %s; recovered conversations: %d; %s", path, kept, count, more)


def _readable(old: sqlite3.Connection, query: str) -> Iterator[tuple[Any, ...]]:
    """Yield a table's rows from both ends, because SQLite stops reading at the first damaged page."""
    for order in ("ASC", "DESC"):
        with suppress(sqlite3.DatabaseError):
            yield from old.execute(f"{query} ORDER BY rowid {order}")


def _make_tables(db: sqlite3.Connection, path: Path) -> None:
    try:
        (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
    except sqlite3.OperationalError as error:
        if _is_full(path, error):
            raise
        mode = ""
    if mode != "wal":
        db.execute("PRAGMA journal_mode = DELETE")
        log.warning("saving a conversation takes longer: the file system of %s allows no SQLite log", FILE)
    db.executescript(_SCHEMA)
