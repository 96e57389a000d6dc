"""The Markdown of replies, cut into blocks that are parsed once; a list is one widget."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain, count, repeat, takewhile
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode
from textual.content import Content
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownBlock, MarkdownFence

# A reply is parsed block by block, and drawn part by part; a part has one or more blocks.
LONG_BLOCK: Final = 3000  # characters; a longer block ends, even inside a paragraph
MANY_LINES: Final = 40  # a block or part with more lines ends
LONG_PART: Final = 1500  # characters; a longer part ends

_FENCE = re.compile(r"^(?P<indent>\s*)(?P<marks>`{3,}|~{3,})(?P<info>.*)$")
_ITEM = re.compile(r"\s*([-*+]|\d{1,9}[.)])\s")
_WORD = re.compile(r"\w+|[^\w\s]")
_MARKUP: Final = 300  # limit of markup characters between two words, for example of a link's address


@dataclass(frozen=True, slots=True)
class FinishedBlock:
    source: str  # the block's Markdown; a code fence is closed even if it continues in the next block
    characters: int  # number of characters that the block takes from the reply's text


@dataclass(slots=True)
class GrowingMarkdown:
    """A Markdown text that grows. `feed` returns newly finished blocks; `tail` is the unfinished rest."""

    _block: str = ""  # the complete lines of the tail
    _line: str = ""  # the last line, which is not complete yet
    _fence: re.Match[str] | None = None  # the line that opened the current code fence; None outside code
    _reopen: str = ""  # the opening line of a cut code fence, repeated in the next block

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
        if self._fence:
            if not (mark and mark["marks"].startswith(self._fence["marks"]) and not mark["info"].strip()):
                return len(self._block) > LONG_BLOCK
            self._fence = None
            return not mark["indent"]
        if mark:
            self._fence = mark
            return False
        # Cut a table only if it is very long, because the rows after the cut have no head.
        return (
            not line.strip() or (self._is_long and not line.startswith("|")) or len(self._block) > LONG_BLOCK
        )

    @property
    def _is_long(self) -> bool:
        return len(self._block) > LONG_BLOCK or self._block.count("\n") > MANY_LINES

    def _is_next_part_of_list(self, line: str) -> bool:
        """Return whether a list of many lines is cut before its next item."""
        item = not self._fence and _ITEM.match(line)
        return bool(item) and self._block.count("\n") >= (36 if line[0].isspace() else 12)

    def _seam(self, line: str) -> str:
        if self._fence:
            newline = "" if line.endswith("\n") else "\n"
            return f"{newline}{self._fence['indent']}{self._fence['marks']}\n"
        return "\n" if line.strip() and self._is_long else ""

    def _cut(self, after: str = "") -> FinishedBlock:
        block = FinishedBlock(self._reopen + self._block + after, len(self._block))
        self._block, self._reopen = "", f"{self._fence[0]}\n" if self._fence else ""
        return block


def begins_part(before: str, source: str) -> bool:
    """Return whether the block `source` begins a new part after the part `before`."""
    # Before an indented block, allow twice the length, because a cut there would split an item of a list.
    patience = 2 if source[:1].isspace() else 1
    return len(before) > patience * LONG_PART or before.count("\n") > patience * MANY_LINES


def parts_of(text: str) -> list[str]:
    """Cut a finished text into parts, at the same places as if the text had grown."""
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


def positions(drawn: str, source: str, start: int) -> Iterator[tuple[int, int, int]]:
    """Yield where each word of `drawn` begins and ends in it, and where it begins in `source`, from `start` on."""
    for word in _WORD.finditer(drawn):
        at = source.find(word[0], start, start + _MARKUP)
        if at >= 0:
            start = at + len(word[0])
            blank = drawn[word.start() - 1 : word.start()].isspace() and source[at - 1 : at].isspace()
            yield word.start() - blank, word.end(), at - blank


class PlainContainer(Widget):
    """A container that renders its background once for all lines, to save time: its children cover every line."""

    def render_lines(self, crop: Region) -> list[Strip]:
        return super().render_lines(Region(crop.x, crop.y, crop.width, min(1, crop.height))) * crop.height


Item = tuple[Content, Content]  # a list's bullet or indent, and the paragraph after it

_HANGING_LIST: Final = "hanging_list"
_PARTS: Final = ("bullet_list", "ordered_list", "list_item", "paragraph")
_IN_HANGING_LISTS: Final = {"inline", *(f"{part}_{side}" for part in _PARTS for side in ("open", "close"))}


class HangingList(MarkdownBlock):
    DEFAULT_CSS = "HangingList { margin: 0 0 1 0; }"

    def __init__(self, markdown: Markdown, token: Token) -> None:
        super().__init__(markdown, token)
        self._items = list(_items(self, SyntaxTreeNode(token.meta["tokens"]).children[0]))
        self._wrapped: list[list[Content]] = []  # for each item wrapped so far, its lines at `_width`
        self._width = 0

    def change(self, change: Callable[[Content], Content]) -> None:
        self._items = [(before, change(text)) for before, text in self._items]
        self._wrapped.clear()
        self.refresh(layout=True)

    async def _update_from_block(self, block: MarkdownBlock) -> None:
        """Show the items of the longer list `block`. The lines of unchanged items are not wrapped again."""
        if not isinstance(block, HangingList):
            await super()._update_from_block(block)
            return
        same = sum(1 for _ in takewhile(_is_same, zip(self._items, block._items, strict=False)))
        self._items = block._items
        del self._wrapped[same:]
        self._copy_context(block)
        self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        if width != self._width:
            self._wrapped.clear()
        if len(self._wrapped) < len(self._items):
            self._width = width
            self._wrapped += [list(hanging_lines(*item, width)) for item in self._items[len(self._wrapped) :]]
            self._content = Content("\n").join(line for lines in self._wrapped for line in lines)
            self.update(self._content, layout=False)
        return sum(map(len, self._wrapped))


class Code(MarkdownFence):
    def notify_style_update(self) -> None:
        if self._content and self._content is not self._highlighted_code:
            MarkdownBlock.notify_style_update(self)  # MarkdownFence's method would remove the tokens' colours
        else:
            super().notify_style_update()


class ReplyMarkdown(Markdown, PlainContainer):
    def __init__(self) -> None:
        super().__init__(open_links=False, parser_factory=_parser)

    def change(self, first: int, change: Callable[[Content], Content]) -> Iterator[None]:
        """Apply `change` to the text of each block from index `first` on; yield before each block."""
        for block in self.children[first:]:
            yield
            for leaf in block.walk_children(MarkdownBlock, with_self=True):
                if isinstance(leaf, HangingList):
                    leaf.change(change)
                elif isinstance(leaf, Code):  # no syntax colours, because they look like token colours
                    leaf.set_content(change(Content(leaf.code.rstrip("\n"))))
                elif leaf._content:
                    leaf.set_content(change(leaf._content))

    def get_block_class(self, block_name: str) -> type[MarkdownBlock]:
        block_class = super().get_block_class(block_name)
        return Code if block_class is MarkdownFence else block_class

    def unhandled_token(self, token: Token) -> MarkdownBlock | None:
        return HangingList(self, token) if token.type == _HANGING_LIST else None


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("gfm-like")
    parser.core.ruler.push("line_breaks", _keep_line_breaks)
    parser.core.ruler.push(_HANGING_LIST, _join_lists)
    return parser


def _keep_line_breaks(state: StateCore) -> None:
    """Turn soft line breaks into hard ones, so that a poem keeps its lines."""
    for child in chain.from_iterable(token.children or () for token in state.tokens):
        if child.type == "softbreak":
            child.type = "hardbreak"


def _join_lists(state: StateCore) -> None:
    """Join the tokens of a list into one token if the list has only paragraphs and nested lists."""
    joined: list[Token] = []
    end = 0
    for start, token in enumerate(tokens := state.tokens):
        if start < end:
            continue
        if token.type in ("bullet_list_open", "ordered_list_open"):
            close = next(n for n in range(start + 1, len(tokens)) if tokens[n].level == token.level)
            whole = tokens[start : close + 1]
            if all(part.type in _IN_HANGING_LISTS for part in whole):
                end = close + 1
                token = Token(_HANGING_LIST, "", 0, map=token.map, level=token.level, meta={"tokens": whole})
        joined.append(token)
    state.tokens = joined


def _items(block: MarkdownBlock, found: SyntaxTreeNode, indent: int = 0, depth: int = 0) -> Iterator[Item]:
    bullets: Iterator[str] = repeat(Markdown.BULLETS[depth % len(Markdown.BULLETS)])
    if found.type == "ordered_list":
        first = int(found.children[0].info)
        width = len(str(first + len(found.children) - 1)) + 3
        bullets = (f" {number}. ".rjust(width) for number in count(first))
    for item in found.children:
        before = Content.styled(" " * indent + next(bullets), "$text-primary")
        if not item.children:
            yield before, Content("")
        for child in item.children:
            if child.type == "paragraph":
                (inline,) = child.children
                assert inline.token is not None
                yield before, block._token_to_content(inline.token)
                before = Content(" " * before.cell_length)
            else:
                yield from _items(block, child, before.cell_length, depth + (found.type == "bullet_list"))


def _is_same(items: tuple[Item, Item]) -> bool:
    return all(old.is_same(new) for old, new in zip(*items, strict=True))


def hanging_lines(before: Content, text: Content, width: int) -> Iterator[Content]:
    for line in text.wrap(max(1, width - before.cell_length)):
        yield before + line
        before = Content(" " * before.cell_length)
