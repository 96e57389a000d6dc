"""Earlier conversations: open one, export one, delete one."""

import asyncio
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Static

from localspec import conversations
from localspec.conversations import Conversation, ConversationInUse, Listing
from localspec.terminal_text import for_terminal

from ..state import export
from ..widgets.text_table import TextTable
from .base import ConfirmDialog, Dialog


class ConversationsDialog(Dialog[str]):
    """Answers with the name of the conversation to open."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d", "delete", "delete"),
        Binding("e", "export", "export"),
    ]
    BOX_TITLE = "Conversations"
    KEYS = "↵ open · e export as Markdown · d delete · esc close"

    def __init__(self, folder: Path, current: Path, forget: Callable[[Collection[str]], object]) -> None:
        """`current` is open here; `forget` is given what was typed into a conversation before it is deleted."""
        super().__init__()
        self._forget = forget
        self._folder = folder
        self._current = current
        self._listing = Listing(())

    def content(self) -> ComposeResult:
        yield TextTable("title", "pair", "messages", "age")

    def foot(self) -> ComposeResult:
        yield Static("looking…", markup=False, classes="detail")

    async def on_mount(self) -> None:
        await self._fill()

    async def _fill(self) -> None:
        self._listing = await asyncio.to_thread(conversations.listing, self._folder)
        self.query_one(TextTable).show([self._columns(found) for found in self._listing.conversations])
        detail, text = self.query_one(".detail", Static), describe(self._listing)
        detail.update(for_terminal(text))
        detail.display = bool(text)

    def _columns(self, conversation: Conversation) -> tuple[str, ...]:
        title = ("(open) " if conversation.path == self._current else "") + conversation.title
        age = describe_age(time.time() - conversation.talked)
        return title, conversation.pair, str(len(conversation.messages)), age

    @property
    def _chosen(self) -> Conversation | None:
        found = self._listing.conversations
        return found[index] if 0 <= (index := self.query_one(TextTable).cursor_row) < len(found) else None

    @on(DataTable.RowSelected)
    def _take(self) -> None:
        self.dismiss(self._chosen.name if self._chosen else None)

    def action_export(self) -> None:
        conversation = self._chosen
        if conversation is None:
            return
        try:
            path = export.export(conversation, f"{conversation.name}.md")
        except export.NotExported as error:
            self.notify(f"{error}; {error.hint}.", severity="error")
        else:
            self.notify(f"Exported to {path}.")

    @work
    async def action_delete(self) -> None:
        conversation = self._chosen
        if conversation is None:
            return
        if conversation.path == self._current:
            self.notify("This conversation is open; start a new one first.", severity="warning")
        elif await self.app.push_screen_wait(ConfirmDialog(f"Delete “{conversation.title}” for good?")):
            try:
                await asyncio.to_thread(conversations.delete, conversation, self._forget)
            except ConversationInUse as error:
                self.notify(f"{error}; {error.hint}.", severity="warning")
            except OSError as error:
                self.notify(f"{conversation.name} cannot be deleted: {error.strerror}.", severity="error")
            await self._fill()


def describe(listing: Listing) -> str:
    """What the list cannot show: that it is empty, or which files are broken."""
    lines = [] if listing.conversations else ["No conversations yet."]
    lines += [f"skipped: {reason}" for _path, reason in listing.broken[:3]]
    if len(listing.broken) > 3:
        lines.append(f"and {len(listing.broken) - 3} more broken files")
    return "\n".join(lines)


def describe_age(seconds: float) -> str:
    """An age in its largest unit."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return "now"
