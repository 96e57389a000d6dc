"""The prompts that speed is measured on, by what people use a model for; the texts stand in prompts.toml."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from itertools import chain, zip_longest


class Category(StrEnum):
    """What a prompt asks for: how well drafts do depends on it more than on anything else."""

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
