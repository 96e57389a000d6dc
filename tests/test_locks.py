"""A lock between processes that cleans up after itself."""

import errno
import os
import subprocess
import sys

import pytest

from localspec.files import FileLock, locked

HOLD = """
import sys
from pathlib import Path
from localspec.files import FileLock
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


COUNT = """
import sys
from pathlib import Path
from localspec.files import FileLock
path, count = Path(sys.argv[1]), Path(sys.argv[2])
for _ in range(100):
    lock = FileLock(path)
    while not lock.try_acquire():
        pass
    count.write_text(str(int(count.read_text()) + 1))
    lock.release()
"""


def test_a_file_that_its_holder_removed_is_no_lock(tmp_path):
    """Whoever waits for the file of a finished holder begins anew: of three that count, none overtakes another."""
    path, count = tmp_path / "x.lock", tmp_path / "count"
    count.write_text("0")
    counting = [subprocess.Popen([sys.executable, "-c", COUNT, path, count]) for _ in range(3)]
    assert [process.wait() for process in counting] == [0, 0, 0]
    assert count.read_text() == "300"
    assert not path.exists()


def test_the_folder_of_small_files_is_changed_by_one_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("localspec.files._PATIENCE_SECONDS", 0.05)
    with locked(tmp_path), pytest.raises(TimeoutError, match="another localspec"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="flock")
def test_where_there_are_no_locks_nobody_waits(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    with locked(tmp_path), locked(tmp_path):
        pass
