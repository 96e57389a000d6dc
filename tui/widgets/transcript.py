"""The conversation as it scrolls: follows its end until the user scrolls away; old messages leave the screen."""

from collections.abc import Sequence
from typing import Final, Literal

from textual import on
from textual.containers import VerticalScroll
from textual.events import Click
from textual.widget import Widget
from textual.widgets import Static

from localspec.chat.conversations import StoredMessage
from localspec.display import counted, for_terminal

from .markdown import PlainContainer
from .reply import ReasoningView, ReplyPart, ReplyView

FOLD_LINES: Final = 20
FOLD_CHARACTERS: Final = 4000
MOST: Final = 20  # messages, and as many notices; when there are more, the oldest leave the screen
LOOK_SECONDS: Final = 0.5
NEAR: Final = 0.25  # screens above and below the one that is seen, where replies are drawn as Markdown
FEWEST: Final = 10  # of either that stay then, and messages shown when a conversation opens


class UserMessage(Static):
    """The user's message as written; a click unfolds a long one."""

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
    return (
        start
        if len(start) == len(text)
        else f"{start}\n… {counted(len(text) - len(start), 'more character')}"
    )


class NoticeLine(Static):
    """A line of the program itself: an error with its hint, or the result of a command."""

    def __init__(self, what: str, hint: str = "", kind: str = "note") -> None:
        super().__init__(for_terminal(f"{what}\n{hint}".rstrip()), markup=False, classes=f"notice -{kind}")


class Transcript(VerticalScroll, PlainContainer):
    """Shows the last messages of a conversation; its first line stands for those before."""

    def __init__(self) -> None:
        super().__init__(id="transcript", can_focus=False)  # keys go to the prompt
        self.thinking_unfolded = False
        self._stored: Sequence[StoredMessage] = ()  # all messages, which change outside
        self._first = 0  # index of the first message that is shown
        self._width = 0

    def on_mount(self) -> None:
        self.anchor()
        # Following the end moves the view without telling anyone.
        self.set_interval(LOOK_SECONDS, self._look)

    async def open(self, messages: Sequence[StoredMessage]) -> None:
        """Show a conversation from its end."""
        self._stored, self._first = messages, max(0, len(messages) - FEWEST)
        await self.remove_children()
        await self._mark_earlier()
        await self.mount_all(map(view_of, messages[self._first :]))
        self.anchor()

    async def add(self, widget: Widget, before: Widget | None = None) -> None:
        """Put a widget at the end, or before another; the oldest go when there are many."""
        await self.mount(widget, before=before)
        if len(self.children) > MOST and self.max_scroll_y - self.scroll_y <= self.size.height:
            await self._prune()

    def _look(self) -> None:
        self.call_later(self._draw_near_parts)

    async def _draw_near_parts(self) -> None:
        """Draw the parts of replies that come near the view, and undraw those that are far from it."""
        top, height = self.region.y, self.size.height
        near: list[ReplyPart] = []
        far: list[ReplyPart] = []
        for part in (part for reply in self.query_children(ReplyView) for part in reply.finished_parts):
            region = part.region
            is_near = -NEAR * height <= region.bottom - top and region.y - top <= (1 + NEAR) * height
            if region and is_near != part.is_drawn:  # one that has no place yet is met again when it has
                (near if is_near else far).append(part)
        if near or far:
            kept = None if self._follows_end else self._first_in_view()
            y = _place(kept) if kept is not None else 0
            with self.app.batch_update():
                for part in near:
                    await part.draw()
                for part in far:
                    await part.undraw()
            if kept is not None:
                self.call_after_refresh(self._keep_in_place, kept, y)

    @property
    def _follows_end(self) -> bool:
        return self._anchored and (not self._anchor_released or self.scroll_y >= self.max_scroll_y)

    def _first_in_view(self) -> Widget | None:
        parts = (part for reply in self.query_children(ReplyView) for part in reply.children)
        return next((part for part in parts if _place(part) + part.size.height > self.scroll_y), None)

    def _keep_in_place(self, widget: Widget, y: int) -> None:
        """The top of the view stays there when text above it changes its height as Markdown."""
        if widget.is_attached and _place(widget) != y and not self._follows_end:
            self.scroll_relative(y=_place(widget) - y, animate=False, immediate=True)

    def on_resize(self) -> None:
        if self.size.width != self._width:
            self._width = self.size.width
            for part in self.query(ReplyPart):
                part.kept_height = 0  # only Markdown can tell the height in another width
        self.call_after_refresh(self._look)

    def watch_scroll_y(self, old: float, new: float) -> None:
        super().watch_scroll_y(old, new)
        if self._first and old > 0 >= new:
            self.call_later(self._show_earlier)
        self.call_after_refresh(self._look)

    def scroll_from_prompt(self, by: Literal["page", "message"], direction: Literal[-1, 1]) -> None:
        """Scroll by a page, or to the previous or next message."""
        if by == "page":
            scroll_page(self, direction)
            return
        tops = [message.virtual_region.y for message in self._messages]
        before, after = [y for y in tops if y < self.scroll_y], [y for y in tops if y > self.scroll_y]
        if direction < 0:
            self.scroll_to(y=before[-1] if before else 0, animate=False, immediate=True)
        elif after and after[0] < self.max_scroll_y:
            self.scroll_to(y=after[0], animate=False, immediate=True)
        else:
            self.anchor()

    def toggle_thinking(self) -> None:
        self.thinking_unfolded = not self.thinking_unfolded
        for reasoning in self.query(ReasoningView):
            reasoning.unfold(self.thinking_unfolded)

    async def keep(self, count: int) -> None:
        """Take the messages after the first `count` off the screen; notices stay."""
        await self.remove_children(self._messages[max(0, count - self._first) :])
        self._first = min(self._first, count)
        await self._mark_earlier()

    async def replace_message(self, index: int, widget: Widget) -> None:
        """Show a message that is on the screen with another widget."""
        old = self._messages[index - self._first]
        await self.mount(widget, before=old)
        await old.remove()

    @on(Click, ".earlier")
    async def _show_earlier(self) -> None:
        """Bring back as many earlier messages as opening shows."""
        above = range(max(0, self._first - FEWEST), self._first)
        if not above:
            return
        self._first = above.start
        anchor = self.children[1]
        await self.mount_all(map(view_of, self._stored[above.start : above.stop]), before=anchor)
        await self._mark_earlier()
        self.scroll_to_widget(anchor, animate=False, top=True)

    @property
    def _messages(self) -> list[Widget]:
        """The shown messages, without notices."""
        return [child for child in self.children if isinstance(child, UserMessage | ReplyView)]

    @property
    def last_reply(self) -> ReplyView | None:
        return next((one for one in reversed(self._messages) if isinstance(one, ReplyView)), None)

    async def _prune(self) -> None:
        """Remove the oldest of too many messages or notices; a message takes its notices along."""
        messages = self._messages
        if len(messages) > MOST:
            first = self.children.index(messages[-FEWEST])
            self._first += len(messages) - FEWEST
            await self.remove_children(self.children[:first])
            await self._mark_earlier()
        notices = list(self.query_children(NoticeLine))
        if len(notices) > MOST:
            await self.remove_children(notices[:-FEWEST])

    async def _mark_earlier(self) -> None:
        """Say at the top how many messages are not shown."""
        await self.query_children(".earlier").remove()
        if self._first:
            text = f"↑ {counted(self._first, 'earlier message')}"
            await self.mount(Static(text, markup=False, classes="earlier"), before=0)


def scroll_page(view: Widget, direction: Literal[-1, 1]) -> None:
    view.scroll_relative(y=direction * max(1, view.size.height - 2), animate=False, immediate=True)


def view_of(message: StoredMessage) -> Widget:
    return UserMessage(message.content) if message.role == "user" else ReplyView(message)


def _place(part: Widget) -> int:
    """The line of the conversation in which a part of a reply begins, at any scroll position."""
    reply = part.parent
    assert isinstance(reply, Widget)
    return reply.virtual_region.y + part.virtual_region.y
