"""A reply on the screen: reasoning that folds, Markdown, a live tail, and a footer with its numbers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message as TextualMessage
from textual.widget import Widget
from textual.widgets import Static

from localspec.conversations import StoredMessage
from localspec.events import Kind, Piece

from ..state.conversation import version_before
from ..state.preferences import TokenStyle
from ..text import status
from ..text.markdown import Block, GrowingMarkdown, begins_part, parts_of
from .live_tail import LiveTail
from .plain_container import PlainContainer
from .reasoning import ReasoningView
from .reply_part import ReplyPart


class ReplyView(Vertical, PlainContainer):
    """Grows while tokens come, or shows a finished reply at once; few widgets, as each costs at every layout."""

    def __init__(self, message: StoredMessage | None = None, *, unfolded: bool = False) -> None:
        super().__init__(classes="reply")
        self._message = message
        self._markdown = GrowingMarkdown()
        self._unfolded = unfolded
        self._reasoning: ReasoningView | None = None
        self._tail: LiveTail | None = None

    def compose(self) -> ComposeResult:
        if self._message is None:
            self._tail = LiveTail()
            yield self._tail
            return
        if self._message.reasoning:
            self._reasoning = ReasoningView(self._unfolded)
            yield self._reasoning
        parts = [ReplyPart(source) for source in parts_of(self._message.content)]
        for part, following in pairwise(parts):
            part.is_followed_by(following.source)
        yield from parts
        yield Footer(self._message)

    def on_mount(self) -> None:
        if self._message is not None:
            self._close(self._message)

    async def grow(self, pieces: Iterable[Piece], style: TokenStyle, rejected: Iterable[str] = ()) -> None:
        """Show new pieces; finished blocks move from the tail into Markdown."""
        assert self._tail is not None, "a finished reply does not grow"
        answer = [piece for piece in pieces if piece.kind is Kind.ANSWER]
        await self._think([piece for piece in pieces if piece.kind is Kind.REASONING])
        if answer and self._reasoning is not None:
            self._reasoning.end()
        self._tail.grow(answer)
        blocks = self._markdown.feed("".join(piece.text for piece in answer))
        self._tail.drop(sum(block.characters for block in blocks))
        await self._add(blocks)
        self._tail.show(style, rejected)

    async def finish(self, message: StoredMessage) -> None:
        """Show the rest as Markdown, and the numbers."""
        await self._add(self._markdown.finish())
        if self._tail is not None:
            await self._tail.remove()
        await self.mount(Footer(message))
        self._close(message)

    @property
    def finished_parts(self) -> list[ReplyPart]:
        """Those that nothing is appended to any more."""
        parts = list(self.query_children(ReplyPart))
        return parts if self._message is not None else parts[:-1]

    def unfold_thinking(self, unfolded: bool) -> None:
        self._unfolded = unfolded
        if self._reasoning is not None:
            self._reasoning.unfold(unfolded)

    async def _think(self, pieces: list[Piece]) -> None:
        if pieces and self._reasoning is None:
            self._reasoning = ReasoningView(self._unfolded)
            await self.mount(self._reasoning, before=0)
        if pieces and self._reasoning is not None:
            self._reasoning.grow(pieces)

    async def _add(self, blocks: Sequence[Block]) -> None:
        """Show finished blocks; of many that come at once, the transcript draws those that are near the view."""
        parts = list(self.query_children(ReplyPart))
        part = parts[-1] if parts else None
        for block in blocks:
            if part is None or begins_part(part.source, block.source):
                if part is not None:
                    part.is_followed_by(block.source)
                part = ReplyPart("")
                await self.mount(part, before=self._tail)
            await part.append(block.source)
        if blocks and part is not None:
            await part.draw()

    def _close(self, message: StoredMessage) -> None:
        self._message = message
        if self._reasoning is not None:
            self._reasoning.finish(message.reasoning, message.reasoning_tokens)
        self.add_class("-finished")


class Footer(Static):
    """Which version of a reply it is, how it ended and what it cost; a click shows the version before."""

    def __init__(self, message: StoredMessage) -> None:
        super().__init__(status.footer(message), markup=False, classes="footer")
        self._message = message

    @dataclass
    class VersionAsked(TextualMessage):
        """The person wants to see another version of a reply."""

        reply: Widget
        version: int

    def on_click(self) -> None:
        if self._message.versions and isinstance(self.parent, Widget):
            self.post_message(self.VersionAsked(self.parent, version_before(self._message)))
