"""The lists over the chat: of pairs to use or download, and of conversations to open or delete."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar, Final, Generic, TypeVar

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import DataTable, Input

from localspec.conversations import conversations
from localspec.conversations.conversations import ListedConversation
from localspec.conversations.database import StoreFailed
from localspec.display import counted, for_terminal, size_text
from localspec.errors import LocalspecError

from .commands.base import ASKED_BYTES
from .dialogs import ConfirmDialog, Dialog
from .state.chat import ChatState
from .state.engine import Downloads
from .status import pull_status, times_text

if TYPE_CHECKING:
    from localspec.loading.pair_info import PairRow


MOST_ROWS: Final = 200  # the list shows at most this many conversations


Item = TypeVar("Item", "PairRow", ListedConversation)


class TextTable(DataTable[Text], Generic[Item], can_focus=False):
    """A table with a row for each item. Cells are Text, because DataTable would parse strings as markup."""

    def __init__(
        self,
        columns: Callable[[Item], Sequence[str]],
        *heads: str,
        numbers: Sequence[str] = (),
        wide: int = 0,
        least: int = 12,
    ) -> None:
        """`columns`: a function from an item to its cells. `numbers`: the heads of right-aligned columns.

        `wide`: the index of the column that shrinks to fit. `least`: the smallest width of this column.
        """
        super().__init__(cursor_type="row", zebra_stripes=True)
        self._columns_of: Callable[[Item], Sequence[str]] = columns
        self._heads = [Text(head, justify="right" if head in numbers else "left") for head in heads]
        self._wide, self._least = wide, least
        self._items: Sequence[Item] = ()
        self._drawn_width = 0

    def show(self, items: Sequence[Item]) -> None:
        """Show the items. The cursor stays on the same item, or in the same row if that item is gone."""
        before, self._items = self.chosen, items
        if self.size.width:
            self._draw()
        row = (n for n, item in enumerate(items) if before is not None and item.name == before.name)
        self.move_cursor(row=next(row, self.cursor_row))

    @property
    def chosen(self) -> Item | None:
        return self._items[self.cursor_row] if 0 <= self.cursor_row < len(self._items) else None

    def on_resize(self) -> None:
        if self.size.width != self._drawn_width:
            self._draw()
        self.move_cursor(row=self.cursor_row)  # scroll to the cursor, because a smaller table may hide it

    def _draw(self) -> None:
        self._drawn_width = self.size.width
        cell = partial(Text, no_wrap=True, overflow="ellipsis")
        sides = [head.justify for head in self._heads]
        texts = (zip(self._columns_of(item), sides, strict=True) for item in self._items)
        rows = [[cell(for_terminal(text), justify=side) for text, side in row] for row in texts]
        cursor, widths = self.cursor_row, self._widths(rows)
        ends = accumulate(width + 2 * self.cell_padding for width in widths)
        # Leave out columns that do not fit as a whole, because a number that is cut off misleads.
        count = sum(end <= self._space for end in ends) or 1
        self.clear(columns=True)
        for head, width in zip(self._heads[:count], widths, strict=False):
            self.add_column(head, width=width)
        self.add_rows(row[:count] for row in rows)
        self.move_cursor(row=cursor)

    def _widths(self, rows: Sequence[Sequence[Text]]) -> list[int]:
        columns = zip(self._heads, *rows, strict=True)
        widths = [max(cell.cell_len for cell in column) for column in columns]
        wide = widths[self._wide]
        taken = sum(widths) - wide + 2 * self.cell_padding * len(widths)
        widths[self._wide] = max(self._least, min(wide, self._space - taken))
        return widths

    @property
    def _space(self) -> int:
        return self.size.width - self.styles.scrollbar_size_vertical


class ListDialog(Dialog[str], Generic[Item]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key, f"move('{action}')")
        for key, action in (
            ("up", "cursor_up"),
            ("down", "cursor_down"),
            ("pageup", "page_up"),
            ("pagedown", "page_down"),
        )
    ]
    detail = "looking…"
    table: TextTable[Item]

    def content(self) -> ComposeResult:
        yield Input(placeholder="type to find", compact=True)
        yield self.table

    async def action_move(self, action: str) -> None:
        await self.table.run_action(action)

    @on(Input.Submitted)
    def _enter(self) -> None:
        self.table.action_select_cursor()

    async def show_found(self, typed: str) -> None: ...

    @on(Input.Changed)
    async def _typed(self) -> None:
        await self.show_found(self.query_one(Input).value)
        self.table.move_cursor(row=0)


class PairsDialog(ListDialog["PairRow"]):
    BINDINGS: ClassVar[list[BindingType]] = [
        # Without priority, ^x would cut the text of the Input.
        Binding("ctrl+x", "cancel_pull", "stop downloading", priority=True)
    ]
    BOX_TITLE = "Pairs"
    KEYS = "↵ use or download · esc close"

    def __init__(self, downloads: Downloads) -> None:
        super().__init__()
        self._downloads = downloads
        self._rows: Sequence[PairRow] | None = None
        heads = ("pair", "fits", "here", "size", "memory", "use")
        self.table = TextTable(columns, *heads, numbers=("size", "memory"), wide=-1)

    async def on_mount(self) -> None:
        await self._refresh()
        self.set_interval(0.1, self._refresh)

    async def _refresh(self) -> None:
        if self._downloads.rows != self._rows:
            self._rows = self._downloads.rows
            await self.show_found(self.query_one(Input).value)
        self.show_detail(self._detail_now())

    async def show_found(self, typed: str) -> None:
        words = typed.casefold().split()
        texts = [(row, " ".join(columns(row)).casefold()) for row in self._rows or ()]
        self.table.show([row for row, text in texts if all(word in text for word in words)])

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
        elif row.trouble:
            self.notify(f"{row.name} {row.trouble}.")
        elif self._downloads.progress is not None:
            self.notify("Another pair is being downloaded; ^x stops it.")
        else:
            asks = ConfirmDialog(f"Download {row.name}, {size_text(row.size_bytes)}?")
            if row.size_bytes < ASKED_BYTES or await self.app.push_screen_wait(asks):
                self.show_notice(Content(""))
                self._downloads.pull(row.name)

    def action_cancel_pull(self) -> None:
        self._downloads.cancel()


def columns(row: "PairRow") -> tuple[str, ...]:
    fits = {"gpu": "on GPU", "part": "partly", "cpu": "on CPU", "no": "no"}[row.fits]
    here = "yes" if row.on_disk else "–"
    fits = "no" if row.trouble else fits
    name = f"{row.name} ★" if row.recommended else row.name
    return name, fits, here, size_text(row.size_bytes), size_text(row.memory_bytes), row.use


def pair_detail(row: "PairRow") -> str:
    measured = f"measured here: {times_text(row.speedup)}" if row.speedup else ""
    asks = ", after a question" * (row.size_bytes >= ASKED_BYTES)
    here = "Enter uses it." if row.on_disk else "" if row.trouble else f"Enter downloads it{asks}."
    here += " ★ Recommended for this machine." * row.recommended
    published = f"published: {row.published}" if row.published else ""
    return "\n".join(part for part in (f"{row.use}. {here}", measured, published) if part)


class ConversationsDialog(ListDialog[ListedConversation]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+d", "delete", priority=True)]
    BOX_TITLE = "Conversations"
    KEYS = "↵ open · ^d delete · esc close"

    def __init__(self, state: ChatState) -> None:
        super().__init__()
        self._state = state
        heads = ("title", "age", "messages", "pair")
        self.table = TextTable(self._columns, *heads, numbers=heads[1:3], least=24)

    async def on_mount(self) -> None:
        await self.show_found("")

    async def show_found(self, typed: str) -> None:
        detail = ""
        try:
            folder = self._state.setup.folder
            rows = await asyncio.to_thread(conversations.listing, folder, typed, MOST_ROWS)
        except StoreFailed as error:
            rows, detail = [], str(error)
        if len(rows) == MOST_ROWS:
            detail = f"The latest {MOST_ROWS} conversations; type words to find an older one."
        elif not rows:
            detail = detail or ("No conversation has these words." if typed else "No conversations yet.")
        self.table.show(rows)
        self.show_detail(detail)

    def _is_open(self, conversation: ListedConversation) -> bool:
        return conversation.name == self._state.conversation.about.name

    def _columns(self, conversation: ListedConversation) -> tuple[str, ...]:
        title = "(open) " * self._is_open(conversation) + conversation.title
        age = describe_age(time.time() - conversation.talked) if conversation.talked else "–"
        return title, age, str(conversation.count), conversation.pair

    @on(DataTable.RowSelected)
    def _take(self) -> None:
        self.dismiss(self.table.chosen.name if self.table.chosen else None)

    @work
    async def action_delete(self) -> None:
        chosen, folder = self.table.chosen, self._state.setup.folder
        if chosen is None:
            return
        if self._is_open(chosen):
            self.notify("This conversation is open; start a new one first.", severity="warning")
            return
        earlier = len(conversations.courses(folder, chosen.name))
        along = f" with {counted(earlier, 'earlier course')}" if earlier else ""
        if await self.app.push_screen_wait(ConfirmDialog(f"Delete “{chosen.title}”{along} for good?")):
            try:
                await asyncio.to_thread(conversations.delete, folder, chosen.name)
            except LocalspecError as error:
                self.notify(f"{error}; {error.hint}.", severity="warning")
            except OSError as error:
                self.notify(f"{chosen.name} cannot be deleted: {error.strerror}.", severity="error")
            self._state.prompt_history.reload()
            await self.show_found(self.query_one(Input).value)


def describe_age(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return "now"
