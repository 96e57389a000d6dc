"""Locks between processes, which the system releases when their holder dies."""

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from filelock import BaseFileLock

_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
_PATIENCE_SECONDS = 10.0  # a change takes milliseconds


class FileLock:
    """Held by one process at a time; `try_acquire` never waits, and the release removes the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: BaseFileLock | None = None

    def try_acquire(self) -> bool:
        """Take the lock; False while another process has it. Raises OSError where the file cannot be made."""
        assert self._held is None, "the lock is held already"
        self._held = _acquired(self._path, 0)
        return self._held is not None

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
        held, self._held = self._held, None
        if held is None:
            return
        if sys.platform != "win32":  # there filelock removes it
            with suppress(
                OSError
            ):  # before the release: whoever has opened it meanwhile notices and begins anew
                self._path.unlink(missing_ok=True)
        held.release()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else changes the small files of a folder meanwhile; its `.lock` stays there.

    Where the file system has no locks nobody waits. Raises OSError.
    """
    held = None
    try:
        held = _acquired(folder / ".lock", _PATIENCE_SECONDS)
        if held is None:
            raise TimeoutError(errno.ETIMEDOUT, "another localspec is changing files there", str(folder))
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    try:
        yield
    finally:
        if held is not None:
            held.release()


def _acquired(path: Path, seconds: float) -> "BaseFileLock | None":
    """The lock of that file, held; None where another process had it all the time. Raises OSError."""
    from filelock import FileLock, Timeout  # takes 15 ms

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Not a soft lock where there are no others: a killed process would leave it behind for good.
    lock = FileLock(path, mode=0o600, thread_local=False, fallback_to_soft=False, poll_interval=0.01)
    try:
        lock.acquire(seconds)
    except Timeout:
        return None
    return lock
