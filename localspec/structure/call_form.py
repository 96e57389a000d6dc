"""How models write calls: one description of a few texts, found by letting a chat template write some calls."""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from localspec.structure.schema import kind_of

# Holes in the texts of a form, as characters that no text has.
ID, COUNTER, TYPE, NAME, KEY = "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3", "\ufdd4"
_HOLE = re.compile(f"([{ID}-{KEY}])")
_TEXTS = (
    "begin",
    "open",
    "name_end",
    "close",
    "end",
    "arg_open",
    "arg_mid",
    "arg_close",
    "arg_between",
    "quote",
)


@dataclass(frozen=True, slots=True)
class CallForm:
    """One model family's way to write calls: begin, calls with `between` between them, end.

    A call is `open`, its name, `name_end`, its arguments, `close`. An element has `arg_open`, its key, `arg_mid`, its
    value and `arg_close`.
    """

    open: str
    name_end: str
    close: str = ""
    begin: str = ""
    between: str | None = ""  # None: the model writes one call
    end: str = ""
    values: str = "json"  # of all arguments; or of each: text, cdata, python, gemma
    arg_open: str = ""
    arg_mid: str = ""
    arg_close: str = ""
    arg_between: str = ""
    types: tuple[tuple[str, str], ...] = ()  # the words for kinds of JSON that `TYPE` stands for
    separators: tuple[str, str] = (", ", ": ")  # in JSON
    quote: str = '"'  # around texts in values
    other: tuple[str, str] | None = None  # an `open` and a `name_end` that the model also writes
    native: bool = True  # the model's own template writes it

    @property
    def marks(self) -> tuple[str, ...]:
        """All its texts: control tokens in them tell calls from an answer."""
        return (*(getattr(self, name) for name in _TEXTS), self.between or "", *(self.other or ()))

    def with_texts(self, change: Callable[[str], str]) -> "CallForm":
        """The form with all its texts changed."""
        changed: dict[str, Any] = {name: change(getattr(self, name)) for name in _TEXTS}
        between = None if self.between is None else change(self.between)
        other = self.other and (change(self.other[0]), change(self.other[1]))
        return replace(self, **changed, between=between, other=other)

    def written(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """The text of these calls, each a name and its arguments."""
        texts = [self._call(n, name, arguments) for n, (name, arguments) in enumerate(calls)]
        return self.begin + (self.between or "").join(texts) + self.end

    def without(self, ends: Collection[str]) -> "CallForm":
        """The form up to the texts of tokens that end a reply by themselves."""
        cut = re.compile("|".join(map(re.escape, ends)) or r"(?!)")
        between = None if self.between is None or cut.search(self.between) else self.between
        close, end = (cut.split(text, maxsplit=1)[0] for text in (self.close, self.end))
        return replace(self, close=close, between=between, end=end)

    def _call(self, number: int, name: str, arguments: Mapping[str, Any]) -> str:
        if self.values == "json":
            inside = json.dumps(arguments, ensure_ascii=False, separators=self.separators)
        else:
            members = sorted(arguments.items()) if self.values == "gemma" else arguments.items()
            inside = self.arg_between.join(self._element(key, value) for key, value in members)
        filled = {ID: "abcdefghi", COUNTER: str(number), NAME: name}
        before, after = (_HOLE.sub(lambda hole: filled[hole[0]], text) for text in (self.open, self.name_end))
        return before + name + after + inside + _HOLE.sub(lambda hole: filled[hole[0]], self.close)

    def _element(self, key: str, value: Any) -> str:  # noqa: ANN401  JSON
        kind = dict(self.types).get(kind_of(value), "")
        return self.arg_open + key + self.arg_mid.replace(TYPE, kind) + self.value(value) + self.arg_close

    def value(self, value: Any) -> str:  # noqa: ANN401  JSON
        """A value as an element has it."""
        match self.values, value:
            case "cdata", str() if re.search(r"[<&\n]", value):
                return f"<![CDATA[{value}]]>"
            case (("text" | "cdata"), str()):
                return value
            case "python", _:
                return repr(value)
            case "gemma", str():
                return self.quote + value + self.quote
            case "gemma", dict():
                return "{" + ",".join(f"{key}:{self.value(part)}" for key, part in value.items()) + "}"
            case "gemma", list():
                return "[" + ",".join(map(self.value, value)) + "]"
        return json.dumps(value, ensure_ascii=False)


def parts_of(text: str) -> list[str]:
    """A text cut at its holes, which are parts themselves."""
    return [part for part in _HOLE.split(text) if part]


HERMES = CallForm('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", between="\n")
GENERIC = replace(HERMES, native=False)
