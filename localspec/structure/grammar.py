"""What a reply must match, taken in the forms that users write, as one form that llguidance reads."""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from localspec.errors import BadSetting
from localspec.structure.schema import narrowed, read_schema

LARGEST = 1_000_000  # characters of a schema or a regular expression
LARGEST_GRAMMAR = 100_000  # characters
MOST_RULES = 1_000  # llguidance follows them by recursion, and the conversion takes time with their square

FLEXIBLE = {"whitespace_pattern": r"[ \n\r\t]{1,40}"}  # bounded: a model may love white space too much
COMPACT = {"whitespace_flexible": False}
SPACED = {**COMPACT, "item_separator": ", ", "key_separator": ": "}  # as Python's json writes it


@dataclass(frozen=True, slots=True)
class Grammar:
    """A language for a reply; whether it makes sense shows when it is compiled (`tokens.GrammarTokens`)."""

    name: str  # what messages call it: "the JSON schema"
    # One of llguidance's grammars: {"json_schema": ...} or {"lark_grammar": ...}
    definition: Mapping[str, Any]


def json_grammar(schema: object, *, compact: bool = True) -> Grammar:
    """JSON that a schema describes: a dictionary, its text, or a Pydantic model class. Raises BadSetting.

    compact: no white space between the tokens of JSON, so that keys and punctuation are forced.
    """
    found = narrowed(read_schema(schema, largest=LARGEST))
    return Grammar(
        "the JSON schema", {"json_schema": {**found, "x-guidance": COMPACT if compact else FLEXIBLE}}
    )


def lenient(grammar: Grammar) -> Grammar:
    """The grammar without what it cannot follow of a schema."""
    schema = grammar.definition.get("json_schema")
    if schema is None:
        return grammar
    options = {**schema["x-guidance"], "lenient": True}
    return Grammar(grammar.name, {"json_schema": {**schema, "x-guidance": options}})


def regex_grammar(pattern: object) -> Grammar:
    """A text that the pattern matches from its beginning to its end. Raises BadSetting."""
    from llguidance import regex_to_lark

    text = _text(pattern, "the regular expression", LARGEST).removeprefix("^")
    if text.endswith("$") and not text.endswith(r"\$"):
        text = text[:-1]
    return Grammar("the regular expression", {"lark_grammar": f"start: /{regex_to_lark(text, '')}/"})


def written_grammar(text: object) -> Grammar:
    """A grammar in Lark's syntax or in llama.cpp's GBNF, which has a rule called root. Raises BadSetting."""
    from llguidance.gbnf_to_lark import any_to_lark

    source = _text(text, "the grammar", LARGEST_GRAMMAR)
    rules = source.count(":")
    if rules > MOST_RULES:
        raise BadSetting(
            f"the grammar has about {rules:,} rules, {MOST_RULES:,} at most are allowed",
            hint="simplify the grammar",
        )
    try:
        return Grammar("the grammar", {"lark_grammar": any_to_lark(source)})
    except RecursionError:
        raise BadSetting("the grammar is nested too deeply", hint="use fewer parentheses") from None
    except Exception as error:  # the converter raises bare Exception where a rule is missing
        what = f"the grammar cannot be read: {error}"
        raise BadSetting(what, hint="Lark begins at the rule `start:`, GBNF at `root ::=`") from error


def _text(given: object, name: str, largest: int) -> str:
    if not isinstance(given, str) or not given.strip():
        raise BadSetting(f"{name} is empty or not text", hint="give it as text")
    if len(given) > largest:
        raise BadSetting(
            f"{name} has {len(given):,} characters, {largest:,} at most are allowed", hint=f"simplify {name}"
        )
    return given


def escaped(text: str) -> str:
    """A text as a part of a regular expression between slashes."""
    return re.escape(text).replace("/", r"\/").replace("\\\n", r"\n")


def as_lark(text: str) -> str:
    """A text as a literal of Lark's."""
    return json.dumps(text, ensure_ascii=False)


def literal(text: str, names: Mapping[str, int]) -> str:
    """A text as a sequence of control tokens and literals of Lark's."""
    pattern = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    parts = re.split(f"({pattern})", text) if pattern else [text]
    found = [f"<[{names[part]}]>" if part in names else as_lark(part) for part in parts if part]
    return " ".join(found) or '""'


_ANYTHING = r"(.|\n)*"


def lead_of(
    opening: Collection[str],
    closing: Collection[str],
    *,
    opened: bool,
    framing: bool,
    names: Mapping[str, int],
) -> str:
    """Rules that define `lead` and `tail`, what may stand before and after an answer: the grammar waits until then.

    Reasoning comes between its `opening` and `closing` marks, any number of times; after it, closing marks may follow
    one another, and up to two line ends. `opened`: the prompt ends inside the reasoning; `framing`: closing marks may
    also stand around the answer. `names`: the texts of control tokens, which are no text to a grammar.
    """
    thoughts = " | ".join(f"thought_{n}" for n in range(len(closing)))
    frame = "frame*" if framing else ""
    rules = [
        f"lead: {'thought ' if opened else frame} (opening thought)*",
        f"opening: {' | '.join(literal(mark.rstrip(), names) for mark in opening)}",
        f'thought: ({thoughts}) {frame} ("\\n" | "\\n\\n")?',
        *(thought_rule(n, mark, names) for n, mark in enumerate(closing)),
        f"frame: {' | '.join(literal(mark.rstrip(), names) for mark in closing)}",
        f"tail: {frame}",
    ]
    return "\n".join(rules) + "\n"


def thought_rule(number: int, mark: str, names: Mapping[str, int]) -> str:
    """Reasoning up to a mark: no control token is part of a text; other marks count as soon as they come."""
    first = next((name for name in names if mark.startswith(name)), None)
    if first is not None:
        return f"thought_{number}: /{_ANYTHING}/ {literal(mark.rstrip(), names)}"
    return f"thought_{number}[lazy]: /{_ANYTHING}{escaped(mark)}/"
