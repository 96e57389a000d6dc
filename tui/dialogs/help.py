"""The help page: made from the command table, so it cannot fall behind."""

from itertools import groupby
from pathlib import Path

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from localspec.terminal_text import for_terminal

from ..commands.table import COMMANDS
from ..widgets.live_tail import LEGEND
from .base import Dialog

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
    """Keys, commands, and where files live."""

    BOX_TITLE = "Help"
    KEYS = "↑ ↓ scroll · esc close"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def content(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(page(self._folder), markup=False)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()


def page(folder: Path) -> Content:
    """The whole help text."""
    lines = [_head("typing"), *(_row(key, "", text) for key, text in _TYPING)]
    for area, table in groupby(COMMANDS, key=lambda command: command.area):
        lines += [_head(area), *(_row(f"/{c.usage}", c.key_label, c.help) for c in table)]
    lines += [_head("tokens in the live text"), Content("  ") + LEGEND]
    lines += [
        _head("files"),
        Content("  Conversations, prompts and choices: " + for_terminal(page_folder(folder))),
    ]
    return Content("\n").join(lines)


def page_folder(folder: Path) -> str:
    """The folder as people write it."""
    home = Path.home()
    return f"~/{folder.relative_to(home)}" if folder.is_relative_to(home) else str(folder)


def _head(title: str) -> Content:
    return Content(f"\n{title}").stylize("bold $primary")


def _row(usage: str, key: str, text: str) -> Content:
    return Content.assemble("  ", (f"{usage:<28}", "bold"), f"{key:<5}", text)
