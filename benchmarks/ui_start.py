"""How long until a key is echoed after the start: the chat against a Textual app that holds one text area.

python benchmarks/ui_start.py [ROUNDS]: alternating starts in a pseudo-terminal. The chat starts its engine process with
the demo pair at the same time, as a person would have it.
"""

import os
import statistics
import sys
import tempfile
import time

from ui_terminal import Terminal

EMPTY = """
from textual.app import App
from textual.widgets import TextArea
class Empty(App):
    def compose(self):
        yield TextArea()
Empty().run()
"""
KEY = "Ж"


def seconds_to_echo(command: list[str], **environment: str) -> float:
    """From the start of a program to the first echo of a key that is pressed all the time."""
    began = time.monotonic()
    terminal = Terminal(command, **environment)
    try:
        while KEY.encode() not in terminal.output:
            if time.monotonic() - began > 30:
                raise TimeoutError(bytes(terminal.output[-300:]).decode(errors="replace"))
            # Keys that come before the program reads would be lost when it takes over the terminal.
            if b"\x1b[?1049h" in terminal.output:
                terminal.type(KEY)
            terminal.read(0.01)
        return time.monotonic() - began
    finally:
        terminal.close()


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    home = tempfile.mkdtemp()
    empty, chat = [], []
    for _ in range(rounds):
        empty.append(seconds_to_echo([sys.executable, "-c", EMPTY]))
        chat.append(seconds_to_echo([sys.executable, "-m", "localspec", "chat"], LOCALSPEC_HOME=home))
    medians = [statistics.median(times) for times in (empty, chat)]
    print(f"{os.cpu_count()} cores, {rounds} alternating starts, medians")
    print(f"empty Textual app {medians[0]:.3f} s, chat {medians[1]:.3f} s, {medians[1] - medians[0]:+.3f} s")


if __name__ == "__main__":
    main()
