"""How many calls of all carried chat templates are right: rendered, read back, streamed, and allowed by the grammar?

    python -m benchmarks.template_calls

Every template renders the same sets of calls, fixed ones and random ones. Counted are the rendered turn read back, the
same calls behind a text, the calls read one character at a time as with `tool_choice: auto`, and the grammars of `auto`
and `required`. Printed are the misses and the sum.
"""

import argparse
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from localspec.errors import LocalspecError
from localspec.events import Kind, ToolCall
from localspec.prompt.messages import Message
from localspec.prompt.tools import spelled_out
from localspec.structure.call_grammar import calls_grammar
from localspec.structure.constraint import GrammarTokens
from localspec.structure.json_calls import JsonCallReader
from localspec.structure.read_calls import CallReader, calls_in
from localspec.structure.tool_call_format import ToolCallFormat
from tests.prompt.carried import TEMPLATES, ready
from tests.structure.test_forms import CALLS, FUNCTIONS, ByteVocabulary

Calls = Sequence[tuple[str, Mapping[str, Any]]]
ASKED, BEFORE = "localspec asks", "I look.\n"
READERS = (CallReader, partial(JsonCallReader, several=True))
TEXTS = [
    "",
    " ",
    "Oslo",
    "5",
    "true",
    "null",
    "a\nb",
    '"',
    "\\",
    "{}",
    "[1]",
    "é 日本 😀",
    "a, b=c",
    "</x>",
    "x < y && z",
]


def random_calls(random_: random.Random) -> list[tuple[str, Mapping[str, Any]]]:
    def text() -> str:
        return " ".join(random_.choices(TEXTS, k=random_.randint(1, 3)))

    def weather() -> dict[str, Any]:
        more = {
            "days": random_.randint(-9, 99), "deep": {text() or "a": [text(), random_.random() < 0.5, None]},
            "tags": [text() for _ in range(random_.randint(0, 3))], "share": random_.randint(-99, 99) / 4,
            "sure": random_.random() < 0.5,
        }  # fmt: skip
        return {"city": text()} | {key: more[key] for key in more if random_.random() < 0.5}

    makers = {"get_weather": weather, "ping": dict, "edit-file": lambda: {"path": text(), "text": text()}}
    names = random_.choices([*makers], k=random_.randint(1, 3))
    return [(name, makers[name]()) for name in names]


def checks(
    name: str, form: ToolCallFormat, given: Calls, grammars: Mapping[str, Any]
) -> Iterator[tuple[str, bool]]:
    calls = given[:1] if form.between is None else given
    turns = tuple(ToolCall(*call, f"abcdefgh{n}") for n, call in enumerate(calls))
    messages: Sequence[Message] = [Message("user", ASKED), Message("assistant", "", tool_calls=turns)]
    try:
        messages = messages if form.native else spelled_out(messages, (), form)
        text = ready(name).render(messages, add_generation_prompt=False).rpartition(ASKED)[2]
    except LocalspecError:
        text = ""
    written = form.written(calls)
    text = text if calls[-1][0] in text else written
    yield "rendered", read(calls_in(text, form, FUNCTIONS)[0]) == list(calls)
    found, answer = calls_in(BEFORE + written, form, FUNCTIONS)
    yield "behind a text", (read(found), answer.strip()) == (list(calls), BEFORE.strip())
    for make in READERS:
        reader = make(form, FUNCTIONS)
        parts = [*chain.from_iterable(map(reader.push, written)), *reader.flush()]
        answer = "".join(part.text for part in parts if part.kind is Kind.ANSWER)
        found = [part.ended for part in parts if part.ended]
        yield (
            f"streamed to {getattr(make, '__name__', 'JsonCallReader')}",
            (read(found), answer.strip()) == (list(calls), ""),
        )
    for choice, matcher in grammars.items():
        matcher.reset()
        raw = [*written.encode()]
        yield choice, matcher.try_consume_tokens(raw) == len(raw) and matcher.is_accepting()


def read(calls: Sequence[ToolCall]) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments) for call in calls]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--random", type=int, default=9, help="random sets of calls, beside the fixed ones")
    options = parser.parse_args()
    random_ = random.Random(61)
    sets = [*CALLS.values(), *(random_calls(random_) for _ in range(options.random))]
    tokens, right, all_, misses = GrammarTokens(ByteVocabulary()), 0, 0, dict[str, int]()
    for name in sorted(TEMPLATES):
        form = ready(name).tool_call_format
        grammars = {
            choice: tokens.matcher(calls_grammar(form, FUNCTIONS, choice=choice, names={}))
            for choice in ("auto", "required")
        }
        for number, given in enumerate(sets):
            for way, good in checks(name, form, given, grammars):
                right, all_ = right + good, all_ + 1
                if not good:
                    misses[way] = misses.get(way, 0) + 1
                    print(name, way, number, given if number >= len(CALLS) else [*CALLS][number])
    print(f"{right:,} of {all_:,} right; missed: {misses or 'none'}")


if __name__ == "__main__":
    main()
