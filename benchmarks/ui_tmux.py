"""A program in a tmux session: type into it, look at what it shows. Needs tmux."""

import itertools
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

SCRIPTED = (sys.executable, str(Path(__file__).parent.parent / "tests" / "tui" / "scripted_chat.py"))


_NUMBERS = itertools.count()


class Tmux:
    """One session on a server of its own."""

    def __init__(self, name: str, command: Sequence[str], columns: int, rows: int) -> None:
        # A name is not free at once when its server is killed.
        self._server = ("tmux", "-L", f"localspec-{name}-{os.getpid()}-{next(_NUMBERS)}", "-f", "/dev/null")
        size = ("-x", str(columns), "-y", str(rows))
        # `exec` makes the pane's process the program itself.
        self._call("new-session", "-d", *size, "exec " + shlex.join(command))
        self.pid = int(self._call("list-panes", "-F", "#{pane_pid}"))

    def type(self, text: str) -> None:
        self._call("send-keys", "-l", text)

    def press(self, *keys: str) -> None:
        self._call("send-keys", *keys)

    def resize(self, columns: int, rows: int) -> None:
        self._call("resize-window", "-x", str(columns), "-y", str(rows))

    @property
    def alive(self) -> bool:
        return (
            subprocess.run((*self._server, "has-session"), capture_output=True, check=False).returncode == 0
        )

    @property
    def screen(self) -> str:
        return self._call("capture-pane", "-p")

    def until(self, condition: Callable[[str], object], what: str, seconds: float = 20.0) -> str:
        """The screen once a condition holds on it."""
        deadline = time.monotonic() + seconds
        while not condition(screen := self.screen):
            if time.monotonic() > deadline:
                raise TimeoutError(f"never: {what}\n{screen}")
            time.sleep(0.02)
        return screen

    def close(self) -> None:
        subprocess.run((*self._server, "kill-server"), capture_output=True, check=False)

    def _call(self, *arguments: str) -> str:
        done = subprocess.run((*self._server, *arguments), capture_output=True, text=True, check=False)
        return done.stdout


def children(pid: int) -> list[int]:
    """The processes that a process started."""
    found = subprocess.run(("pgrep", "-P", str(pid)), capture_output=True, text=True, check=False).stdout
    return [int(line) for line in found.split()]


def gone(pid: int) -> bool:
    """Whether a process has ended (one that waits to be collected counts as ended)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
