"""A reply on the screen: reasoning that folds, Markdown, a live tail, and a footer with its numbers."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message as TextualMessage
from textual.widget import MountError, Widget
from textual.widgets import Markdown, Static

from localspec.conversations import StoredMessage
from localspec.events import Kind, Piece
from localspec.terminal_text import for_terminal

from ..state.conversation import version_before
from ..state.preferences import TokenStyle
from ..text.markdown import Block, GrowingMarkdown, begins_segment, segments
from .live_tail import LiveTail

OUTCOMES = {
    "cancelled": "stopped",
    "length": "cut at the limit",
    "died": "the engine died here",
    "failed": "ended by an error",
    "unsaved": "NOT SAVED",
}


class Segment(Markdown):
    """A stretch of a reply; far from view it hides its blocks, as Textual lays out every displayed widget."""

    def __init__(self, source: str | None = None) -> None:
        super().__init__(source, open_links=False)  # the chat screen asks first
        self._shows_blocks = True

    def show_blocks(self, shown: bool) -> None:
        """Show or hide the blocks at the same height; hide only where nothing is appended any more."""
        if shown == self._shows_blocks or not (shown or self.outer_size.height):
            return
        self._shows_blocks = shown
        self.styles.height = "auto" if shown else self.outer_size.height
        for block in self.children:
            block.display = shown


class ReplyView(Vertical):
    """Grows while tokens come, or shows a finished reply at once; few widgets, as each costs at every layout."""

    def __init__(self, message: StoredMessage | None = None, *, unfolded: bool = False) -> None:
        super().__init__(classes="reply")
        self._message = message
        self._markdown = GrowingMarkdown()
        self._segment_length = 0
        self._unfolded = unfolded
        self._thinking: Thinking | None = None
        self._tail: LiveTail | None = None

    def compose(self) -> ComposeResult:
        if self._message is None:
            self._tail = LiveTail()
            yield self._tail
            return
        if self._message.reasoning:
            self._thinking = Thinking(self._unfolded)
            yield self._thinking
        for source in segments(self._message.content):
            yield Segment(for_terminal(source))
        yield Footer(self._message)

    def on_mount(self) -> None:
        if self._message is not None:
            self._close(self._message)

    async def grow(self, pieces: Iterable[Piece], style: TokenStyle, rejected: Iterable[str] = ()) -> None:
        """Show new pieces; finished blocks move from the tail into Markdown."""
        assert self._tail is not None, "a finished reply does not grow"
        answer = [piece for piece in pieces if piece.kind is Kind.ANSWER]
        await self._think([piece for piece in pieces if piece.kind is Kind.REASONING])
        if answer and self._thinking is not None:
            self._thinking.end()
        self._tail.grow(answer)
        for block in self._markdown.feed("".join(piece.text for piece in answer)):
            self._tail.drop(block.characters)
            await self._add(block)
        self._tail.show(style, rejected)

    async def finish(self, message: StoredMessage) -> None:
        """Show the rest as Markdown, and the numbers."""
        for block in self._markdown.finish():
            await self._add(block)
        if self._tail is not None:
            await self._tail.remove()
        await self.mount(Footer(message))
        self._close(message)

    @property
    def finished_segments(self) -> list[Segment]:
        """Those that nothing is appended to any more."""
        segments = list(self.query_children(Segment))
        return segments if self._message is not None else segments[:-1]

    def unfold_thinking(self, unfolded: bool) -> None:
        self._unfolded = unfolded
        if self._thinking is not None:
            self._thinking.unfold(unfolded)

    async def _think(self, pieces: list[Piece]) -> None:
        if pieces and self._thinking is None:
            self._thinking = Thinking(self._unfolded)
            await self.mount(self._thinking, before=0)
        if pieces and self._thinking is not None:
            self._thinking.grow(pieces)

    async def _add(self, block: Block) -> None:
        documents = self.query_children(Segment)
        if not documents or begins_segment(self._segment_length, block.source):
            self._segment_length = 0
            document = Segment()
            await self.mount(document, before=self._tail)
        else:
            document = documents.last()
        self._segment_length += len(block.source)
        # A program that is leaving takes its widgets down in the middle of this.
        with suppress(MountError):
            # Only `append`: after a source given to Markdown itself, it would overwrite the last block.
            await document.append(for_terminal(block.source))

    def _close(self, message: StoredMessage) -> None:
        self._message = message
        if self._thinking is not None:
            self._thinking.finish(message.reasoning, message.reasoning_tokens)
        self.add_class("-finished")


class Footer(Static):
    """Which version of a reply it is, how it ended and what it cost; a click shows the version before."""

    def __init__(self, message: StoredMessage) -> None:
        super().__init__(footer(message), markup=False, classes="footer")
        self._message = message

    @dataclass
    class VersionAsked(TextualMessage):
        """The person wants to see another version of a reply."""

        reply: Widget
        version: int

    def on_click(self) -> None:
        if self._message.versions and isinstance(self.parent, Widget):
            self.post_message(self.VersionAsked(self.parent, version_before(self._message)))


class Thinking(Vertical):
    """The reasoning of a reply: one line that says how long it is, and the text below when unfolded."""

    def __init__(self, unfolded: bool) -> None:
        super().__init__(classes="thinking -unfolded" if unfolded else "thinking")
        self._text: list[str] = []
        self._tokens = 0
        self._running = True
        self._head = Static(markup=False, classes="head")
        self._body = Static(markup=False, classes="thought")

    def compose(self) -> ComposeResult:
        yield self._head
        yield self._body

    def grow(self, pieces: list[Piece]) -> None:
        self._text += [piece.text for piece in pieces]
        self._tokens += len(pieces)
        self._show()

    def end(self) -> None:
        """The answer has begun."""
        if self._running:
            self._running = False
            self._show()

    def finish(self, text: str, tokens: int) -> None:
        self._running = False
        self._text, self._tokens = [text], tokens
        self._show()

    def unfold(self, unfolded: bool) -> None:
        self.set_class(unfolded, "-unfolded")
        self._show()

    def on_click(self) -> None:
        self.unfold(not self.has_class("-unfolded"))

    def _show(self) -> None:
        mark = "▾" if self.has_class("-unfolded") else "▸"
        verb = "thinking" if self._running else "thought for"
        self._head.update(f"{mark} {verb} {self._tokens:,} tokens")
        if self.has_class("-unfolded"):
            self._body.update(for_terminal("".join(self._text).strip()))


def footer(message: StoredMessage) -> Content:
    """What the dim line under a reply says."""
    parts = [f"‹{message.version + 1}/{len(message.versions)}›"] if message.versions else []
    parts += [OUTCOMES[message.outcome]] if message.outcome in OUTCOMES else []
    if numbers := message.numbers:
        parts += [
            f"{numbers.tokens:,} tokens",
            f"{numbers.seconds:.1f} s",
            f"{numbers.tokens_per_second:.1f} tok/s",
        ]
        if numbers.drafted:
            parts += [
                f"{numbers.acceptance_rate:.0%} accepted",
                f"{numbers.mean_accepted_length:.1f} per pass",
            ]
        if numbers.speedup is not None:
            parts.append(f"{numbers.speedup:.2f}x plain")
    return Content(" · ".join(parts))
