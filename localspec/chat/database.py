"""The SQLite file of conversations and typed prompts, readable by its owner only.

Each change is one transaction, which is on the disk before the screen shows the change as finished.
"""

import logging
import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from localspec.errors import LocalspecError
from localspec.files import locked, rename_damaged

FILE: Final = "chats.db"
VERSION: Final = 1  # version of the tables
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

log = logging.getLogger(__name__)


class StoreFailed(LocalspecError, OSError):
    """SQLite or the disk failed: the file of conversations cannot be read or written."""


def select(folder: Path, query: str, *values: object) -> list[Any]:
    """Return the rows of a query; without a file of conversations, return no rows. Raises StoreFailed."""
    return perform(folder, (query, *values)) if (folder / FILE).exists() else []


def perform(folder: Path, *steps: tuple[Any, ...]) -> list[Any]:
    """Execute statements with values as one transaction; return the last statement's rows. Raises StoreFailed."""
    path, rows = folder / FILE, list[Any]()
    for is_last in (False, True):
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite's other files get this mode too
            with closing(sqlite3.connect(path, WAIT_SECONDS, isolation_level="IMMEDIATE")) as db:
                db.execute("PRAGMA secure_delete = ON")
                db.execute("PRAGMA synchronous = FULL")
                (version,) = db.execute("PRAGMA user_version").fetchone()
                if version > VERSION:
                    raise StoreFailed(f"a newer localspec wrote {path}", hint="update localspec")
                if version < VERSION:
                    with locked(path.parent):
                        _make_tables(db)
                with db:
                    for statement, *values in steps:
                        rows = db.execute(statement, values).fetchall()
            return rows
        except (sqlite3.Error, OSError) as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if is_last or code not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                if isinstance(error, StoreFailed):
                    raise
                what = f"the conversations in {path} cannot be read or written: {error}"
                raise StoreFailed(what, hint="check the disk and its permissions") from error
            _recover(path)
    raise AssertionError("the second attempt returns or raises")


def _make_tables(db: sqlite3.Connection) -> None:
    mode = ""
    with suppress(sqlite3.OperationalError):
        (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        db.execute("PRAGMA journal_mode = DELETE")
        log.warning("the file system of %s refuses a write-ahead log: saving takes longer", FILE)
    db.executescript(_SCHEMA)


def _recover(path: Path) -> None:
    """Rename a damaged file, and copy its readable rows to a new file. Raises OSError."""
    with locked(path.parent):
        with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(path)) as db:
            if db.execute("PRAGMA integrity_check(1)").fetchone() == ("ok",):
                return  # another process has already replaced the damaged file
        kept = rename_damaged(path)
        os.utime(kept)
        for ending in ("-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.replace(f"{path}{ending}", f"{kept}{ending}")
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        with closing(sqlite3.connect(path)) as db, closing(sqlite3.connect(kept)) as damaged:
            _make_tables(db)
            damaged.execute("PRAGMA writable_schema = ON")  # lets SQLite read the rest of a truncated file
            damaged.text_factory = lambda content: content.decode(errors="replace")
            for table, columns in TABLES.items():
                values = "?" + ", ?" * len(columns.split(", "))
                again = f"INSERT OR IGNORE INTO {table} (rowid, {columns}) VALUES ({values})"
                for order in ("ASC", "DESC"):
                    with db, suppress(sqlite3.DatabaseError):
                        rows = damaged.execute(f"SELECT rowid, {columns} FROM {table} ORDER BY rowid {order}")
                        for row in rows:
                            db.execute(again, row)
            count = db.execute("SELECT count(*) FROM conversations").fetchone()[0]
    log.warning("%s was damaged and is kept as %s; %d conversations were recovered", path, kept.name, count)
