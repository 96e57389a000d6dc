"""A reply on the screen: folded reasoning, Markdown, a live tail, and a footer."""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Final

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content, Span
from textual.geometry import Size
from textual.widget import MountError
from textual.widgets import Static

from localspec.conversations.conversations import StoredMessage
from localspec.display import counted, for_terminal
from localspec.events import Kind, Origin, Piece, Source

from .. import status
from .markdown import (
    FinishedBlock,
    GrowingMarkdown,
    PlainContainer,
    ReplyMarkdown,
    begins_part,
    is_list_cut,
    parts_of,
    positions,
)

STYLES: Final[dict[str, str]] = {  # tui/app.py defines the colours
    Origin.ACCEPTED: "$origin-text on $origin-accepted",
    Origin.FIX: "underline $origin-text on $origin-corrected",
    Origin.BONUS: "bold $origin-text on $origin-bonus",
    Origin.FORCED: "reverse",
}
_COPIED: Final = "italic"
COPYING: Final = frozenset({Source.LOOKUP, Source.PREDICTION})  # sources that copy tokens from a text

LEGEND: Final = Content(" ").join(
    Content.styled(f" {words} ", look)
    for words, look in (
        ("accepted draft token", STYLES[Origin.ACCEPTED]),
        ("copied", f"{_COPIED} {STYLES[Origin.ACCEPTED]}"),
        ("corrected", STYLES[Origin.FIX]),
        ("bonus", STYLES[Origin.BONUS]),
    )
)


class LiveTail(Static):
    def __init__(self) -> None:
        super().__init__(markup=False, classes="tail")
        self._pieces: deque[Piece] = deque()
        self._height = 0  # height of the tail when it was last drawn, in lines

    def grow(self, pieces: Iterable[Piece]) -> None:
        self._pieces.extend(pieces)

    def take(self, characters: int) -> Iterator[Piece]:
        while characters > 0:
            piece = self._pieces.popleft()
            if len(piece.text) > characters:
                self._pieces.appendleft(replace(piece, text=piece.text[characters:]))
                piece = replace(piece, text=piece.text[:characters])
            characters -= len(piece.text)
            yield piece

    def show(self, coloured: bool, rejected: Iterable[str] = ()) -> None:
        text = "".join(piece.text for piece in self._pieces)
        content = Content(for_terminal(text), list(_spans(self._pieces)) if coloured else None)
        if coloured:
            content += Content(for_terminal("".join(rejected))).stylize("dim strike")
        content += "▌"
        # Request a layout only if the height changed, because the layout of a conversation is slow.
        height = content.get_height({}, self.content_size.width) if self.content_size.width else 0
        self.update(content, layout=height != self._height)
        self._height = height


def _spans(pieces: Iterable[Piece]) -> Iterable[Span]:
    start = 0
    for piece in pieces:
        end = start + len(piece.text)
        if end > start and (look := style_of(piece)):
            yield Span(start, end, look)
        start = end


def style_of(piece: Piece) -> str:
    """Return the Textual style of a piece; "" for a piece of plain decoding."""
    look = STYLES.get(piece.origin, "")
    is_copied = piece.origin is Origin.ACCEPTED and piece.source in COPYING
    return f"{look} {_COPIED}".lstrip() if is_copied else look


class ReasoningView(Vertical):
    """A view of a reply's reasoning: a line with the length, and the text if the view is unfolded."""

    def __init__(self, unfolded: bool) -> None:
        self._head = Static(markup=False, classes="head")
        self._body = Static(markup=False, classes="thought")
        super().__init__(self._head, self._body, classes="thinking -unfolded" if unfolded else "thinking")
        self._text: list[str] = []
        self._tokens = 0
        self._running = True

    def grow(self, pieces: list[Piece]) -> None:
        self._text += [piece.text for piece in pieces]
        self._tokens += len(pieces)
        self._show()

    def end(self) -> None:
        if self._running:
            self._running = False
            self._show()

    def finish(self, text: str, tokens: int) -> None:
        self._text, self._tokens, self._running = [text], tokens, False
        self._show()

    def unfold(self, unfolded: bool) -> None:
        self.set_class(unfolded, "-unfolded")
        self._show()

    def on_click(self) -> None:
        self.unfold(not self.has_class("-unfolded"))

    def _show(self) -> None:
        self.display = any(self._text)
        mark = "▾" if self.has_class("-unfolded") else "▸"
        verb = "thinking" if self._running else "thought for"
        self._head.update(f"{mark} {verb} {counted(self._tokens, 'token')}")
        if self.has_class("-unfolded"):
            self._body.update(for_terminal("".join(self._text).strip()))


class ReplyPart(Static):
    """A part of a reply. It is drawn as Markdown near the view, and as plain text elsewhere."""

    def __init__(self, source: str) -> None:
        self.source = for_terminal(source)
        super().__init__(self.source, markup=False, classes="part")
        self._markdown: ReplyMarkdown | None = None
        self.kept_height = 0  # height of the part's Markdown, which its plain text keeps; 0: not known yet
        self.pieces: list[Piece] = []  # the part's pieces; [] for a reply from the disk
        self.shows_origins = False
        self._starts: list[int] = []  # offset of each coloured block in the text of `pieces`

    @property
    def is_drawn(self) -> bool:
        return self._markdown is not None

    async def append(self, source: str) -> None:
        source = for_terminal(source)
        self.source += source
        if self._markdown is None:
            self.update(self.source)
        else:
            with suppress(MountError):
                await self._markdown.append(source)
                self._colour()

    def _colour(self) -> None:
        """Colour the new blocks, and the last coloured block, because it may have grown."""
        if not self.shows_origins or self._markdown is None:
            return
        text = "".join(piece.text for piece in self.pieces)
        ends = list(accumulate(len(piece.text) for piece in self.pieces))
        first = max(0, len(self._starts) - 1)
        start = self._starts[first] if self._starts else 0
        del self._starts[first:]

        def coloured(content: Content) -> Content:
            nonlocal start
            spans = []
            for begin, end, at in positions(content.plain, text, start):
                start = at + end - begin
                while begin < end:  # join the pieces of a word
                    index = bisect_right(ends, at)
                    until = min(end, begin + ends[index] - at)
                    if look := style_of(self.pieces[index]):
                        spans.append(Span(begin, until, look))
                    begin, at = until, at + until - begin
            return content.add_spans(spans)

        for _ in self._markdown.change(first, coloured):
            self._starts.append(start)

    async def show_origins(self, shown: bool) -> None:
        if shown == self.shows_origins:
            return
        self.shows_origins = shown
        if self.is_drawn:
            await self.undraw()
            await self.draw()

    async def draw(self) -> None:
        if self.is_drawn or not self.is_attached:
            return
        self._markdown = ReplyMarkdown()
        self.kept_height = 0
        self.update("")
        with suppress(MountError):  # the app may be closing
            await self.mount(self._markdown)
            # Do not pass the source to the constructor: the next `append` would then overwrite the last block.
            await self._markdown.append(self.source)
            self._starts.clear()
            self._colour()

    async def undraw(self) -> None:
        if self._markdown is None:
            return
        self.kept_height = self.size.height
        self.update(self.source)
        markdown, self._markdown = self._markdown, None
        await markdown.remove()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return self.kept_height or super().get_content_height(container, viewport, width)

    def end_before(self, source: str) -> None:
        self.set_class(is_list_cut(self.source, source), "-list-goes-on")


# Use few widgets for a reply, because each costs time at every layout.
class ReplyView(Vertical, PlainContainer):
    def __init__(self, message: StoredMessage | None = None, *, unfolded: bool = False) -> None:
        super().__init__(classes="reply")
        self._message = message
        self._markdown = GrowingMarkdown()
        self._reasoning = ReasoningView(unfolded)
        self._tail = LiveTail()
        self.shows_origins = False

    def compose(self) -> ComposeResult:
        yield self._reasoning
        if self._message is None:
            yield self._tail
            return
        parts = [ReplyPart(source) for source in parts_of(self._message.content)]
        for part, following in pairwise(parts):
            part.end_before(following.source)
        yield from parts
        yield _footer(self._message)

    def on_mount(self) -> None:
        if self._message is not None:
            self._close(self._message)

    async def grow(self, pieces: Iterable[Piece], coloured: bool, rejected: Iterable[str] = ()) -> None:
        """Show new pieces, and draw the finished blocks of the text as Markdown."""
        answer = [piece for piece in pieces if piece.kind is Kind.ANSWER]
        if thoughts := [piece for piece in pieces if piece.kind is Kind.REASONING]:
            self._reasoning.grow(thoughts)
        if answer:
            self._reasoning.end()
        self._tail.grow(answer)
        self.shows_origins = coloured
        await self._add(self._markdown.feed("".join(piece.text for piece in answer)))
        self._tail.show(coloured, rejected)

    async def finish(self, message: StoredMessage) -> None:
        await self._add(self._markdown.finish())
        await self._tail.remove()
        await self.mount(_footer(message))
        self._close(message)

    async def show_origins(self, shown: bool) -> None:
        parts = list(self.query_children(ReplyPart))
        self.shows_origins = shown and any(part.pieces for part in parts)
        with self.app.batch_update():
            for part in parts:
                await part.show_origins(self.shows_origins)

    @property
    def finished_parts(self) -> list[ReplyPart]:
        parts = list(self.query_children(ReplyPart))
        return parts if self._message is not None else parts[:-1]

    async def _add(self, blocks: Sequence[FinishedBlock]) -> None:
        """Add finished blocks to the last part, or to a new part if the last one is long."""
        parts = list(self.query_children(ReplyPart))
        part = parts[-1] if parts else None
        for block in blocks:
            if part is None or begins_part(part.source, block.source):
                if part is not None:
                    part.end_before(block.source)
                part = ReplyPart("")
                part.shows_origins = self.shows_origins
                await self.mount(part, before=self._tail)
            part.pieces += self._tail.take(block.characters)
            await part.append(block.source)
        if blocks and part is not None:
            await part.draw()

    def _close(self, message: StoredMessage) -> None:
        self._message = message
        self._reasoning.finish(message.reasoning, message.reasoning_tokens)
        self.add_class("-finished")


def _footer(message: StoredMessage) -> Static:
    return Static(status.footer(message), markup=False, classes="footer")
