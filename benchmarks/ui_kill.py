"""kill -9 of the whole program at random moments during chats: what was shown as finished must be in the file.

python benchmarks/ui_kill.py [ROUNDS]: every round asks short questions of a scripted engine in a tmux session, looks at
the screen up to a random moment, kills the program and its engine, and compares the last look with what the files hold.
"""

import os
import random
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

from ui_tmux import SCRIPTED, Tmux, children

from localspec import conversations

os.environ |= {"SCRIPT_CYCLE_SECONDS": "0.01", "SCRIPT_LOAD_SECONDS": "0"}
QUESTION = re.compile(r"▌ exact (round\d+-\d+ [\w ]*\w)")
FOOTER = re.compile(r"^\s*\d+ tokens · ")


def finished(screen: str) -> tuple[set[str], set[str]]:
    """The questions on a screen, and those of them whose reply is shown as finished."""
    asked: list[str] = []
    answered: set[str] = set()
    for line in screen.splitlines():
        if match := QUESTION.search(line):
            asked.append(match[1])
        elif FOOTER.match(line) and asked:
            answered.add(asked[-1])
    return set(asked), answered


def play(folder: Path, number: int, chance: random.Random) -> str:
    """One round; the last look at the screen before the kill."""
    chat = Tmux(
        "kill",
        (
            *SCRIPTED,
            str(folder),
            *([""] if chance.random() < 0.5 and any((folder / "conversations").glob("*")) else []),
        ),
        100,
        40,
    )
    try:
        chat.until(lambda screen: "8,192" in screen, "ready")
        deadline = time.monotonic() + chance.uniform(0.0, 1.5)
        count, screen = 0, chat.screen
        while time.monotonic() < deadline:
            _, answered = finished(screen)
            if len([text for text in answered if text.startswith(f"round{number}-")]) == count:
                words = " ".join(chance.choices(("tea", "moon", "river", "stone"), k=chance.randint(2, 12)))
                chat.type(f"exact round{number}-{count} {words}")
                chat.press("Enter")
                count += 1
            screen = chat.screen
        for pid in (chat.pid, *children(chat.pid)):
            os.kill(pid, signal.SIGKILL)
        return screen
    finally:
        chat.close()


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    folder = Path(tempfile.mkdtemp())
    chance = random.Random(1)
    checked, cut, missing = 0, 0, []
    for number in range(rounds):
        asked, answered = finished(play(folder, number, chance))
        listing = conversations.listing(folder / "conversations")
        assert not listing.broken, listing.broken
        cut = sum(conversation.lost_lines for conversation in listing.conversations)
        kept = [message for c in listing.conversations for message in c.messages]
        questions = {message.content for message in kept if message.role == "user"}
        # A question left without reply by an earlier kill is asked together with the next one.
        replies = "\n".join(message.content for message in kept if message.role == "assistant")
        missing += [f"question {text}" for text in asked if f"exact {text}" not in questions]
        missing += [f"reply {text}" for text in answered if text not in replies]
        checked += len(asked) + len(answered)
    for text in missing:
        print(f"missing: {text}")
    print(
        f"{rounds} kills, {checked} finished messages on screens, {len(missing)} missing in the files, {cut} lines cut"
    )
    sys.exit(bool(missing))


if __name__ == "__main__":
    main()
