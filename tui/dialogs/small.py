"""What all dialogs share, and the small ones: a question, a choice, a link, a comparison, and help."""

import asyncio
import re
import webbrowser
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import ClassVar, Final, Generic, TypeVar
from urllib.parse import quote, urlsplit

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import DataTable, OptionList, Static

from localspec.display import for_terminal
from localspec.engine.messages import Compared

from ..commands.table import COMMANDS
from ..widgets.reply import LEGEND

NARROWEST: Final = 12  # cells of the first column of a table
Answer = TypeVar("Answer")
Item = TypeVar("Item")


class Dialog(ModalScreen[Answer]):
    """A titled box over the chat with content, a detail, and the keys that it takes; Esc leaves it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "close")]
    BOX_TITLE: str
    KEYS: str
    detail = ""  # stands above the keys, always in view

    def __init__(self, text: str | Content = "") -> None:
        super().__init__()
        self.text = for_terminal(text) if isinstance(text, str) else text

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = self.BOX_TITLE
            yield from self.content()
            with Vertical(classes="foot"):
                detail = Static(for_terminal(self.detail), markup=False, classes="detail")
                detail.display = bool(self.detail)
                yield detail
                yield Static(self.KEYS, markup=False, classes="keys")

    def content(self) -> ComposeResult:
        """What may take all the room that the foot leaves."""
        with VerticalScroll():
            yield Static(self.text, markup=False)

    def show_detail(self, text: str) -> None:
        line = self.query_one(".detail", Static)
        line.update(for_terminal(text))
        line.display = bool(text)


class TextTable(DataTable[Text], Generic[Item]):
    """A row of text for each item, shown as it is: a plain string would be read as markup."""

    def __init__(self, columns: Callable[[Item], Sequence[str]], *heads: str) -> None:
        """`columns` gives the cells of an item."""
        super().__init__(cursor_type="row", zebra_stripes=True)
        self._columns_of = columns
        self._heads = heads
        self._items: Sequence[Item] = ()
        self._drawn_width = 0

    def show(self, items: Sequence[Item]) -> None:
        """Show these; the cursor stays on its line."""
        self._items = items
        if self.size.width:
            self._draw()

    @property
    def chosen(self) -> Item | None:
        return self._items[self.cursor_row] if 0 <= self.cursor_row < len(self._items) else None

    def on_resize(self) -> None:
        if self.size.width != self._drawn_width:
            self._draw()
        self.move_cursor(row=self.cursor_row)  # a detail that grew may cover it

    def _draw(self) -> None:
        self._drawn_width = self.size.width
        rows = [[_cell(text) for text in self._columns_of(item)] for item in self._items]
        cursor = self.cursor_row
        self.clear(columns=True)
        for head, width in zip(self._heads, self._widths(rows), strict=True):
            self.add_column(head, width=width)
        self.add_rows(rows)
        self.move_cursor(row=cursor)

    def _widths(self, rows: Sequence[Sequence[Text]]) -> list[int]:
        """Width in cells, without the padding."""
        columns = zip(map(Text, self._heads), *rows, strict=True)
        first, *others = (max(cell.cell_len for cell in column) for column in columns)
        taken = sum(others) + 2 * self.cell_padding * len(self._heads) + self.styles.scrollbar_size_vertical
        return [max(NARROWEST, min(first, self.size.width - taken)), *others]


def _cell(text: str) -> Text:
    return Text(for_terminal(text), no_wrap=True, overflow="ellipsis")


class ConfirmDialog(Dialog[bool]):
    """Yes or no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "yes"),
        Binding("n", "dismiss", "no"),
    ]
    BOX_TITLE = "Sure?"
    KEYS = "y yes · n no"


class ThemeDialog(Dialog[str]):
    """Answers with the name of a theme; tries out each that is highlighted."""

    BOX_TITLE = "Theme"
    KEYS = "↑ ↓ try · ↵ keep · esc leave as it was"

    def content(self) -> ComposeResult:
        names = sorted(self.app.available_themes)
        themes = OptionList(*names)
        themes.highlighted = names.index(self.app.theme)
        yield themes

    @on(OptionList.OptionHighlighted)
    def _highlighted(self, event: OptionList.OptionHighlighted) -> None:
        self.app.theme = str(event.option.prompt)

    @on(OptionList.OptionSelected)
    def _take(self) -> None:
        self.dismiss(self.app.theme)


_HOST: Final = re.compile(r"[\w.:-]+", re.ASCII)
_KEPT: Final = "%/:?#[]@!$&'()*+,;=~"  # what an address may hold unquoted


class LinkDialog(Dialog[None]):
    """Shows the whole address of a link; the model chose it, so only the user opens it in the browser."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("o", "open", "open"), Binding("c", "copy", "copy")]
    BOX_TITLE = "Link"
    KEYS = "o open in the browser · c copy the address · esc close"

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._address = address
        self._web_address = web_address(address)
        self.detail = "Not opened from here: only plain http and https addresses are."
        if self._web_address is not None:
            self.detail = f"It leads to {urlsplit(self._web_address).hostname}."

    @work
    async def action_open(self) -> None:
        if self._web_address is None:
            self.notify(self.detail, severity="warning")
            return
        # Some systems wait for the browser.
        try:
            await asyncio.to_thread(self.app.open_url, self._web_address)
        except (OSError, webbrowser.Error) as error:
            self.notify(f"The browser cannot be opened: {error}.", severity="error")
        else:
            self.dismiss()

    def action_copy(self) -> None:
        self.app.copy_to_clipboard(self._address)
        self.notify("Copied, if your terminal allows it (OSC 52).")


def web_address(text: str) -> str | None:
    """An unquoted address as a browser may be given it; None unless it is http or https to a host named plainly."""
    address = quote(text, safe=_KEPT)
    try:
        parts = urlsplit(address)
        host, _port = parts.hostname or "", parts.port
    except ValueError:
        return None
    plain = parts.scheme in ("http", "https") and _HOST.fullmatch(host) and "@" not in parts.netloc
    return address if plain else None


class ComparisonDialog(Dialog[None]):
    """The same reply with and without drafting, in numbers and a sentence."""

    BOX_TITLE = "With and without drafting"
    KEYS = "esc close"

    def __init__(self, compared: Compared) -> None:
        super().__init__()
        self._compared = compared
        self.detail = comparison_text(compared)

    def content(self) -> ComposeResult:
        table: DataTable[str] = DataTable(cursor_type="none")
        table.add_columns("", "tokens", "seconds", "tok/s", "accepted", "per pass")
        for name, reply in (("drafting", self._compared.drafted), ("plain", self._compared.plain)):
            stats = reply.stats
            speeds = f"{stats.emitted:,}", f"{stats.decode_seconds:.2f}", f"{stats.tokens_per_second:.1f}"
            accepted = f"{stats.acceptance_rate:.0%}" if stats.drafted else "–"
            table.add_row(name, *speeds, accepted, f"{stats.mean_accepted_length:.2f}")
        yield table


def comparison_text(compared: Compared) -> str:
    """How much faster it was, whether the texts agree, and if not, at which token they part."""
    found = compared.difference
    if found is None:
        return compared.verdict
    gap = "" if found.logit_gap is None else f", the likeliest two {found.logit_gap:.4f} logits apart"
    drafted, plain = found.drafted or "the end", found.plain or "the end"
    return f"{compared.verdict}\n\nToken {found.position + 1:,}: {drafted!r} with drafting, {plain!r} without{gap}."


_TYPING = (
    ("enter", "Send"),
    ("shift+enter, ^j", "New line (not every terminal tells Shift+Enter)"),
    ("up, down", "Earlier prompts, from the first or last line"),
    ("page up, page down", "Scroll the conversation"),
    ("^up, ^down", "To the message before or after"),
    ("tab", "Complete a /command"),
    ("^p", "Command palette"),
    ("mouse, ^c", "Select text and copy it"),
    ("^c", "Stop the reply"),
    ("^d", "Leave, from an empty prompt"),
)


class HelpDialog(Dialog[None]):
    """Keys, commands, and where files live; made from the command table, so it cannot fall behind."""

    BOX_TITLE = "Help"
    KEYS = "↑ ↓ scroll · esc close"


def help_page(folder: Path) -> Content:
    lines = [_help_head("typing"), *(_row(key, "", text) for key, text in _TYPING)]
    for area, table in groupby(COMMANDS, key=lambda command: command.area):
        lines += [_help_head(area), *(_row(f"/{c.usage}", c.key_label, c.help) for c in table)]
    lines += [_help_head("tokens in the live text"), Content("  ") + LEGEND]
    place = for_terminal(page_folder(folder))
    lines += [_help_head("files"), Content(f"  Conversations, prompts and choices: {place}")]
    return Content("\n").join(lines)


def page_folder(folder: Path) -> str:
    """The folder as people write it."""
    home = Path.home()
    return f"~/{folder.relative_to(home)}" if folder.is_relative_to(home) else str(folder)


def _help_head(title: str) -> Content:
    return Content(f"\n{title}").stylize("bold $primary")


def _row(usage: str, key: str, text: str) -> Content:
    return Content.assemble("  ", (f"{usage:<28}", "bold"), f"{key:<5}", text)
