"""Folders for files that nobody needs after the process that made them, whatever ends it."""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from localspec.locks import FileLock


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A new folder in `parent`, removed at the end; those of processes that were killed go first.

    Each has a lock beside it that the system releases when its owner dies. Raises OSError.
    """
    sweep(parent)
    folder, lock = _made(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def sweep(parent: Path) -> None:
    """Remove the folders of processes that are gone."""
    for folder in {path.with_suffix("") for path in parent.glob("*")}:
        with suppress(OSError):
            lock = FileLock(_lock_of(folder))
            if lock.try_acquire():
                shutil.rmtree(folder, ignore_errors=True)
                lock.release()


def _made(parent: Path) -> tuple[Path, FileLock]:
    while True:
        folder = parent / secrets.token_hex(8)
        lock = FileLock(_lock_of(folder))
        if lock.try_acquire():  # False where a sweep came upon it before it was ours
            folder.mkdir(mode=0o700)
            return folder, lock


def _lock_of(folder: Path) -> Path:
    return folder.with_suffix(".lock")
