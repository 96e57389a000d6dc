"""Homes of other processes, and waiting for these."""

import os
import time
from pathlib import Path

from localspec import options


def informed(home):
    """Return a home that shares what is known of llama.cpp's build and of models with the other homes."""
    for name in ("health", "memory"):
        shared, link = options.cache_dir() / name, home / "cache" / name
        for folder in (shared, link.parent):
            folder.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to(shared, target_is_directory=True)
    return home


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
