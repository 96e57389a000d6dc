"""The Markdown of replies: where a growing text can be cut, so that no block is parsed twice; and its code."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

LONG_BLOCK: Final = 3000  # characters; a block that grows longer is cut inside, for display only
MANY_LINES: Final = 40  # of a block, for the same reason: each may be a row of cells or an item of a list
LONG_PART: Final = 1500  # characters; then the next block begins a part of its own
MANY_ITEM_LINES: Final = 12  # of a part; then the next item begins a new part, as lists are drawn whole

_FENCE = re.compile(r"^(?P<indent>\s*)(?P<marks>`{3,}|~{3,})(?P<info>.*)$")
_CODE = re.compile(r"^(?P<marks>`{3,}|~{3,})[^\n]*\n(?P<code>.*?)^(?P=marks)\s*$", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(r"\s*([-*+]|\d{1,9}[.)])\s")
_WORD = re.compile(r"\w+|[^\w\s]")
_MARKUP: Final = 300  # characters of markup between two words at most, such as the address of a link
_TABLE_RULE = re.compile(r"\|[\s:|-]+\|?\s*$")  # the line under the head of a table


@dataclass(frozen=True, slots=True)
class FinishedBlock:
    """A part of the text that will not change any more."""

    source: str  # Markdown that shows it; where a fence or a table was cut, it is closed and opened again
    characters: int  # of the text that it covers


@dataclass(slots=True)
class GrowingMarkdown:
    """Takes a text as it grows and gives back its finished blocks; the rest is the tail."""

    _block: str = ""  # whole lines of no finished block
    _line: str = ""  # the last line, still growing
    _fence: str = ""  # the line that opened the fence around the end of the text
    _table_head: str = ""  # the first two lines of the table around the end of the text
    _reopen: str = ""  # either again, when it was cut

    @property
    def tail(self) -> str:
        return self._block + self._line

    def finish(self) -> list[FinishedBlock]:
        self._block, self._line = self.tail, ""
        return [self._cut()] if self._block else []

    def feed(self, text: str) -> list[FinishedBlock]:
        self._line += text
        finished: list[FinishedBlock] = []
        while (end := self._line.find("\n") + 1) > 0:
            line, self._line = self._line[:end], self._line[end:]
            if self._is_next_part_of_list(line):
                finished.append(self._cut())
            self._table_head = self._head_of_table(line)
            self._block += line
            if self._is_boundary(line):
                finished.append(self._cut(after=self._seam(line)))
        if len(self._line) > LONG_BLOCK and " " in self._line:
            end = self._line.rindex(" ") + 1
            self._block, self._line = self._block + self._line[:end], self._line[end:]
            finished.append(self._cut(after=self._seam(self._block) or "\n\n"))
        return finished

    def _is_boundary(self, line: str) -> bool:
        mark = _FENCE.match(line.rstrip("\n"))
        if self._fence and mark and _closes(mark, self._fence):
            self._fence = ""
            return not mark["indent"]
        if self._fence:
            return len(self._block) > LONG_BLOCK
        if mark:
            self._fence = line
            return False
        return not line.strip() or self._is_long

    @property
    def _is_long(self) -> bool:
        return len(self._block) > LONG_BLOCK or self._block.count("\n") > MANY_LINES

    def _is_next_part_of_list(self, line: str) -> bool:
        item = not self._fence and _ITEM.match(line)
        return bool(item) and self._block.count("\n") >= MANY_ITEM_LINES * (3 if line[0].isspace() else 1)

    def _head_of_table(self, line: str) -> str:
        if not line.startswith("|"):
            if self._table_head and not self._block:
                self._reopen = ""
            return ""
        before = self._block.rpartition("\n")[0].rpartition("\n")[2] + "\n"
        if not self._table_head and before.startswith("|") and _TABLE_RULE.match(line):
            return before + line
        return self._table_head

    def _seam(self, line: str) -> str:
        """The text that closes a block that was cut."""
        if self._fence:
            mark = _FENCE.match(self._fence)
            assert mark is not None
            newline = "" if line.endswith("\n") else "\n"
            return f"{newline}{mark['indent']}{mark['marks']}\n"
        return "\n" if line.strip() and self._is_long else ""

    def _cut(self, after: str = "") -> FinishedBlock:
        block = FinishedBlock(self._reopen + self._block + after, len(self._block))
        self._block = ""
        self._reopen = self._fence or self._table_head
        return block


def _closes(mark: re.Match[str], opening: str) -> bool:
    opened = _FENCE.match(opening.rstrip("\n"))
    assert opened is not None
    return mark["marks"].startswith(opened["marks"]) and not mark["info"].strip()


def begins_part(before: str, source: str) -> bool:
    """Whether a finished block begins a new part after `before`, so that no part grows long."""
    patience = 2 if source[:1].isspace() else 1  # it belongs to the item before
    return len(before) > patience * LONG_PART or before.count("\n") > patience * MANY_LINES


def parts_of(text: str) -> list[str]:
    """A finished text as the sources of the parts that show it: the same that streaming would have made."""
    growing = GrowingMarkdown()
    parts: list[str] = []
    for block in growing.feed(text) + growing.finish():
        if parts and not begins_part(parts[-1], block.source):
            parts[-1] += block.source
        else:
            parts.append(block.source)
    return parts


def is_list_cut(before: str, source: str) -> bool:
    last_line = before.rstrip().rpartition("\n")[2]
    return bool(_ITEM.match(source) and (last_line[:1].isspace() or _ITEM.match(last_line)))


def places(drawn: str, source: str, start: int) -> Iterator[tuple[int, int, int]]:
    """For each word of drawn Markdown, from `start` in its source on: begin and end, and the begin in the source."""
    for word in _WORD.finditer(drawn):
        at = source.find(word[0], start, start + _MARKUP)
        if at >= 0:
            start = at + len(word[0])
            blank = drawn[word.start() - 1 : word.start()].isspace() and source[at - 1 : at].isspace()
            yield word.start() - blank, word.end(), at - blank


def code_blocks(markdown: str) -> list[str]:
    return [match["code"] for match in _CODE.finditer(markdown)]
