"""Patterns for the delimiters of a tool-call format, in text that is still being written."""

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from localspec.structure.tool_call_format import COUNTER, ID, NAME, TYPE, ToolCallFormat, parts_of

Pattern = Sequence[str | re.Pattern[str]]  # literals, and expressions that can match the empty text
Heads = Sequence[tuple[str, Pattern]]  # pairs of a function's name and the pattern before its arguments
MORE: Final = -1  # `follow` cannot decide without more text
NO: Final = -2  # the text does not match
LONGEST: Final = 200  # largest number of characters in a key, an id, or a run of white space
_UP_TO = f"{{0,{LONGEST}}}"
_SPACE = re.compile(rf"\s{_UP_TO}")
_HOLES = {ID: re.compile(rf"[\w.:-]{_UP_TO}"), COUNTER: re.compile(rf"\d{_UP_TO}"),
          TYPE: re.compile(rf"(?P<type>\w{_UP_TO})")}  # fmt: skip
_NEVER: Pattern = ["\0"]
# Expressions for brackets, commas, quotes and escapes in a value, by the form of values.
_SIGNS = {"json": r'[{}\[\]"]|\\.?', "gemma": r"[{}\[\](),]"}


class Delimiters:
    """The patterns of a tool-call format; `names`: the functions that may be called."""

    def __init__(self, form: ToolCallFormat, names: Collection[str]) -> None:
        starts = [(form.begin + form.open, form.name_end), *([form.other] if form.other else [])]
        nexts = [] if form.between is None else [(form.between + form.open, form.name_end)]
        # Match white space at the end of a call with the next delimiter, which may begin with white space.
        close, space = pattern_of(form.close.rstrip()), form.close[len(form.close.rstrip()) :]
        self.form = form
        self.heads = _heads_of(starts, names)  # the texts that may begin the first call, by function
        self.next_heads = _heads_of([(space + before, end) for before, end in nexts + starts], names)
        self.beginning = _beginning_of([head for _, head in self.heads])
        # The patterns of a key and of the end of a call: `first` after a head, `later` after a value.
        self.first: tuple[Pattern, Pattern] = ["{"], _NEVER
        self.later: tuple[Pattern, Pattern] = _NEVER, close
        if form.values != "json":
            key = re.compile(rf"(?P<key>[^\n<>{{}}()\[\]{re.escape(form.arg_mid[:1])}]{_UP_TO})\n?")
            mid = [_HOLES.get(part, part) for part in parts_of(form.arg_mid)]
            element = [*pattern_of(form.arg_open), key, *mid]
            self.first, self.later = (element, close), ([*pattern_of(form.arg_between), *element], close)
        self.end = [_SPACE, *(pattern_of(form.end) or _NEVER)]  # the pattern of the text after the last call
        signs = _SIGNS.get(form.values, r'[{}\[\](),"]|\\.?')
        self.signs = re.compile(f"{signs}|{re.escape(form.quote)}", re.DOTALL)

    def head_at(self, heads: Heads, text: str, at: int) -> tuple[int, str]:
        """Return the end of a head (or MORE or NO), and its function. A key or the call's end must come next."""
        if at == len(text):
            return MORE, ""
        best = NO, ""
        for name, head in heads:
            end = follow(head, text, at)
            then = max(follow(pattern, text, end) for pattern in self.first) if end >= 0 else end
            best = max(best, (end if then >= 0 else then, name))
        return best


def pattern_of(text: str) -> list[str | re.Pattern[str]]:
    """Return the pattern of a format's text; white space in the text matches any white space."""
    pieces = (piece for part in parts_of(text) for piece in re.split(r"(\s+)", part) if piece)
    return [_HOLES.get(piece, piece) if piece.strip() else _SPACE for piece in pieces]


def _heads_of(starts: Iterable[tuple[str, str]], names: Collection[str]) -> Heads:
    named = ((before, name, end.replace(NAME, name)) for before, end in starts for name in names)
    return [(name, [*pattern_of(before), name, *pattern_of(end)]) for before, name, end in named]


def _beginning_of(heads: Sequence[Pattern]) -> re.Pattern[str]:
    """Return the expression for a head's first literal, or for the beginning of one at the end of the text."""
    marks = {first_text(head) for head in heads}
    begun = [re.escape(mark[:size]) + r"\Z" for mark in marks for size in range(len(mark))]
    space = _SPACE.pattern if any(head[0] is _SPACE for head in heads) else ""
    return re.compile(f"{space}(?:{'|'.join([*map(re.escape, marks), *begun])})")


def first_text(pattern: Pattern) -> str:
    return next((part for part in pattern if isinstance(part, str)), "\0")


def follow(pattern: Pattern, text: str, at: int, found: dict[str, str] | None = None) -> int:
    """Match a pattern at `at`, and add its named groups to `found`; return the end of the match, MORE or NO."""
    for part in pattern:
        if isinstance(part, re.Pattern):
            match = part.match(text, at)
            assert match, "it also matches the empty text"
            if found is not None:
                found |= match.groupdict()
            at = match.end()
        elif text.startswith(part, at):
            at += len(part)
        else:
            return MORE if part.startswith(text[at : at + len(part)]) else NO
    return at


def unfinished(mark: str, text: str, at: int) -> int:
    """Return where an incomplete `mark` at the end of a text begins, or the length of a text without one."""
    starts = range(max(at, len(text) - len(mark) + 1), len(text))
    return next((start for start in starts if mark.startswith(text[start:])), len(text))
