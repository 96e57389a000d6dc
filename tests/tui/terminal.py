"""A program on a terminal of its own: type into it, wait for what it draws. POSIX only."""

import codecs
import fcntl
import os
import pty
import select
import signal
import subprocess
import termios
import time


class Terminal:
    """Runs a command; `drawn` holds what it wrote since the last text that was waited for."""

    def __init__(self, *command, **environment):
        self._ours, theirs = pty.openpty()
        size = {"COLUMNS": "100", "LINES": "30", "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # ^c is a signal then
            env=os.environ | size | environment,
        )
        os.close(theirs)
        self.drawn = ""
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def type(self, text):
        os.write(self._ours, text if isinstance(text, bytes) else text.encode())

    def read(self, seconds):
        """Takes in what is drawn within this time; False if the program is gone."""
        if select.select([self._ours], [], [], seconds)[0]:
            try:
                self.drawn += self._decode(os.read(self._ours, 1 << 16))
            except OSError:  # nobody has it open any more
                return False
        return True

    def until(self, text, seconds=300.0, typing=""):
        """Everything since the last call, up to and including a text; meanwhile a key is typed again and again."""
        deadline = time.monotonic() + seconds
        while text not in self.drawn:
            assert time.monotonic() < deadline, self.drawn[-500:]
            self.type(typing)
            assert self.read(0.1) or text in self.drawn, self.drawn[-500:]
        before, _, self.drawn = self.drawn.partition(text)
        return before + text

    def ended(self):
        """The exit code. What is drawn until then is read, because a full terminal holds a program up."""
        deadline = time.monotonic() + 300
        while self.process.poll() is None and self.read(0.1):
            assert time.monotonic() < deadline, self.drawn[-500:]
        return self.process.wait(300)

    @property
    def modes(self):
        """How the terminal treats what is typed."""
        return termios.tcgetattr(self._ours)

    def close(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._ours)
