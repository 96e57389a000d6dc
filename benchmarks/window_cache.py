"""A cache of its window's size against a full one, on a model with sliding windows: its bytes, and its texts.

    python benchmarks/window_cache.py MODEL.gguf [--context 8192] [--chats 20]

Every chat has four greedy replies drafted by lookup: to a text of 100 to 1,200 tokens, to a second message, to that
again, and to an edited first message. A difference is a near-tie where the two best logits of the full cache
are at most twice as far apart as batch widths alone move them.
"""

import argparse
import logging
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import localspec
from localspec.chat.messages import Message
from localspec.chat.session import Session
from localspec.events import Finished, Started
from localspec.llama.library import lib
from localspec.llama.log import logger
from localspec.llama.measure_memory import BufferLog
from localspec.measure.divergence import first_difference, row_after, top_two_gap, width_difference_on

PLACES = ("river", "lake", "bay", "pond", "creek", "marsh", "spring", "canal", "delta", "fjord")
LONGEST, NEW_TOKENS, DEPTH = 1200, 24, 4
MIB = 2**20


@dataclass(frozen=True)
class Said:
    """A reply, and what was read for it."""

    prompt: list[int]
    tokens: tuple[int, ...]
    read: int  # tokens of the prompt


@dataclass
class Run:
    """All chats with one kind of cache."""

    cache_bytes: float
    checkpoint_bytes: int  # the most at any time
    replies: list[Said]


def chat(seed: int, chats: int) -> list[list[Message]]:
    """The messages before each reply of a chat, replies included as they might be."""
    chance = random.Random(seed)
    length = 100 + (LONGEST - 100) * seed // max(chats - 1, 1)
    walks = (
        f"Walk {n}: from the {chance.choice(PLACES)} to the {chance.choice(PLACES)}." for n in range(length)
    )
    text = " ".join(walks)[: 4 * length]
    first = [
        Message("user", text),
        Message("assistant", "A long way."),
        Message("user", "And which was the last?"),
    ]
    return [first[:1], first, first, [Message("user", f"{text} Then I came home.")]]


@contextmanager
def full_windows() -> Iterator[None]:
    """Contexts are opened with caches that keep what lies behind the window."""
    with patch.object(lib, "llama_model_n_swa", lambda model: 1 << 24):
        yield


def talk(session: Session, chats: int, log: BufferLog) -> Run:
    run = Run(sum(log.cache.values()), 0, [])
    for seed in range(chats):
        for messages in chat(seed, chats):
            events = list(session.stream(messages, temperature=0, depth=DEPTH, max_tokens=NEW_TOKENS))
            started = next(event for event in events if isinstance(event, Started))
            finished = events[-1]
            assert isinstance(finished, Finished)
            prompt = list(session.engine.target.tokens[: started.prompt_tokens])
            read = started.prompt_tokens - 1 - started.reused_tokens
            run.replies.append(Said(prompt, finished.reply.tokens, read))
            run.checkpoint_bytes = max(run.checkpoint_bytes, session.engine.target.checkpoint_bytes)
        print(".", end="", flush=True, file=sys.stderr)
    return run


def differences(session: Session, full: Run, windowed: Run) -> Iterator[bool]:
    """Of each reply that differs, whether it does at a near-tie."""
    for ours, theirs in zip(windowed.replies, full.replies, strict=True):
        index = first_difference(theirs.tokens, ours.tokens)
        if index is not None:
            read = [*theirs.prompt, *theirs.tokens[:index]]
            yield top_two_gap(row_after(session.engine.target, read)) <= 2 * width_difference_on(
                session.engine, read
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--chats", type=int, default=20)
    arguments = parser.parse_args()
    log = BufferLog()
    logger.addHandler(log)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False

    def opened() -> Session:
        log.forget()
        return localspec.load(target=arguments.model, draft="lookup", context_length=arguments.context)

    with opened() as session:
        windowed = talk(session, arguments.chats, log)
    with full_windows(), opened() as session:
        full = talk(session, arguments.chats, log)
        ties = list(differences(session, full, windowed))
    taken = windowed.cache_bytes + windowed.checkpoint_bytes
    print(f"\nfull cache       {full.cache_bytes / MIB:8.1f} MiB")
    print(
        f"window's cache   {windowed.cache_bytes / MIB:8.1f} MiB, checkpoints {windowed.checkpoint_bytes / MIB:.1f}"
    )
    print(f"together         {taken / full.cache_bytes:8.1%} of the full one")
    ours, theirs = (sum(said.read for said in run.replies) for run in (windowed, full))
    print(f"prompt tokens    {ours:8,} read, with the full cache {theirs:,}")
    equal = len(full.replies) - len(ties)
    print(f"replies          {equal:8} equal, {sum(ties)} differ at near-ties, {ties.count(False)} otherwise")


if __name__ == "__main__":
    main()
