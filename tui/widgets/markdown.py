"""Markdown whose lists are one widget each, where Textual's own take four for every item."""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import count, repeat, takewhile
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from textual.content import Content
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownBlock


class PlainContainer(Widget):
    """All its lines are the same: one is drawn, where Textual draws each, although children cover them."""

    def render_lines(self, crop: Region) -> list[Strip]:
        return super().render_lines(Region(crop.x, crop.y, crop.width, min(1, crop.height))) * crop.height


Item = tuple[Content, Content]  # what stands before a paragraph, and the paragraph

_LIST_OPENS: Final = ("bullet_list_open", "ordered_list_open")
_HANGING_LIST: Final = "hanging_list"
_IN_HANGING_LISTS: Final = frozenset(
    {
        *_LIST_OPENS,
        "bullet_list_close",
        "ordered_list_close",
        "list_item_open",
        "list_item_close",
        "paragraph_open",
        "paragraph_close",
        "inline",
    }
)


class HangingList(MarkdownBlock):
    """A list of paragraphs: each behind its bullet, and so are the lines that it wraps into."""

    DEFAULT_CSS = "HangingList { margin: 0 0 1 0; }"

    def __init__(self, markdown: Markdown, token: Token) -> None:
        super().__init__(markdown, token)
        self._items = list(_items(self, token.meta["tokens"]))
        self._wrapped: list[list[Content]] = []  # the lines of the first items, in this width
        self._width = 0

    async def _update_from_block(self, block: MarkdownBlock) -> None:
        """Become the same list as it has grown; what stays the same is not wrapped again."""
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
            self._wrapped += [list(_lines(*item, width)) for item in self._items[len(self._wrapped) :]]
            self._content = Content("\n").join(line for lines in self._wrapped for line in lines)
            self.update(self._content, layout=False)
        return sum(map(len, self._wrapped))


class ReplyMarkdown(Markdown, PlainContainer):
    """A link is shown before it is opened, by the chat screen."""

    def __init__(self) -> None:
        super().__init__(open_links=False, parser_factory=_parser)

    def unhandled_token(self, token: Token) -> MarkdownBlock | None:
        return HangingList(self, token) if token.type == _HANGING_LIST else None


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("gfm-like")
    parser.core.ruler.push(_HANGING_LIST, _join_lists)
    return parser


def _join_lists(state: StateCore) -> None:
    """Make one token of each list that holds nothing but paragraphs and such lists."""
    joined: list[Token] = []
    end = 0
    for start, token in enumerate(state.tokens):
        if start < end:
            continue
        whole = _list_at(state.tokens, start) if token.type in _LIST_OPENS else []
        if whole and all(part.type in _IN_HANGING_LISTS for part in whole):
            end = start + len(whole)
            joined.append(
                Token(_HANGING_LIST, "", 0, map=token.map, level=token.level, meta={"tokens": whole})
            )
        else:
            joined.append(token)
    state.tokens = joined


def _list_at(tokens: Sequence[Token], start: int) -> Sequence[Token]:
    """The tokens of the list that opens there."""
    level = tokens[start].level
    end = next(n for n in range(start + 1, len(tokens)) if tokens[n].level == level)
    return tokens[start : end + 1]


def _items(block: MarkdownBlock, tokens: Sequence[Token]) -> Iterator[Item]:
    """The paragraphs of a list."""
    lists: list[tuple[Iterator[str], Content]] = []  # those around: their bullets, and what stood before them
    before = Content("")
    depth = 0  # of bulleted lists
    for n, token in enumerate(tokens):
        if token.type in _LIST_OPENS:
            lists.append((_bullets(_list_at(tokens, n), depth), before))
            depth += token.type == "bullet_list_open"
        elif token.type == "list_item_open":
            bullets, outside = lists[-1]
            before = Content.styled(" " * outside.cell_length + next(bullets), "$text-primary")
            if tokens[n + 1].type == "list_item_close":
                yield before, Content("")
        elif token.type == "inline":
            yield before, block._token_to_content(token)
            before = Content(" " * before.cell_length)
        elif token.type in ("bullet_list_close", "ordered_list_close"):
            before = lists.pop()[1]
            depth -= token.type == "bullet_list_close"


def _bullets(tokens: Sequence[Token], depth: int) -> Iterator[str]:
    """What stands before each item of a list with so many bulleted ones around it."""
    if tokens[0].type == "bullet_list_open":
        return repeat(Markdown.BULLETS[depth % len(Markdown.BULLETS)])
    level = tokens[1].level
    items = sum(token.type == "list_item_open" and token.level == level for token in tokens)
    first = int(tokens[1].info)
    width = len(str(first + items - 1)) + 3
    return (f" {number}. ".rjust(width) for number in count(first))


def _is_same(items: tuple[Item, Item]) -> bool:
    return all(old.is_same(new) for old, new in zip(*items, strict=True))


def _lines(before: Content, text: Content, width: int) -> Iterator[Content]:
    for line in text.wrap(max(1, width - before.cell_length)):
        yield before + line
        before = Content(" " * before.cell_length)
