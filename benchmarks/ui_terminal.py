"""A program in a pseudo-terminal: type into it, wait for what it draws. POSIX only."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Sequence


class Terminal:
    """Runs a command on a terminal of its own; everything it wrote is in `output`."""

    def __init__(
        self, command: Sequence[str], columns: int = 100, rows: int = 30, **environment: str
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        modes = termios.tcgetattr(slave)
        modes[3] &= ~termios.ECHO  # what appears was drawn by the program
        termios.tcsetattr(slave, termios.TCSANOW, modes)
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", **environment},
        )
        os.close(slave)
        self.output = bytearray()

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def read(self, seconds: float) -> bool:
        """Take in what was drawn; False when nothing came in time or the program is gone."""
        ready, _, _ = select.select([self._master], [], [], seconds)
        if not ready:
            return False
        try:
            self.output += os.read(self._master, 1 << 16)
        except OSError:
            return False
        return True

    def read_for(self, seconds: float) -> None:
        """Take in what is drawn during a time."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.read(left)

    def wait_for(self, text: str, seconds: float = 30.0, since: int = 0) -> float:
        """Seconds until a text was drawn after the output's position `since`."""
        began = time.monotonic()
        while self.output.find(text.encode(), since) < 0:
            left = began + seconds - time.monotonic()
            if left <= 0 or (not self.read(left) and self.process.poll() is not None):
                raise TimeoutError(f"{text!r} was never drawn; last: {bytes(self.output[-300:])!r}")
        return time.monotonic() - began

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._master)
