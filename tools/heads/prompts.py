"""Questions of four kinds, drawn from one seed: talk, code, JSON records and rewriting; and those of the demo."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from tools.demo.corpus.mix import SHARES, exchange

WORDS: dict[str, list[str]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
HELD_OUT = 15
"""The first prompts of each kind are never trained on."""


def talk(rng: Random) -> str:
    """A question on a subject."""
    return rng.choice(WORDS["talk"]).format(rng.choice(WORDS["subjects"]))


def code(rng: Random) -> str:
    """A request for a short program."""
    return rng.choice(WORDS["code"]).format(rng.choice(WORDS["tasks"]))


def record(rng: Random) -> str:
    """A request for JSON."""
    fields = rng.sample(WORDS["fields"], rng.randint(3, 6))
    wanted = f"{', '.join(fields[:-1])} and {fields[-1]}"
    return rng.choice(WORDS["json"]).format(rng.choice(WORDS["records"]), wanted)


def rewriting(rng: Random) -> str:
    """A text of a few sentences and what to do with it."""
    said = [_deed(rng) for _ in range(rng.randint(2, 5))]
    return rng.choice(WORDS["rewriting"]).format(". ".join(s[0].upper() + s[1:] for s in said) + ".")


def _deed(rng: Random) -> str:
    who, deed = rng.choice(WORDS["people"]), rng.choice(WORDS["deeds"])
    return f"{who} {deed.format(day=rng.choice(WORDS['days']))}"


KINDS = {"talk": talk, "code": code, "json": record, "rewriting": rewriting}


def held_out() -> list[tuple[str, str]]:
    """(kind, prompt) for measuring."""
    return [(kind, prompt) for kind, make in KINDS.items() for prompt in _first(make, kind)]


def _first(make: Callable[[Random], str], kind: str) -> list[str]:
    rng, found = Random(f"held out/{kind}"), dict[str, None]()
    while len(found) < HELD_OUT:
        found[make(rng)] = None
    return list(found)


def mixed(seed: int) -> Iterator[str]:
    """Prompts of all kinds in turn, none twice and none that is held out."""
    rng, seen = Random(seed), {prompt for _, prompt in held_out()}
    while True:
        for make in KINDS.values():
            prompt = make(rng)
            if prompt not in seen:
                seen.add(prompt)
                yield prompt


def demo(seed: int) -> Iterator[str]:
    """Questions that the demo target was trained on, without those that measure it."""
    kept, rng = {asks for _, asks in demo_held_out()}, Random(seed)
    while True:
        asks = exchange(rng.choices(list(SHARES), list(SHARES.values()))[0], rng)[0].asks
        if asks not in kept:
            yield asks


def demo_held_out() -> list[tuple[str, str]]:
    """(topic, prompt), 60 of each topic."""
    streams = {topic: Random(f"measure/{topic}") for topic in SHARES}
    return [(topic, exchange(topic, rng)[0].asks) for topic, rng in streams.items() for _ in range(60)]


TRAINING = {"mixed": mixed, "demo": demo}
MEASURED = {"mixed": held_out, "demo": demo_held_out}
