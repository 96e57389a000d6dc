"""The blocks of a reply, to copy one of them."""

from collections.abc import Sequence
from typing import Final

from textual import on
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from localspec.terminal_text import for_terminal

from .base import Dialog

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
