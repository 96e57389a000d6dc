"""The small dialogs: a link, the theme, a block to copy, a comparison, and help."""

import asyncio
import re
import webbrowser
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import ClassVar, Final
from urllib.parse import quote, urlsplit

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import DataTable, OptionList, Static
from textual.widgets.option_list import Option

from localspec.display import for_terminal
from localspec.engine.messages import Compared
from localspec.events import Stats

from ..commands.table import COMMANDS
from ..widgets.reply import LEGEND
from .base import Dialog

_HOST: Final = re.compile(r"[\w.:-]+", re.ASCII)
_KEPT: Final = "%/:?#[]@!$&'()*+,;=~"  # what an address may hold unquoted


class LinkDialog(Dialog[None]):
    """Shows the whole address of a link; the model chose it, so only the person opens it in the browser."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("o", "open", "open"), Binding("c", "copy", "copy")]
    BOX_TITLE = "Link"
    KEYS = "o open in the browser · c copy the address · esc close"

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address
        self._web_address = web_address(address)

    def content(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(for_terminal(self._address), markup=False)

    def foot(self) -> ComposeResult:
        yield Static(for_terminal(self._where), markup=False, classes="detail")

    @property
    def _where(self) -> str:
        if self._web_address is None:
            return "Not opened from here: only plain http and https addresses are."
        return f"It leads to {urlsplit(self._web_address).hostname}."

    @work
    async def action_open(self) -> None:
        if self._web_address is None:
            self.notify(self._where, severity="warning")
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


class ThemesDialog(Dialog[str]):
    """Shows each theme while it is highlighted; answers with the name of one."""

    BOX_TITLE = "Theme"
    KEYS = "↑ ↓ try · ↵ keep · esc leave as it was"

    def content(self) -> ComposeResult:
        names = sorted(self.app.available_themes)
        options = OptionList(*(Option(name, id=name) for name in names))
        options.highlighted = names.index(self.app.theme)
        yield options

    @on(OptionList.OptionHighlighted)
    def _try(self, event: OptionList.OptionHighlighted) -> None:
        if event.option.id:
            self.app.theme = event.option.id

    @on(OptionList.OptionSelected)
    def _take(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option.id)


SHOWN: Final = 3  # lines of a block


class BlocksDialog(Dialog[str]):
    """Answers with the text of a block."""

    BOX_TITLE = "Copy"
    KEYS = "↑ ↓ choose · ↵ copy · esc close"

    def __init__(self, blocks: Sequence[str]) -> None:
        super().__init__()
        self._blocks = blocks

    def content(self) -> ComposeResult:
        options = OptionList(*(Option(Content(for_terminal(beginning(block)))) for block in self._blocks))
        options.highlighted = len(self._blocks) - 1
        yield options

    @on(OptionList.OptionSelected)
    def _take(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._blocks[event.option_index])


def beginning(block: str) -> str:
    """The first lines of a block, and how many more it has."""
    lines = block.splitlines()
    more = [f"… {len(lines) - SHOWN} more lines"] if len(lines) > SHOWN else []
    return "\n".join(lines[:SHOWN] + more)


class ComparisonDialog(Dialog[None]):
    """The same reply with and without drafting, in numbers and a sentence."""

    BOX_TITLE = "With and without drafting"
    KEYS = "esc close"

    def __init__(self, compared: Compared) -> None:
        super().__init__()
        self._compared = compared

    def content(self) -> ComposeResult:
        table: DataTable[str] = DataTable(cursor_type="none")
        table.add_columns("", "tokens", "seconds", "tok/s", "accepted", "per pass")
        table.add_row("drafting", *numbers(self._compared.drafted.stats))
        table.add_row("plain", *numbers(self._compared.plain.stats))
        yield table
        yield Static(for_terminal(comparison_text(self._compared)), markup=False, classes="detail")


def numbers(stats: Stats) -> tuple[str, ...]:
    speeds = f"{stats.emitted:,}", f"{stats.decode_seconds:.2f}", f"{stats.tokens_per_second:.1f}"
    accepted = f"{stats.acceptance_rate:.0%}" if stats.drafted else "–"
    return *speeds, accepted, f"{stats.mean_accepted_length:.2f}"


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

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def content(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(help_page(self._folder), markup=False)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()


def help_page(folder: Path) -> Content:
    """The whole help text."""
    lines = [_help_head("typing"), *(_row(key, "", text) for key, text in _TYPING)]
    for area, table in groupby(COMMANDS, key=lambda command: command.area):
        lines += [_help_head(area), *(_row(f"/{c.usage}", c.key_label, c.help) for c in table)]
    lines += [_help_head("tokens in the live text"), Content("  ") + LEGEND]
    folder_text = for_terminal(page_folder(folder))
    lines += [_help_head("files"), Content(f"  Conversations, prompts and choices: {folder_text}")]
    return Content("\n").join(lines)


def page_folder(folder: Path) -> str:
    """The folder as people write it."""
    home = Path.home()
    return f"~/{folder.relative_to(home)}" if folder.is_relative_to(home) else str(folder)


def _help_head(title: str) -> Content:
    return Content(f"\n{title}").stylize("bold $primary")


def _row(usage: str, key: str, text: str) -> Content:
    return Content.assemble("  ", (f"{usage:<28}", "bold"), f"{key:<5}", text)
