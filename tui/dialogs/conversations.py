"""Earlier conversations: find one, open, rename, export or delete it."""

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine
from pathlib import Path
from typing import Any, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Input

from localspec.chat import conversations
from localspec.chat.conversations import Conversation, ConversationList
from localspec.display import line_for_terminal
from localspec.errors import LocalspecError

from ..state.conversation import NotExported, OpenConversation, export_markdown
from .small import ConfirmDialog, Dialog, TextTable


class ConversationsDialog(Dialog[str]):
    """Answers with the name of the conversation to open."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "find", "find"),
        Binding("r", "rename", "rename"),
        Binding("d", "delete", "delete"),
        Binding("e", "export", "export"),
    ]
    AUTO_FOCUS = "TextTable"
    detail = "looking…"
    BOX_TITLE = "Conversations"
    KEYS = "↵ open · / find · r rename · e export as Markdown · d delete · esc close"

    def __init__(
        self, folder: Path, current: OpenConversation, forget: Callable[[Collection[str]], object]
    ) -> None:
        """`forget` gets the prompts of a conversation before it is deleted."""
        super().__init__()
        self._forget = forget
        self._folder = folder
        self._current = current
        self._texts: list[tuple[Conversation, str]] = []

    def content(self) -> ComposeResult:
        field = Input(placeholder="words that it holds", compact=True)
        field.display = False
        yield field
        yield TextTable(self._columns, "title", "pair", "messages", "age")

    async def on_mount(self) -> None:
        self._table: TextTable[Conversation] = self.query_one(TextTable)
        await self._fill()

    async def _fill(self) -> None:
        listing = await asyncio.to_thread(conversations.listing, self._folder)
        self._texts = [(found, _text_of(found)) for found in listing.conversations]
        self._show_found()
        self.show_detail(list_detail(listing))

    @on(Input.Changed)
    def _show_found(self) -> None:
        words = self.query_one(Input).value.casefold().split()
        self._table.show([found for found, text in self._texts if all(word in text for word in words)])

    def action_find(self) -> None:
        field = self.query_one(Input)
        field.display = True
        field.focus()

    @on(Input.Submitted)
    def _leave_field(self) -> None:
        self._table.focus()

    @work
    async def action_rename(self) -> None:
        conversation = self._table.chosen
        if conversation is None:
            return
        title: str | None = await self.app.push_screen_wait(TitleDialog(conversation.title))
        if title is None:
            return
        if conversation.path == self._current.journal.path:
            renaming = self._current.rename(title)
        else:
            renaming = asyncio.to_thread(conversations.rename, conversation.path, title)
        await self._change(renaming, f"{conversation.name} cannot be renamed")

    def _columns(self, conversation: Conversation) -> tuple[str, ...]:
        title = ("(open) " if conversation.path == self._current.journal.path else "") + conversation.title
        age = describe_age(time.time() - conversation.talked)
        return title, conversation.pair, str(len(conversation.messages)), age

    @on(DataTable.RowSelected)
    def _take(self) -> None:
        self.dismiss(self._table.chosen.name if self._table.chosen else None)

    def action_export(self) -> None:
        conversation = self._table.chosen
        if conversation is None:
            return
        try:
            path = export_markdown(conversation, f"{conversation.name}.md")
        except NotExported as error:
            self.notify(f"{error}; {error.hint}.", severity="error")
        else:
            self.notify(f"Exported to {path}.")

    @work
    async def action_delete(self) -> None:
        conversation = self._table.chosen
        if conversation is None:
            return
        if conversation.path == self._current.journal.path:
            self.notify("This conversation is open; start a new one first.", severity="warning")
        elif await self.app.push_screen_wait(ConfirmDialog(f"Delete “{conversation.title}” for good?")):
            deleting = asyncio.to_thread(conversations.delete, conversation, self._forget)
            await self._change(deleting, f"{conversation.name} cannot be deleted")

    async def _change(self, changing: Coroutine[Any, Any, None], failure: str) -> None:
        try:
            await changing
        except LocalspecError as error:
            self.notify(f"{error}; {error.hint}.", severity="warning")
        except OSError as error:
            self.notify(f"{failure}: {error.strerror}.", severity="error")
        await self._fill()


class TitleDialog(Dialog[str]):
    """Answers with a title."""

    BOX_TITLE = "Title"
    KEYS = "↵ keep · esc leave as it was"

    def content(self) -> ComposeResult:
        yield Input(line_for_terminal(str(self.text)), compact=True)

    @on(Input.Submitted)
    def _take(self, event: Input.Submitted) -> None:
        self.dismiss(" ".join(event.value.split()))


def _text_of(conversation: Conversation) -> str:
    texts = (conversation.title, conversation.pair, *(message.content for message in conversation.messages))
    return "\n".join(texts).casefold()


def list_detail(listing: ConversationList) -> str:
    """Notes below the list: it is empty, or files are broken."""
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
