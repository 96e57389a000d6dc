"""Waiting for other processes."""

import os
import time
from pathlib import Path


def until(condition, seconds=300.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition stayed false"
        time.sleep(0.01)


def lives(pid):
    """Return whether a process runs; a process that has ended may stay in the table of processes."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it has ended since, or the system has no /proc
        return not Path("/proc").exists()
