"""Decode speed inside the chat against `localspec run`: same files, prompt, seed, depth and threads, alternating.

python benchmarks/ui_speed.py TARGET DRAFT [ROUNDS]: both sides report the engine's own clock, so that drawing can only
show by disturbing the engine. Use a pair at a real cycle time (tools/enlarge.py makes one of the demo).
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ui_terminal import Terminal

from localspec import conversations

PROMPT = "Tell me a story"
THREADS = max(1, (os.cpu_count() or 2) - 1)


def options(target: str, draft: str) -> list[str]:
    settings = {"--threads": THREADS, "--seed": 1, "--temperature": 0, "--depth": 4, "--context": 512}
    flat = [str(part) for item in settings.items() for part in item]
    return ["--target", target, "--draft", draft, *flat]


def speed_of_run(pair: list[str]) -> tuple[int, float]:
    """Tokens of the reply, and tokens a second."""
    command = [sys.executable, "-m", "localspec", "run", PROMPT, "--json", *pair]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    stats = json.loads(done.stdout)["stats"]
    return stats["emitted"], stats["tokens_per_second"]


def speed_of_chat(pair: list[str]) -> tuple[int, float]:
    home = Path(tempfile.mkdtemp())
    folder = home / "data" / "conversations"
    terminal = Terminal([sys.executable, "-m", "localspec", "chat", *pair], LOCALSPEC_HOME=str(home))
    try:
        terminal.wait_for("/ 512", seconds=120)
        terminal.type(PROMPT)
        terminal.read_for(1.0)
        terminal.type("\r")
        while not (numbers := last_numbers(folder)):
            terminal.read_for(0.2)
        return numbers.tokens, numbers.tokens_per_second
    finally:
        terminal.close()


def last_numbers(folder: Path) -> conversations.Numbers | None:
    saved = conversations.listing(folder).conversations
    return saved[0].messages[-1].numbers if saved and saved[0].messages else None


def main() -> None:
    pair = options(sys.argv[1], sys.argv[2])
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    runs, chats = [], []
    for number in range(rounds):
        for measure, found in (
            ((speed_of_run, runs), (speed_of_chat, chats))
            if number % 2
            else (
                (speed_of_chat, chats),
                (speed_of_run, runs),
            )
        ):
            tokens, speed = measure(pair)
            found.append(speed)
            print(f"{measure.__name__}: {tokens} tokens, {speed:.2f} tokens/s", flush=True)
            time.sleep(1)
    ratios = [chat / run for chat, run in zip(chats, runs, strict=True)]
    middle = statistics.median(chats) / statistics.median(runs)
    print(
        f"{THREADS} threads: run {statistics.median(runs):.2f}, chat {statistics.median(chats):.2f} tokens/s, "
    )
    print(f"ratio of medians {middle:.3f}, of pairs {min(ratios):.3f} to {max(ratios):.3f}")


if __name__ == "__main__":
    main()
