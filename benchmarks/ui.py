"""How soon the chat echoes a key, measured at a pseudo-terminal. POSIX only.

    python -m benchmarks.ui keys             # 100 keys in each case while a scripted engine streams a reply
    python -m benchmarks.ui start [ROUNDS]   # from the start of the program, against a Textual app with one text area

`start` runs the demo pair, so its engine process starts at the same time.
"""

import argparse
import os
import re
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from localspec.conversations.conversations import Conversation, StoredMessage, save
from tests.tui.terminal import Terminal

CHAT = Path(__file__).parent.parent / "tests" / "tui" / "scripted_chat.py"
KEYS = [chr(code) for code in range(0x410, 0x410 + 64)] + [chr(code) for code in range(0x3B1, 0x3B1 + 24)]
KEYS += [chr(code) for code in range(0x561, 0x561 + 12)]  # letters that no reply contains
GAP_SECONDS = 0.05
# Question, tokens before the first key, saved turns, seconds of a cycle (0.04 gives 77 tokens a second, 0.012 250).
CASES = {
    "short conversation": ("tokens 2000", 100, 0, "0.04"),
    "short conversation, 250 tokens a second": ("tokens 4000", 100, 0, "0.012"),
    "reply of 10,000 tokens, from the 8,500th": ("tokens 10000", 8500, 0, "0.04"),
    "list of 300 items": ("list 300", 100, 0, "0.04"),
    "conversation of 200 turns": ("tokens 2000", 100, 200, "0.04"),
}
EMPTY = """
from textual.app import App
from textual.widgets import TextArea
class Empty(App):
    def compose(self):
        yield TextArea()
Empty().run()
"""


def turns(folder: Path, count: int) -> str:
    """A saved conversation of that many turns; its name."""
    answer = "An **answer** with `code` in it.\n\n- point {n}\n- another\n" * 6
    messages = []
    for n in range(count):
        messages.append(StoredMessage("user", f"question {n}"))
        messages.append(StoredMessage("assistant", answer.format(n=n), outcome="stop"))
    talk = replace(Conversation.new("demo"), messages=tuple(messages))
    save(folder, talk)
    return talk.name


def echoes(question: str, wait_tokens: int, saved_turns: int, cycle_seconds: str) -> list[float]:
    """Echo seconds of every key while the reply to a question streams."""
    folder = Path(tempfile.mkdtemp())
    resume = [turns(folder, saved_turns)] if saved_turns else []
    script = {
        "SCRIPT_CYCLE_SECONDS": cycle_seconds,
        "SCRIPT_HURRY_TOKENS": str(max(0, wait_tokens - 100)),
    }
    terminal = Terminal(sys.executable, str(CHAT), str(folder), *resume, **script)
    try:
        terminal.until("8,192")
        terminal.type(question)
        read_for(terminal, 0.5)
        terminal.type("\r")
        while tokens_shown(terminal) < wait_tokens:
            terminal.read(1.0)
        seconds = []
        for key in KEYS:
            began = time.monotonic()
            terminal.type(key)
            terminal.until(key)
            seconds.append(time.monotonic() - began)
            read_for(terminal, GAP_SECONDS)
        return seconds
    finally:
        terminal.close()


def read_for(terminal: Terminal, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        terminal.read(left)


def tokens_shown(terminal: Terminal) -> int:
    """The count in the status line, as last drawn."""
    counts = re.findall(r"([\d,]+) tokens(?! a pass)", terminal.drawn[-200_000:])
    return int(counts[-1].replace(",", "")) if counts else 0


def seconds_to_echo(*command: str) -> float:
    """From the start of a program to the first echo of a key that is pressed all the time."""
    began = time.monotonic()
    terminal = Terminal(sys.executable, *command)
    try:
        terminal.until("\x1b[?25l")  # the program has taken over the echo
        while "Ж" not in terminal.drawn:
            terminal.type("Ж")
            terminal.read(0.01)
        return time.monotonic() - began
    finally:
        terminal.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("keys", "start"))
    parser.add_argument("rounds", type=int, nargs="?", default=10)
    options = parser.parse_args()
    if options.what == "keys":
        for name, case in CASES.items():
            seconds = sorted(echoes(*case))
            cells = (median(seconds), seconds[int(len(seconds) * 0.95) - 1], seconds[-1])
            print(f"{name}: median, p95 and maximum in ms:", *(f"{1000 * s:.1f}" for s in cells), flush=True)
        return
    os.environ["LOCALSPEC_HOME"] = tempfile.mkdtemp()
    both = [
        (seconds_to_echo("-c", EMPTY), seconds_to_echo("-m", "localspec", "chat"))
        for _ in range(options.rounds)
    ]
    empty, chat = (median(seconds) for seconds in zip(*both, strict=True))
    print(f"medians: empty Textual app {empty:.3f} s, chat {chat:.3f} s, {chat - empty:+.3f} s")


if __name__ == "__main__":
    main()
