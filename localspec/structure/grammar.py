"""Convert schemas, regular expressions and grammars to grammars of llguidance."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

from localspec.errors import BadSetting
from localspec.structure.layout import COMPACT, FLEXIBLE, as_lark, in_layouts, json_rule
from localspec.structure.schema import LARGEST, check_complexity, check_ends, narrowed, read_object

FENCE, FENCE_END = "```json\n", "\n```"  # models may put JSON into a code fence; a reply's text omits it
MOST_RULES = 1_000  # low, because llguidance converts rules slowly and follows them by recursion


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar of llguidance; `constraint.GrammarTokens` compiles it, and finds its errors."""

    name: str  # the name for messages: "the JSON schema"
    rules: str  # the rules in Lark; `start` is the first
    lenient: Callable[[], str] | None = None  # makes rules without the parts that llguidance does not support
    closes: bool = False  # whether a reply near its limit of tokens is closed early, so that it still matches

    @property
    def has_unclosed_calls(self) -> bool:
        """Whether the grammar has a rule `unclosed`, for reasoning that ends with calls."""
        return "\nunclosed: " in self.rules


def json_grammar(schema: object, *, compact: bool | None = None) -> Grammar:
    """Return the grammar of a JSON schema. `compact`: whether to forbid white space; None: the model chooses."""
    check_complexity(schema := read_object(schema))
    check_ends(schema)
    narrow = narrowed(schema)

    def rules(**options: bool) -> str:
        one = f"start: {json_rule(narrow, **(COMPACT if compact else FLEXIBLE), **options)}"
        if compact is not None:
            return one
        json = (in_layouts(narrow, **options) or one).replace("start:", "json:", 1)
        return f"start: json | {as_lark(FENCE)} json {as_lark(FENCE_END)}\n{json}"

    return Grammar("the JSON schema", rules(), partial(rules, lenient=True), closes=True)


def regex_grammar(pattern: object) -> Grammar:
    from llguidance import regex_to_lark

    text = _text(pattern, "the regular expression", LARGEST).removeprefix("^")
    if text.endswith("$") and not text.endswith(r"\$"):
        text = text[:-1]
    return Grammar("the regular expression", f"start: /{regex_to_lark(text, '')}/")


def written_grammar(text: object) -> Grammar:
    """Read a grammar in Lark's syntax or llama.cpp's GBNF. Raises BadSetting."""
    from llguidance.gbnf_to_lark import any_to_lark

    source = _text(text, "the grammar", 100_000)
    rules = source.count(":")
    if rules > MOST_RULES:
        what = f"the grammar has about {rules:,} rules, more than {MOST_RULES:,}"
        raise BadSetting(what, hint="simplify the grammar")
    try:
        return Grammar("the grammar", any_to_lark(source))
    except RecursionError:
        raise BadSetting("the grammar is nested too deeply", hint="use fewer parentheses") from None
    except Exception as error:  # for a missing rule, the converter raises a bare Exception
        what = f"the grammar cannot be read: {error}"
        raise BadSetting(what, hint="begin Lark at the rule `start:`, or GBNF at `root ::=`") from error


def _text(given: object, name: str, largest: int) -> str:
    if not isinstance(given, str) or not given.strip():
        raise BadSetting(f"{name} is empty or not text", hint=f"give {name} as text")
    if len(given) > largest:
        what = f"{name} has {len(given):,} characters, more than {largest:,}"
        raise BadSetting(what, hint=f"simplify {name}")
    if any("\ud800" <= character <= "\udfff" for character in given):
        raise BadSetting(f"{name} is not UTF-8 text", hint=f"write {name} in UTF-8")
    return given


def escaped(text: str) -> str:
    """Escape a text for a regular expression between slashes."""
    return re.escape(text).replace("/", r"\/").replace("\\\n", r"\n")


def literal(text: str, names: Mapping[str, int]) -> str:
    """Write a text in Lark: special tokens as ids (`names`: their ids by text), the rest as literals."""
    pattern = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    parts = re.split(f"({pattern})", text) if pattern else [text]
    found = [f"<[{names[part]}]>" if part in names else as_lark(part) for part in parts if part]
    return " ".join(found) or '""'


ANYTHING = r"(.|\n)*"


def rules_around(
    opening: Collection[str],
    closing: Collection[str],
    *,
    opened: bool,
    framing: bool,
    names: Mapping[str, int],
    unclosed: bool,
) -> str:
    """Write the Lark rules of a reply: reasoning, the answer, and closing markers after it.

    `opening`, `closing`: markers around reasoning. Further closing markers and two line ends may follow reasoning.
    `opened`: whether the prompt ends inside reasoning. `framing`: whether closing markers may surround the answer.
    `names`: ids of special tokens by their texts. `unclosed`: whether calls may end a reply inside its reasoning.
    """
    thoughts = [
        f"thought_{n}: /{ANYTHING}/ {literal(mark.rstrip(), names)}"
        if any(map(mark.startswith, names))
        else f"thought_{n}[lazy]: /{ANYTHING}{escaped(mark)}/"
        for n, mark in enumerate(closing)
    ]
    any_thought = " | ".join(f"thought_{n}" for n in range(len(thoughts)))
    frame = "frame*" if framing else ""
    called = f" | {'' if opened else f'{frame} opening'} unclosed" if unclosed else ""
    rules = [
        f"start: lead {'reply' if unclosed else '@answer'} tail{called}",
        # Allow reasoning only once, because a model could begin it again whenever a budget has ended it.
        f"lead: {'thought' if opened else f'{frame} (opening thought)?'}",
        f"opening: {' | '.join(literal(mark.rstrip(), names) for mark in opening)}",
        f'thought: {"unclosed*" * unclosed} ({any_thought}) {frame} ("\\n" | "\\n\\n")?',
        *thoughts,
        f"frame: {' | '.join(literal(mark.rstrip(), names) for mark in closing)}",
        f"tail: {frame}",
    ]
    return "\n".join(rules) + "\n"
