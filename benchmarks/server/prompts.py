"""What both programs are asked: questions of kinds that the demo pair knows, but not from its training."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from random import Random

from tools.demo.corpus.mix import exchange, library_text
from tools.demo.corpus.open_ended import open_ended
from tools.demo.corpus.spin import Turn
from tools.demo.corpus.stories import stories

SEED = "server"
LEAST_CHARACTERS = 120  # of an answer: shorter ones end before their speed can be told

MAKERS: dict[str, Callable[[Random], list[Turn]]] = {
    "code": partial(exchange, "code"),
    "chat": partial(exchange, "chat"),
    "prose": lambda rng: rng.choice((stories, open_ended))(rng),
    "json": partial(exchange, "json"),
}
CATEGORIES = (*MAKERS, "library")


@dataclass(frozen=True, slots=True)
class Task:
    """A raw prompt, and how much of an answer it deserves."""

    name: str
    category: str
    text: str
    answer: str  # the corpus's own; its length in tokens is how many are generated


def tasks(per_category: int) -> tuple[Task, ...]:
    """Always the same; one of each category after the other."""
    columns = [list(islice(asked(topic), per_category)) for topic in MAKERS]
    columns.append(list(islice(library(), per_category)))
    return tuple(task for row in zip(*columns, strict=True) for task in row)


def asked(topic: str) -> Iterator[Task]:
    """First questions of conversations, in ChatML."""
    rng, number = Random(f"{SEED}/{topic}"), 0
    while True:
        turn = MAKERS[topic](rng)[0]
        if len(turn.says) >= LEAST_CHARACTERS:
            number += 1
            text = f"<|im_start|>user\n{turn.asks}<|im_end|>\n<|im_start|>assistant\n"
            yield Task(f"{topic} {number}", topic, text, turn.says)


def library() -> Iterator[Task]:
    """Beginnings of library code, to be continued."""
    rng, number = Random(f"{SEED}/library"), 0
    while True:
        text = library_text(rng)
        if len(text) >= 200 + LEAST_CHARACTERS:
            number += 1
            yield Task(f"library {number}", "library", text[:200], text[200:600])
