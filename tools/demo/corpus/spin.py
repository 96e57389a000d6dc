"""Many wordings from one line: choices in braces, cards of questions and answers, and how people type."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TypeVar

T = TypeVar("T")
CHOICE = re.compile(r"\{([^{}]*)\}")
PREFERRED = 0.1
"""Chance of the first wording in answers beyond its even share: greedy text has one best way to go on."""

OPENERS = (
    "please ",
    "can you tell me ",
    "hey, ",
    "tell me: ",
    "i want to know: ",
    "question: ",
    "so, ",
    "and ",
)
CLOSERS = (" please", " pls", ", please", " thanks", " in one sentence")


@dataclass(frozen=True, slots=True)
class Turn:
    """One question and its answer."""

    asks: str
    says: str


@dataclass(frozen=True, slots=True)
class Card:
    """A topic: ways to ask about it, ways to answer, and what may follow."""

    asks: tuple[str, ...]
    says: tuple[str, ...]
    more: tuple[str, ...]
    brief: tuple[str, ...]
    even: bool


def words(text: str, between: str | None = None) -> list[str]:
    """A list written as one text."""
    return text.split(between)


def pick(options: Sequence[T], rng: Random, lead: float = PREFERRED) -> T:
    """Choose the first option with chance `lead`, otherwise any."""
    return options[0] if rng.random() < lead else rng.choice(options)


def spin(template: str, rng: Random, lead: float = PREFERRED) -> str:
    """Resolve every {a|b} choice from the inside out."""
    while "{" in template:
        done = CHOICE.sub(lambda found: pick(found[1].split("|"), rng, lead), template)
        if done == template:
            break
        template = done
    return template


def typed(question: str, rng: Random) -> str:
    """A question as somebody would type it: case, punctuation, a kind word or a slip of the finger."""
    text = question
    if len(text) > 12 and rng.random() < 0.12:
        text = rng.choice(OPENERS) + text
    elif len(text) > 12 and rng.random() < 0.05 and text[-1].isalnum():
        text += rng.choice(CLOSERS)
    if rng.random() < 0.6:
        text = text[0].upper() + text[1:]
    if text[-1].isalnum() and rng.random() < 0.6:
        text += ending(question, rng)
    if rng.random() < 0.04:
        text = slip(text, rng)
    return text


def ending(question: str, rng: Random) -> str:
    """The mark at the end: questions mostly get a question mark, requests a full stop."""
    asks = re.match(r"(what|who|how|why|when|where|which|is|are|do|does|can|may|did|will)\b", question, re.I)
    return "?" if asks else rng.choice(".!..")


def slip(text: str, rng: Random) -> str:
    """Swap or drop one letter inside a word."""
    places = [i for i in range(1, len(text) - 2) if text[i : i + 2].isalpha()]
    if not places:
        return text
    at = rng.choice(places)
    return (
        text[:at] + text[at + 1] + text[at] + text[at + 2 :]
        if rng.random() < 0.5
        else text[:at] + text[at + 1 :]
    )


def read_cards(name: str) -> list[Card]:
    """Read a file of cards that lies beside this module."""
    blocks = (Path(__file__).parent / name).read_text(encoding="utf-8").split("\n\n")
    return [card for card in map(read_card, blocks) if card.asks]


def read_card(block: str) -> Card:
    """Read one card; lines that start with # are remarks."""
    parts: dict[str, list[str]] = {mark: [] for mark in "?=*+-#"}
    for line in block.strip().splitlines():
        parts[line[0]].append(line[2:].replace("\\n", "\n"))
    asks = tuple(ask for line in parts["?"] for ask in line.split(" / "))
    return Card(asks, tuple(parts["="] or parts["*"]), tuple(parts["+"]), tuple(parts["-"]), bool(parts["*"]))


def answer(card: Card, rng: Random) -> str:
    """One answer of a card, in one of its wordings."""
    return spin(pick(card.says, rng, 0.0 if card.even else PREFERRED), rng)
