"""Prompts of six categories: those of bench are in prompts.toml, the short ones of verify here."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from itertools import chain, zip_longest


class Category(StrEnum):
    """The kind of text that a prompt asks for; the acceptance rate depends on it most."""

    CODE = "code"
    CHAT = "chat"
    PROSE = "prose"
    JSON = "json"
    EDIT = "edit"  # a text to be returned with few changes
    LONG = "long"  # a question about a long document


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    name: str
    category: Category
    text: str


def built_in_prompts() -> tuple[BenchPrompt, ...]:
    """Every prompt that comes with localspec."""
    table = tomllib.loads(files("localspec.measure").joinpath("prompts.toml").read_text("utf-8"))
    documents = {name: text.strip() for name, text in table["documents"].items()}
    return tuple(
        BenchPrompt(
            entry["name"],
            Category(entry["category"]),
            "\n\n".join(
                [*([documents[entry["document"]]] if "document" in entry else []), entry["text"].strip()]
            ),
        )
        for entry in table["prompt"]
    )


def in_turn(prompts: Sequence[BenchPrompt]) -> tuple[BenchPrompt, ...]:
    """The first prompt of every category, then the second of each: wherever one stops, all had their turn."""
    by_category = [[p for p in prompts if p.category is category] for category in Category]
    return tuple(p for p in chain.from_iterable(zip_longest(*by_category)) if p is not None)


VERIFY_PROMPTS = tuple(
    BenchPrompt(name, Category(category), text)
    for name, category, text in (
        ("palindrome", "code", "Write a Python function that tells whether a text is a palindrome."),
        ("kitchen", "chat", "Hello! What can I cook with two eggs, rice and an onion?"),
        ("lighthouse", "prose", "Write the beginning of a story about a lighthouse keeper."),
        ("person", "json", 'Describe a person as JSON with the keys "name", "age", "city" and "pets".'),
        ("count lines", "code", "Write a shell command that counts the lines of all .txt files here."),
        ("sleep", "chat", "I cannot sleep before an exam. Give me three short tips."),
        ("rain", "prose", "Describe a street in the rain, in the voice of an old detective."),
        ("weekdays", "json", "List the days of the week as a JSON array of objects with number and name."),
        ("fibonacci", "code", "Write a C function that returns the n-th Fibonacci number without recursion."),
        ("moon", "chat", "Why does the moon look larger near the horizon?"),
        ("letter", "prose", "Write a short letter from a fox to the farmer whose hens it did not take."),
        ("order", "json", "Write an order of three items with prices and a total as one JSON object."),
    )
)
