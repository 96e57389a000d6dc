"""What the target is asked: the prompts of `bench` and `verify`, and as many more as are wanted, made of parts."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import count
from random import Random

from localspec.chat.loaded_pair import LoadedPair
from localspec.chat.messages import Message
from localspec.chat.prompt import encode
from localspec.measure.prompts import VERIFY_PROMPTS, BenchPrompt, Category, built_in_prompts, in_turn


def prompts(pair: LoadedPair) -> Iterator[list[int]]:
    """Every built-in prompt, the short ones first, in tokens."""
    for prompt in (*VERIFY_PROMPTS, *in_turn(built_in_prompts())):
        yield tokens_of(pair, prompt.text)


def tokens_of(pair: LoadedPair, text: str) -> list[int]:
    """A prompt as the target's own template writes it."""
    return encode(pair.vocabulary, pair.template, [Message("user", text)]).tokens


def made_prompts() -> Iterator[BenchPrompt]:
    """Prompts of each category in turn, without end and always the same; those of few parts come again."""
    table = tomllib.loads(files("localspec.fit").joinpath("prompts.toml").read_text("utf-8"))
    chance = Random("prompts")
    for number in count():
        category = list(table["ask"])[number % len(table["ask"])]
        text = _filled(chance.choice(table["ask"][category]), table["words"], chance)
        yield BenchPrompt(f"{category} {number}", Category(category), text)


def _filled(text: str, words: Mapping[str, Sequence[str]], chance: Random) -> str:
    return re.sub(r"\{(\w+)\}", lambda slot: _filled(chance.choice(words[slot[1]]), words, chance), text)
