"""The lists over the chat: pairs to use or fetch, and conversations to open or delete."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final, Generic

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import DataTable, Input

from localspec.chat import conversations
from localspec.chat.conversations import Conversation, ConversationList
from localspec.display import counted, size_text
from localspec.errors import LocalspecError

from .commands.base import ASKED_BYTES
from .dialogs import ConfirmDialog, Dialog
from .state.chat import ChatState
from .state.engine import Downloads
from .text.status import pull_status, times_text
from .widgets.table import Item, TextTable

if TYPE_CHECKING:
    from localspec.models.picker import PairRow


class ListDialog(Dialog[str], Generic[Item]):
    """A table whose rows are found by typing their words; other keys move in it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key, f"move('{action}')")
        for key, action in (
            ("up", "cursor_up"),
            ("down", "cursor_down"),
            ("pageup", "page_up"),
            ("pagedown", "page_down"),
            ("ctrl+home", "scroll_top"),
            ("ctrl+end", "scroll_bottom"),
        )
    ]
    detail = "looking…"
    table: TextTable[Item]
    texts: Sequence[tuple[Item, str]] = ()  # all items, each with the words that find it

    def content(self) -> ComposeResult:
        yield Input(placeholder="type to find", compact=True)
        yield self.table

    async def action_move(self, action: str) -> None:
        await self.table.run_action(action)

    @on(Input.Submitted)
    def _enter(self) -> None:
        self.table.action_select_cursor()

    def show_found(self) -> None:
        """Show the items whose text holds the typed words."""
        words = self.query_one(Input).value.casefold().split()
        self.table.show([item for item, text in self.texts if all(word in text.casefold() for word in words)])

    @on(Input.Changed)
    def _typed(self) -> None:
        self.show_found()
        self.table.move_cursor(row=0)


FITS: Final = {"gpu": "on GPU", "part": "partly", "cpu": "on CPU", "no": "no"}


class PairsDialog(ListDialog["PairRow"]):
    """Answers with the name of the pair to load; fetching continues when the dialog closes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+x", "cancel_pull", "stop fetching", priority=True)  # the field would cut
    ]
    BOX_TITLE = "Pairs"
    KEYS = "↵ use or fetch · esc close"

    def __init__(self, downloads: Downloads) -> None:
        super().__init__()
        self._downloads = downloads
        self._rows: Sequence[PairRow] | None = None
        heads = ("pair", "fits", "here", "size", "memory", "use")
        self.table = TextTable(columns, *heads, numbers=("size", "memory"), wide=-1)

    def on_mount(self) -> None:
        self._refresh()
        self.set_interval(0.1, self._refresh)

    def _refresh(self) -> None:
        if self._downloads.rows != self._rows:
            self._rows = self._downloads.rows
            self.texts = [(row, " ".join(columns(row))) for row in self._rows or ()]
            self.show_found()
        self.show_detail(self._detail_now())

    def _detail_now(self) -> str:
        if self._downloads.progress is not None:
            return f"{pull_status(self._downloads.progress)} · ^x stops it"
        if self._rows is None:
            return "looking…"
        return pair_detail(row) if (row := self.table.chosen) else "No pair matches."

    @on(DataTable.RowSelected)
    @work
    async def _take(self) -> None:
        row = self.table.chosen
        if row is None:
            return
        if row.on_disk:
            self.dismiss(row.name)
        elif self._downloads.progress is not None:
            self.notify("One pair at a time; ^x stops the running one.")
        elif row.size_bytes < ASKED_BYTES or await self.app.push_screen_wait(
            ConfirmDialog(f"Fetch {row.name}? {size_text(row.size_bytes)} come from the network.")
        ):
            self.show_remark(Content(""))
            self._downloads.pull(row.name)

    def action_cancel_pull(self) -> None:
        self._downloads.cancel()


def columns(row: "PairRow") -> tuple[str, ...]:
    here = "yes" if row.on_disk else "–"
    name = f"{row.name} ★" if row.recommended else row.name
    return name, FITS[row.fits], here, size_text(row.size_bytes), size_text(row.memory_bytes), row.use


def pair_detail(row: "PairRow") -> str:
    measured = f"measured here: {times_text(row.speedup)}" if row.speedup else ""
    asks = "asks before it fetches it" if row.size_bytes >= ASKED_BYTES else "fetches it"
    here = "Enter uses it." if row.on_disk else f"Enter {asks}."
    here += " ★ Recommended for this machine." * row.recommended
    published = f"published: {row.published}" if row.published else ""
    return "\n".join(part for part in (f"{row.use}. {here}", measured, published) if part)


class ConversationsDialog(ListDialog[Conversation]):
    """Answers with the name of the conversation to open."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+d", "delete", priority=True)]
    BOX_TITLE = "Conversations"
    KEYS = "↵ open · ^d delete · esc close"

    def __init__(self, state: ChatState) -> None:
        super().__init__()
        self._state = state
        heads = ("title", "age", "messages", "pair")
        self.table = TextTable(self._columns, *heads, numbers=heads[1:3], least=24)

    async def on_mount(self) -> None:
        await self._fill()

    async def _fill(self) -> None:
        listing = await asyncio.to_thread(conversations.listing, self._state.setup.conversations)
        shown = tuple(found for found in listing.conversations if found.messages or self._is_open(found))
        self.texts = [(found, _text_of(found)) for found in shown]
        self.show_found()
        self.show_detail(list_detail(replace(listing, conversations=shown)))

    def _is_open(self, conversation: Conversation) -> bool:
        return conversation.path == self._state.conversation.journal.path

    def _columns(self, conversation: Conversation) -> tuple[str, ...]:
        title = "(open) " * self._is_open(conversation) + conversation.title
        age = describe_age(time.time() - conversation.talked)
        return title, age, str(len(conversation.messages)), conversation.pair

    @on(DataTable.RowSelected)
    def _take(self) -> None:
        self.dismiss(self.table.chosen.name if self.table.chosen else None)

    @work
    async def action_delete(self) -> None:
        conversation = self.table.chosen
        if conversation is None:
            return
        if self._is_open(conversation):
            self.notify("This conversation is open; start a new one first.", severity="warning")
        elif await self.app.push_screen_wait(ConfirmDialog(f"Delete “{conversation.title}” for good?")):
            try:
                forget = self._state.prompt_history.forget
                await asyncio.to_thread(conversations.delete, conversation, forget)
            except LocalspecError as error:
                self.notify(f"{error}; {error.hint}.", severity="warning")
            except OSError as error:
                self.notify(f"{conversation.name} cannot be deleted: {error.strerror}.", severity="error")
            await self._fill()


def _text_of(conversation: Conversation) -> str:
    texts = (conversation.title, conversation.pair, *(message.content for message in conversation.messages))
    return "\n".join(texts)


def list_detail(listing: ConversationList) -> str:
    """Notes below the list: it is empty, or files are broken."""
    lines = [] if listing.conversations else ["No conversations yet."]
    lines += [f"skipped: {reason}" for _path, reason in listing.broken[:3]]
    if len(listing.broken) > 3:
        lines.append(f"and {counted(len(listing.broken) - 3, 'more broken file')}")
    return "\n".join(lines)


def describe_age(seconds: float) -> str:
    """An age in its largest unit."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return "now"
