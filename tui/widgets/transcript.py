"""The conversation on the screen: it follows its end until the user scrolls away, and drops old messages."""

from collections.abc import Sequence
from typing import Final

from textual import on
from textual.containers import VerticalScroll
from textual.events import Click
from textual.widget import Widget
from textual.widgets import Static

from localspec.conversations.conversations import StoredMessage
from localspec.display import counted, for_terminal

from .markdown import PlainContainer
from .reply import ReasoningView, ReplyPart, ReplyView

MOST: Final = 20  # limit of shown messages, and of shown notices; beyond it the oldest are removed
NEAR: Final = 0.25  # a part at most this many heights of the view away is drawn as Markdown
FEWEST: Final = 10  # number of messages left after a removal, or shown when a conversation opens


class UserMessage(Static):
    def __init__(self, text: str) -> None:
        text = for_terminal(text)
        super().__init__(folded(text), markup=False, classes="user")
        self._text = text
        self._unfolded = False

    def on_click(self) -> None:
        self._unfolded = not self._unfolded
        self.update(self._text if self._unfolded else folded(self._text))


def folded(text: str) -> str:
    start = "\n".join(text[:4000].splitlines()[:20])
    left = len(text) - len(start)
    return f"{start}\n… {counted(left, 'more character')}" if left else start


class NoticeLine(Static):
    def __init__(self, what: str, hint: str = "", kind: str = "note") -> None:
        super().__init__(for_terminal(f"{what}\n{hint}".rstrip()), markup=False, classes=f"notice -{kind}")


class Transcript(VerticalScroll, PlainContainer):
    def __init__(self) -> None:
        super().__init__(id="transcript", can_focus=False)  # the prompt keeps the focus
        self.thinking_unfolded = False
        self._stored: Sequence[StoredMessage] = ()  # the open conversation's list of messages
        self._first = 0  # index of the first message that is shown
        self._width = 0

    def on_mount(self) -> None:
        self.anchor()
        # Use a timer to find parts near the view, because scrolling to the end may send no event.
        self.set_interval(0.5, self._look)

    async def open(self, messages: Sequence[StoredMessage]) -> None:
        self._stored, self._first = messages, max(0, len(messages) - FEWEST)
        await self.remove_children()
        await self._mark_earlier()
        await self.mount_all(map(view_of, messages[self._first :]))
        self.anchor()

    async def add(self, widget: Widget, before: Widget | None = None) -> None:
        await self.mount(widget, before=before)
        if len(self.children) > MOST and self.max_scroll_y - self.scroll_y <= self.size.height:
            await self._prune()

    def _look(self) -> None:
        self.call_later(self._draw_near_parts)

    async def _draw_near_parts(self) -> None:
        top, height = self.region.y, self.size.height
        near: list[ReplyPart] = []
        far: list[ReplyPart] = []
        for part in (part for reply in self.query_children(ReplyView) for part in reply.finished_parts):
            region = part.region
            is_near = -NEAR * height <= region.bottom - top and region.y - top <= (1 + NEAR) * height
            if region and is_near != part.is_drawn:  # a part without a region is not laid out yet
                (near if is_near else far).append(part)
        if near or far:
            shown = (part for reply in self.query_children(ReplyView) for part in reply.children)
            in_view = (part for part in shown if _place(part) + part.size.height > self.scroll_y)
            kept = None if self._follows_end else next(in_view, None)
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

    def _keep_in_place(self, widget: Widget, y: int) -> None:
        if widget.is_attached and _place(widget) != y and not self._follows_end:
            self.scroll_relative(y=_place(widget) - y, animate=False, immediate=True)

    def on_resize(self) -> None:
        if self.size.width != self._width:
            self._width = self.size.width
            for part in self.query(ReplyPart):
                part.kept_height = 0  # forget the height, because it was measured at the old width
        self.call_after_refresh(self._look)

    def watch_scroll_y(self, old: float, new: float) -> None:
        super().watch_scroll_y(old, new)
        if self._first and old > 0 >= new:
            self.call_later(self._show_earlier)
        self.call_after_refresh(self._look)

    def toggle_thinking(self) -> None:
        self.thinking_unfolded = not self.thinking_unfolded
        for reasoning in self.query(ReasoningView):
            reasoning.unfold(self.thinking_unfolded)

    async def keep(self, count: int) -> None:
        """Remove the messages after the first `count` from the screen; notices stay."""
        await self.remove_children(self._messages[max(0, count - self._first) :])
        self._first = min(self._first, count)
        await self._mark_earlier()

    async def replace_message(self, index: int, widget: Widget) -> None:
        old = self._messages[index - self._first]
        await self.mount(widget, before=old)
        await old.remove()

    @on(Click, ".earlier")
    async def _show_earlier(self) -> None:
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
        """Widgets of the shown messages, without notices."""
        return [child for child in self.children if isinstance(child, UserMessage | ReplyView)]

    @property
    def last_reply(self) -> ReplyView | None:
        return next((one for one in reversed(self._messages) if isinstance(one, ReplyView)), None)

    async def _prune(self) -> None:
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
        await self.query_children(".earlier").remove()
        if self._first:
            text = f"↑ {counted(self._first, 'earlier message')}"
            await self.mount(Static(text, markup=False, classes="earlier"), before=0)


def view_of(message: StoredMessage) -> Widget:
    return UserMessage(message.shown) if message.role == "user" else ReplyView(message)


def _place(part: Widget) -> int:
    """Return the line at which a part begins, counted from the top of the conversation."""
    reply = part.parent
    assert isinstance(reply, Widget)
    return reply.virtual_region.y + part.virtual_region.y
