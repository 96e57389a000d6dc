"""The conversation as it scrolls: follows its end until the person scrolls away; old messages leave the screen."""

from collections.abc import Sequence
from typing import Final

from textual.containers import VerticalScroll
from textual.message import Message as TextualMessage
from textual.widget import Widget
from textual.widgets import Static

from localspec.conversations import StoredMessage
from localspec.terminal_text import for_terminal

from .reply import ReplyView, Segment

FOLD_LINES: Final = 20
FOLD_CHARACTERS: Final = 4000
MOST: Final = 20  # messages, and as many remarks; when there are more, the oldest leave the screen
LOOK_SECONDS: Final = 0.5
NEAR: Final = 0.5  # screens above and below the one that is seen, where every block is shown
FEWEST: Final = 10  # of either that stay then; so many messages does opening a conversation show


class UserMessage(Static):
    """What the person wrote, as written; a click unfolds a long one."""

    def __init__(self, text: str) -> None:
        text = for_terminal(text)
        super().__init__(folded(text), markup=False, classes="user")
        self._text = text
        self._unfolded = False

    def on_click(self) -> None:
        self._unfolded = not self._unfolded
        self.update(self._text if self._unfolded else folded(self._text))


def folded(text: str) -> str:
    """The beginning of a long text, and how much there is more of it."""
    lines = text[:FOLD_CHARACTERS].splitlines()[:FOLD_LINES]
    start = "\n".join(lines)
    return start if len(start) == len(text) else f"{start}\n… {len(text) - len(start):,} more characters"


class Remark(Static):
    """A line of the program itself: an error with its hint, or what a command did."""

    def __init__(self, what: str, hint: str = "", kind: str = "note") -> None:
        super().__init__(for_terminal(f"{what}\n{hint}".rstrip()), markup=False, classes=f"remark -{kind}")


class Earlier(Static):
    """Stands at the top for messages that are not shown; scrolling to it or a click brings some back."""

    def __init__(self, count: int) -> None:
        super().__init__(f"↑ {count} earlier message{'s' * (count > 1)}", markup=False, classes="earlier")

    class Asked(TextualMessage):
        """The person wants to see them."""

    def on_click(self) -> None:
        self.post_message(self.Asked())


class Transcript(VerticalScroll):
    """Shows the last messages of a conversation; the caller owns them."""

    def __init__(self) -> None:
        super().__init__(id="transcript", can_focus=True)
        self.thinking_unfolded = False
        self._first = 0  # index of the first message that is shown
        self._width = 0

    def on_mount(self) -> None:
        self.anchor()
        # Following the end moves the view without telling anyone.
        self.set_interval(LOOK_SECONDS, self.hide_far_blocks)

    async def open(self, messages: Sequence[StoredMessage]) -> None:
        """Show a conversation from its end."""
        self._first = max(0, len(messages) - FEWEST)
        await self.remove_children()
        await self._mark_earlier()
        await self.mount_all(map(view_of, messages[self._first :]))
        self.anchor()

    async def add(self, widget: Widget, before: Widget | None = None) -> None:
        """Put a widget at the end, or before another; the oldest go when there are many."""
        await self.mount(widget, before=before)
        if len(self.children) > MOST and not self._is_scrolled_away:
            await self._prune()

    def hide_far_blocks(self) -> None:
        """Hide the blocks of segments far from view, and show those that come near."""
        top, height = self.region.y, self.size.height
        for reply in self.query_children(ReplyView):
            for segment in reply.finished_segments:
                above, below = segment.region.bottom - top, segment.region.y - top
                segment.show_blocks(-NEAR * height <= above and below <= (1 + NEAR) * height)

    def on_resize(self) -> None:
        """Another width makes other heights, which only blocks that are shown can tell."""
        if self.size.width != self._width:
            self._width = self.size.width
            for segment in self.query(Segment):
                segment.show_blocks(True)
        self.call_after_refresh(self.hide_far_blocks)

    def watch_scroll_y(self, old: float, new: float) -> None:
        super().watch_scroll_y(old, new)
        if self._first and old > 0 >= new:
            self.post_message(Earlier.Asked())
        self.call_after_refresh(self.hide_far_blocks)

    def toggle_thinking(self) -> None:
        """Show or hide the reasoning of every reply, and of those to come."""
        self.thinking_unfolded = not self.thinking_unfolded
        for reply in self.query(ReplyView):
            reply.unfold_thinking(self.thinking_unfolded)

    async def keep(self, count: int) -> None:
        """Take the messages after the first `count` off the screen; remarks stay."""
        await self.remove_children(self._messages[max(0, count - self._first) :])
        self._first = min(self._first, count)
        await self._mark_earlier()

    def index_of(self, view: Widget) -> int:
        """Which message of the conversation a widget shows."""
        return self._first + self._messages.index(view)

    async def replace_message(self, index: int, widget: Widget) -> None:
        """Show a message that is on the screen with another widget."""
        old = self._messages[index - self._first]
        await self.mount(widget, before=old)
        await old.remove()

    async def show_earlier(self, messages: Sequence[StoredMessage]) -> None:
        """Bring back as many earlier messages as opening shows."""
        above = range(max(0, self._first - FEWEST), self._first)
        if not above:
            return
        self._first = above.start
        anchor = next(child for child in self.children if not isinstance(child, Earlier))
        await self.mount_all(map(view_of, messages[above.start : above.stop]), before=anchor)
        await self._mark_earlier()
        self.scroll_to_widget(anchor, animate=False, top=True)

    @property
    def _is_scrolled_away(self) -> bool:
        return self.max_scroll_y - self.scroll_y > self.size.height

    @property
    def _messages(self) -> list[Widget]:
        """Those that are shown, without remarks."""
        return [child for child in self.children if isinstance(child, UserMessage | ReplyView)]

    async def _prune(self) -> None:
        """Where there are too many messages or remarks, the oldest go; a message takes its remarks along."""
        messages = self._messages
        if len(messages) > MOST:
            first = self.children.index(messages[-FEWEST])
            self._first += len(messages) - FEWEST
            await self.remove_children(self.children[:first])
            await self._mark_earlier()
        remarks = list(self.query_children(Remark))
        if len(remarks) > MOST:
            await self.remove_children(remarks[:-FEWEST])

    async def _mark_earlier(self) -> None:
        """Say at the top how many messages are not shown."""
        await self.query_children(Earlier).remove()
        if self._first:
            await self.mount(Earlier(self._first), before=0)


def view_of(message: StoredMessage) -> Widget:
    """The widget that shows a message."""
    return UserMessage(message.content) if message.role == "user" else ReplyView(message)
