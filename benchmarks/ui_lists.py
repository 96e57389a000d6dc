"""A list of 1,500 items in the chat: how long opening it takes, and how long a key takes while such a list streams.

python benchmarks/ui_lists.py: measured at a pseudo-terminal, on a scripted engine.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

from ui_latency import CHAT, echoes
from ui_terminal import Terminal

from localspec.conversations import Journal, StoredMessage

ITEMS = 1500
LISTS = {
    "items": "".join(f"- item {n} of **many**\n" for n in range(ITEMS)),
    "items with lines between": "".join(f"- item {n} of **many**\n\n" for n in range(ITEMS)),
    "rows of a table": "| n | of |\n|---|---|\n"
    + "".join(f"| item {n} | **many** |\n" for n in range(ITEMS)),
}
OPENINGS = 5


def opening_seconds(reply: str) -> tuple[float, float]:
    """Seconds from Enter until the end of a conversation is on the screen, and until it is there as Markdown."""
    folder = Path(tempfile.mkdtemp())
    journal = Journal.new(folder / "conversations", "demo", "")
    journal.add(StoredMessage("user", "a list, please"))
    journal.add(StoredMessage("assistant", reply, outcome="stop"))
    journal.close()
    terminal = Terminal([sys.executable, str(CHAT), str(folder)])
    try:
        terminal.wait_for("8,192")
        terminal.type(f"/load {journal.path.stem}")
        terminal.read_for(1.0)
        since = len(terminal.output)
        began = time.monotonic()
        terminal.type("\r")
        terminal.wait_for(f"item {ITEMS - 1}", since=since)
        text = time.monotonic() - began
        if "|" not in reply:  # the head of a table tells nothing
            terminal.wait_for("•", since=since)
        return text, time.monotonic() - began
    finally:
        terminal.close()


def main() -> None:
    for name, reply in LISTS.items():
        times = [opening_seconds(reply) for _ in range(OPENINGS)]
        text, markdown = (statistics.median(seconds) for seconds in zip(*times, strict=True))
        print(
            f"{ITEMS:,} {name}: text after {text:.2f} s, Markdown after {markdown:.2f} s, median of {OPENINGS}"
        )
    for question in (f"list {ITEMS}", f"table {ITEMS}"):
        seconds = sorted(echoes(question, 400, cycle_seconds="0.04"))
        median, p95 = statistics.median(seconds), seconds[int(len(seconds) * 0.95) - 1]
        print(f"{question} streams: {len(seconds)} keys, median, p95 and maximum in ms:", end=" ")
        print(f"{median * 1e3:.1f}, {p95 * 1e3:.1f}, {seconds[-1] * 1e3:.1f}", flush=True)


if __name__ == "__main__":
    main()
