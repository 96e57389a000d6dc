"""A lock between processes that cleans up after itself."""

import subprocess
import sys

from localspec.locks import FileLock

HOLD = """
import sys
from pathlib import Path
from localspec.locks import FileLock
lock = FileLock(Path(sys.argv[1]))
print(lock.try_acquire(), flush=True)
sys.stdin.read()
"""


def holder(path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "True\n"
    return process


def test_one_holder_at_a_time_and_no_file_afterwards(tmp_path):
    path = tmp_path / "x.lock"
    first, second = FileLock(path), FileLock(path)
    assert first.try_acquire()
    assert not second.try_acquire()
    first.release()
    first.release()
    assert second.try_acquire()
    second.release()
    assert not path.exists()


def test_another_process_holds_it_until_it_dies(tmp_path):
    path = tmp_path / "x.lock"
    other = holder(path)
    assert not FileLock(path).try_acquire()
    other.kill()
    other.communicate()
    assert path.exists()
    mine = FileLock(path)
    assert mine.try_acquire()
    mine.release()
    assert not path.exists()


def test_a_file_that_its_holder_removed_is_no_lock(tmp_path):
    """Whoever waits on the file of a finished holder has to begin anew."""
    path = tmp_path / "x.lock"
    first = FileLock(path)
    assert first.try_acquire()
    path.unlink()
    second = FileLock(path)
    assert second.try_acquire()
    first.release()
    third = FileLock(path)
    assert not third.try_acquire()
    second.release()
    assert third.try_acquire()
    third.release()
