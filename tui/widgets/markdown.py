"""Markdown whose lists are one widget each, where Textual's own take four for every item."""

from collections.abc import Callable, Iterator
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


class PlainContainer(Widget):
    """All its lines are the same: one is drawn, where Textual draws each, although children cover them."""

    def render_lines(self, crop: Region) -> list[Strip]:
        return super().render_lines(Region(crop.x, crop.y, crop.width, min(1, crop.height))) * crop.height


Item = tuple[Content, Content]  # what stands before a paragraph, and the paragraph

_LIST_OPENS: Final = ("bullet_list_open", "ordered_list_open")
_HANGING_LIST: Final = "hanging_list"
_PARTS: Final = ("bullet_list", "ordered_list", "list_item", "paragraph")
_IN_HANGING_LISTS: Final = {"inline", *(f"{part}_{side}" for part in _PARTS for side in ("open", "close"))}


class HangingList(MarkdownBlock):
    """A list of paragraphs: each behind its bullet, and so are the lines that it wraps into."""

    DEFAULT_CSS = "HangingList { margin: 0 0 1 0; }"

    def __init__(self, markdown: Markdown, token: Token) -> None:
        super().__init__(markdown, token)
        self._items = list(_items(self, SyntaxTreeNode(token.meta["tokens"]).children[0]))
        self._wrapped: list[list[Content]] = []  # the lines of the first items, in this width
        self._width = 0

    def change(self, change: Callable[[Content], Content]) -> None:
        """Change the text of each item, in turn."""
        self._items = [(before, change(text)) for before, text in self._items]
        self._wrapped.clear()
        self.refresh(layout=True)

    async def _update_from_block(self, block: MarkdownBlock) -> None:
        """Update to the grown list; equal items are not wrapped again."""
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
    """Code in the colours of its syntax, until others are given to it."""

    def notify_style_update(self) -> None:
        if self._content and self._content is not self._highlighted_code:
            MarkdownBlock.notify_style_update(self)  # keeps the others, also with another theme
        else:
            super().notify_style_update()


class ReplyMarkdown(Markdown, PlainContainer):
    """A link is shown before it is opened, by the chat screen."""

    def __init__(self) -> None:
        super().__init__(open_links=False, parser_factory=_parser)

    def change(self, first: int, change: Callable[[Content], Content]) -> Iterator[None]:
        """Change the text of the blocks from the first on, in turn; yields before each of them."""
        for block in self.children[first:]:
            yield
            for leaf in block.walk_children(MarkdownBlock, with_self=True):
                if isinstance(leaf, HangingList):
                    leaf.change(change)
                elif isinstance(leaf, Code):  # the colours of its syntax would be taken for those of origins
                    leaf.set_content(change(Content(leaf.code.rstrip("\n"))))
                elif leaf._content:
                    leaf.set_content(change(leaf._content))

    def get_block_class(self, block_name: str) -> type[MarkdownBlock]:
        found = super().get_block_class(block_name)
        return Code if found is MarkdownFence else found

    def unhandled_token(self, token: Token) -> MarkdownBlock | None:
        return HangingList(self, token) if token.type == _HANGING_LIST else None


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("gfm-like")
    parser.core.ruler.push("line_breaks", _keep_line_breaks)
    parser.core.ruler.push(_HANGING_LIST, _join_lists)
    return parser


def _keep_line_breaks(state: StateCore) -> None:
    """A line of a poem stays a line."""
    for child in chain.from_iterable(token.children or () for token in state.tokens):
        if child.type == "softbreak":
            child.type = "hardbreak"


def _join_lists(state: StateCore) -> None:
    """Make one token of each list that holds only paragraphs and lists."""
    joined: list[Token] = []
    end = 0
    for start, token in enumerate(tokens := state.tokens):
        if start < end:
            continue
        if token.type in _LIST_OPENS:
            close = next(n for n in range(start + 1, len(tokens)) if tokens[n].level == token.level)
            whole = tokens[start : close + 1]
            if all(part.type in _IN_HANGING_LISTS for part in whole):
                end = close + 1
                token = Token(_HANGING_LIST, "", 0, map=token.map, level=token.level, meta={"tokens": whole})
        joined.append(token)
    state.tokens = joined


def _items(block: MarkdownBlock, found: SyntaxTreeNode, indent: int = 0, depth: int = 0) -> Iterator[Item]:
    """The paragraphs of a list, nested in `depth` lists."""
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
