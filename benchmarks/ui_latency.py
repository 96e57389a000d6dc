"""How long a key takes from the terminal's input to its echo while a reply streams, on a scripted engine.

python benchmarks/ui_latency.py: 100 keys in each case, measured at a pseudo-terminal: a short conversation, a reply of
10,000 tokens (after most of it has come), a list of 300 items, and a conversation of 200 turns.
"""

import re
import statistics
import sys
import tempfile
from pathlib import Path

from ui_terminal import Terminal

from localspec.chat.conversations import Journal, StoredMessage

CHAT = Path(__file__).parent.parent / "tests" / "tui" / "scripted_chat.py"
KEYS = [chr(code) for code in range(0x410, 0x410 + 64)] + [chr(code) for code in range(0x3B1, 0x3B1 + 24)]
KEYS += [chr(code) for code in range(0x561, 0x561 + 12)]  # letters that no reply contains
GAP_SECONDS = 0.05


def turns(folder: Path, count: int) -> str:
    """A saved conversation of that many turns; its name."""
    journal = Journal.new(folder / "conversations", "demo", "")
    for n in range(count):
        journal.add(StoredMessage("user", f"question {n}"))
        journal.add(
            StoredMessage(
                "assistant",
                f"An **answer** with `code` in it.\n\n- point {n}\n- another\n" * 6,
                outcome="stop",
            )
        )
    journal.close()
    return journal.path.stem


def echoes(
    question: str, wait_tokens: int, saved_turns: int = 0, cycle_seconds: str = "0.012"
) -> list[float]:
    """Echo seconds of every key while the reply to a question streams."""
    folder = Path(tempfile.mkdtemp())
    resume = [turns(folder, saved_turns)] if saved_turns else []
    terminal = Terminal(
        [sys.executable, str(CHAT), str(folder), *resume],
        SCRIPT_CYCLE_SECONDS=cycle_seconds,
        SCRIPT_HURRY_TOKENS=str(max(0, wait_tokens - 100)),
    )
    try:
        terminal.wait_for("8,192")
        terminal.type(question)
        terminal.read_for(0.5)
        terminal.type("\r")
        while tokens_shown(terminal) < wait_tokens:
            terminal.read(1.0)
        seconds = []
        for key in KEYS:
            since = len(terminal.output)
            terminal.type(key)
            seconds.append(terminal.wait_for(key, since=since))
            terminal.read_for(GAP_SECONDS)
        return seconds
    finally:
        terminal.close()


def tokens_shown(terminal: Terminal) -> int:
    """The count in the status line, as last drawn."""
    counts = re.findall(rb"([\d,]+) tokens(?! a pass)", bytes(terminal.output[-200_000:]))
    return int(counts[-1].replace(b",", b"")) if counts else 0


def main() -> None:
    # At 0.04 s a cycle the script makes 77 tokens a second, at 0.012 s 250.
    cases = {
        "short conversation": ("tokens 2000", 100, 0, "0.04"),
        "short conversation, 250 tokens a second": ("tokens 4000", 100, 0, "0.012"),
        "reply of 10,000 tokens, from the 8,500th": ("tokens 10000", 8500, 0, "0.04"),
        "list of 300 items": ("list 300", 100, 0, "0.04"),
        "conversation of 200 turns": ("tokens 2000", 100, 200, "0.04"),
    }
    for name, case in cases.items():
        seconds = sorted(echoes(*case))
        median, p95 = statistics.median(seconds), seconds[int(len(seconds) * 0.95) - 1]
        print(f"{name}: {len(seconds)} keys, median, p95 and maximum in ms:", end=" ")
        print(f"{median * 1e3:.1f}, {p95 * 1e3:.1f}, {seconds[-1] * 1e3:.1f}", flush=True)


if __name__ == "__main__":
    main()
