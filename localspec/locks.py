"""A lock between processes that the system releases when its holder dies, and that leaves no file behind."""

import contextlib
import errno
import os
import sys
from pathlib import Path
from typing import BinaryIO

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})


class FileLock:
    """Held by one process at a time; `try_acquire` never waits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None

    def try_acquire(self) -> bool:
        """Take the lock; False while another process has it. Raises OSError where the file cannot be made."""
        assert self._file is None, "the lock is held already"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            with contextlib.ExitStack() as opened:
                file = opened.enter_context(self._path.open("ab"))
                if not _lock(file):
                    return False
                if _still_there(file, self._path):
                    self._file = file
                    opened.pop_all()
                    return True
                # its last holder removed the file between our opening and locking it

    def try_acquire_where_possible(self) -> bool:
        """As `try_acquire`, and True where the file system has no locks, as some network homes."""
        try:
            return self.try_acquire()
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            self._path.unlink(missing_ok=True)
            return True

    def release(self) -> None:
        """Give the lock back and remove its file. Saying it twice is saying it once."""
        file, self._file = self._file, None
        if file is None:
            return
        ours = _still_there(file, self._path)
        if sys.platform == "win32":  # an open file cannot be removed there; whoever has opened it keeps it
            file.close()
        if ours:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
        file.close()


def _lock(file: BinaryIO) -> bool:
    try:
        if sys.platform == "win32":
            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _still_there(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
