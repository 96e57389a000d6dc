"""Markdown whose lists are one widget each, where Textual's own take four for every item."""

from collections.abc import Iterator, Sequence

from markdown_it.token import Token
from textual.app import ComposeResult
from textual.content import Content
from textual.geometry import Size
from textual.widgets import Markdown
from textual.widgets._markdown import (
    MarkdownBulletList,
    MarkdownList,
    MarkdownListItem,
    MarkdownOrderedList,
    MarkdownParagraph,
)
from textual.widgets.markdown import MarkdownBlock

from .plain_container import PlainContainer

Item = tuple[Content, Content]  # what stands before a paragraph, and the paragraph


class HangingText(MarkdownBlock):
    """Paragraphs of a list, each behind its bullet, and so are the lines that it wraps into."""

    def __init__(self, markdown: Markdown, token: Token, items: Sequence[Item]) -> None:
        super().__init__(markdown, token)
        self._items = items
        self._width = self._height = 0  # of what is drawn

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        if width != self._width:
            lines = [line for item in self._items for line in _wrapped(*item, width)]
            self._width, self._height = width, len(lines)
            self.update(Content("\n").join(lines), layout=False)
        return self._height


class BulletList(MarkdownBulletList, PlainContainer):
    def compose(self) -> ComposeResult:
        yield from _composed(self, super().compose())


class OrderedList(MarkdownOrderedList, PlainContainer):
    def compose(self) -> ComposeResult:
        yield from _composed(self, super().compose())


class ReplyMarkdown(Markdown, PlainContainer):
    """A link is shown before it is opened, by the chat screen."""

    BLOCKS: dict[str, type[MarkdownBlock]] = {  # noqa: RUF012 - Textual declares it so
        **Markdown.BLOCKS,
        "bullet_list_open": BulletList,
        "ordered_list_open": OrderedList,
    }

    def __init__(self) -> None:
        super().__init__(open_links=False)


def _composed(block: MarkdownList, otherwise: ComposeResult) -> ComposeResult:
    items = list(_items(block))
    if any(item is None for item in items):
        yield from otherwise
        return
    yield HangingText(block._markdown, block._token, [item for item in items if item is not None])
    block._blocks.clear()


def _items(block: MarkdownList, indent: int = 0) -> Iterator[Item | None]:
    """The paragraphs of a list; None for whatever else it holds."""
    numbered = isinstance(block, MarkdownOrderedList)
    items = [item for item in block._blocks if isinstance(item, MarkdownListItem)]
    first = int(items[0].bullet) if numbered and items else 0
    for number, item in enumerate(items, first):
        bullet = f" {number}. ".rjust(len(f"{first + len(items) - 1}") + 3) if numbered else item.bullet
        before = Content.styled(" " * indent + bullet, "$text-primary")
        if not item._blocks:
            yield before, Content("")
        for inside in item._blocks:
            if isinstance(inside, MarkdownParagraph):
                yield before, inside._content
                before = Content(" " * before.cell_length)
            elif isinstance(inside, MarkdownList):
                yield from _items(inside, before.cell_length)
            else:
                yield None


def _wrapped(before: Content, text: Content, width: int) -> Iterator[Content]:
    for line in text.wrap(max(1, width - before.cell_length)):
        yield before + line
        before = Content(" " * before.cell_length)
