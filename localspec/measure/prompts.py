"""Prompts of six categories, which are in prompts.toml: those of bench and the short ones of verify."""

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


def _prompts(kind: str) -> tuple[BenchPrompt, ...]:
    """The prompts of one table of prompts.toml, each behind the document that it is about."""
    table = tomllib.loads(files("localspec.measure").joinpath("prompts.toml").read_text("utf-8"))
    found = []
    for entry in table[kind]:
        parts = [table["documents"][entry["document"]]] if "document" in entry else []
        text = "\n\n".join(part.strip() for part in [*parts, entry["text"]])
        found.append(BenchPrompt(entry["name"], Category(entry["category"]), text))
    return tuple(found)


def built_in_prompts() -> tuple[BenchPrompt, ...]:
    """Every prompt of bench that comes with localspec."""
    return _prompts("prompt")


def in_turn(prompts: Sequence[BenchPrompt]) -> tuple[BenchPrompt, ...]:
    """The first prompt of every category, then the second of each: wherever one stops, all had their turn."""
    by_category = [[p for p in prompts if p.category is category] for category in Category]
    return tuple(p for p in chain.from_iterable(zip_longest(*by_category)) if p is not None)


VERIFY_PROMPTS = _prompts("verify")
