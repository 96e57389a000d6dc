"""How long the list, the search and one message take among many conversations: `python -m benchmarks.conversations`.

Every conversation has three questions and three replies of random words. Printed are the median time of nine, and the
median time of a processor.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

from localspec.conversations import conversations
from localspec.conversations.conversations import Conversation, StoredMessage

QUESTION, REPLY = 15, 80  # words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    count = parser.parse_args().count
    chance = random.Random(0)
    letters = "etaoinshrdlucmfwygpbvk"
    words = ["".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(20_000)]

    def said(role: str, length: int) -> StoredMessage:
        return StoredMessage(role, " ".join(chance.choices(words, k=length)))

    def talk(number: int) -> Conversation:
        messages = tuple(said(*of) for of in (("user", QUESTION), ("assistant", REPLY)) * 3)
        return replace(Conversation.new("demo"), name=f"talk-{number:06}", messages=messages)

    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        conversations.save(folder, *map(talk, range(count)))
        size = (folder / "chats.db").stat().st_size
        print(f"{count:,} conversations, {size / 1e6:.0f} MB", file=sys.stderr)
        rare, common = words[7], words[8][:2]
        one = talk(count)
        for what, work in (
            ("the whole list", lambda: conversations.listing(folder)),
            ("the list of the chat", lambda: conversations.listing(folder, "", 200)),
            ("a rare word", lambda: conversations.listing(folder, rare, 200)),
            ("two letters that are everywhere", lambda: conversations.listing(folder, common, 200)),
            (
                "two words, none found",
                lambda: conversations.listing(folder, f"{rare} nothing-like-this", 200),
            ),
            ("a word of other letters", lambda: conversations.listing(folder, "Ärger", 200)),
            ("one conversation read", lambda: conversations.read(folder, "talk-000005")),
            ("one message saved", lambda: conversations.save(folder, one)),
        ):
            print(f"{what:<32} {timed(work)}")


def timed(work: Callable[[], object]) -> str:
    took: list[tuple[float, float]] = []
    for _ in range(9):
        start, used = time.perf_counter(), time.process_time()
        work()
        took.append((time.perf_counter() - start, time.process_time() - used))
    wall, cpu = (1000 * median(figures) for figures in zip(*took, strict=True))
    return f"{wall:6.1f} ms, {cpu:6.1f} ms of a processor"


if __name__ == "__main__":
    main()
