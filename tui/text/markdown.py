"""The Markdown of replies: where a growing text can be cut, so that no block is parsed twice; and its code."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

LONG_BLOCK: Final = 3000  # characters; a block that grows longer is cut inside, for display only
LONG_SEGMENT: Final = 1500  # characters; then the next block begins a Markdown widget of its own

_FENCE = re.compile(r"^(?P<indent>\s*)(?P<marks>`{3,}|~{3,})(?P<info>.*)$")
_CODE = re.compile(r"^(?P<marks>`{3,}|~{3,})[^\n]*\n(?P<code>.*?)^(?P=marks)\s*$", re.MULTILINE | re.DOTALL)
_CONTINUES = re.compile(r"^(\s|[-*+>|]|\d+[.)])")


@dataclass(frozen=True, slots=True)
class Block:
    """A part of the text that will not change any more."""

    source: str  # Markdown that shows it; closes and opens fences where a long one was cut
    characters: int  # of the text that it covers


@dataclass(slots=True)
class GrowingMarkdown:
    """Takes a text as it grows and gives back its finished blocks; the rest is the tail."""

    _block: str = ""  # whole lines of no finished block
    _line: str = ""  # the last line, still growing
    _fence: str = ""  # the line that opened the fence around the end of the text
    _reopen: str = ""  # that line again, when the fence was cut

    @property
    def tail(self) -> str:
        return self._block + self._line

    def feed(self, text: str) -> list[Block]:
        return list(self._feed(text))

    def finish(self) -> list[Block]:
        """Everything that is left."""
        self._block, self._line = self.tail, ""
        return [self._cut()] if self._block else []

    def _feed(self, text: str) -> Iterator[Block]:
        self._line += text
        while (end := self._line.find("\n") + 1) > 0:
            line, self._line = self._line[:end], self._line[end:]
            self._block += line
            if self._is_boundary(line):
                yield self._cut(after=self._seam(line))
        if len(self._line) > LONG_BLOCK and " " in self._line:
            end = self._line.rindex(" ") + 1
            self._block, self._line = self._block + self._line[:end], self._line[end:]
            yield self._cut(after=self._seam(self._block) or "\n\n")

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
        # A table cut in two would lose its head.
        return not line.strip() or (len(self._block) > LONG_BLOCK and not line.lstrip().startswith("|"))

    def _seam(self, line: str) -> str:
        """What ends the block cleanly where it was cut before its own end."""
        if self._fence:
            mark = _FENCE.match(self._fence)
            assert mark is not None
            newline = "" if line.endswith("\n") else "\n"
            return f"{newline}{mark['indent']}{mark['marks']}\n"
        return "\n" if line.strip() and len(self._block) > LONG_BLOCK else ""

    def _cut(self, after: str = "") -> Block:
        block = Block(self._reopen + self._block + after, len(self._block))
        self._block = ""
        self._reopen = self._fence
        return block


def _closes(mark: re.Match[str], opening: str) -> bool:
    opened = _FENCE.match(opening.rstrip("\n"))
    assert opened is not None
    return mark["marks"].startswith(opened["marks"]) and not mark["info"].strip()


def begins_segment(length: int, source: str) -> bool:
    """Whether a finished block goes into a new widget, given the length of what the last widget holds."""
    return length > LONG_SEGMENT and not _CONTINUES.match(source)


def segments(text: str) -> list[str]:
    """A finished text as the sources of the widgets that show it: the same that streaming would have made."""
    growing = GrowingMarkdown()
    parts: list[str] = []
    for block in growing.feed(text) + growing.finish():
        if parts and not begins_segment(len(parts[-1]), block.source):
            parts[-1] += block.source
        else:
            parts.append(block.source)
    return parts


def last_code_block(markdown: str) -> str:
    """The code of the last fenced block; "" when there is none."""
    blocks = [match["code"] for match in _CODE.finditer(markdown)]
    return blocks[-1] if blocks else ""
