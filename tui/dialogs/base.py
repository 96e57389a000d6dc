"""What all dialogs share: a titled box in the middle, and Esc to leave it."""

from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from localspec.terminal_text import for_terminal

Answer = TypeVar("Answer")


class Dialog(ModalScreen[Answer]):
    """A box over the chat. Subclasses give a title, the keys they take, and their content."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "close")]
    BOX_TITLE: ClassVar[str]
    KEYS: ClassVar[str]

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = self.BOX_TITLE
            yield from self.content()
            with Vertical(classes="foot"):
                yield from self.foot()
                yield Static(self.KEYS, markup=False, classes="keys")

    def content(self) -> ComposeResult:
        """What may take all the room that the foot leaves."""
        yield from ()

    def foot(self) -> ComposeResult:
        """What stands above the keys, always in view."""
        yield from ()

    def action_leave(self) -> None:
        self.dismiss(None)


class ConfirmDialog(Dialog[bool]):
    """Yes or no."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("y", "yes", "yes"), Binding("n", "leave", "no")]
    BOX_TITLE = "Sure?"
    KEYS = "y yes · n no"

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def content(self) -> ComposeResult:
        yield Static(for_terminal(self._text), markup=False)

    def action_yes(self) -> None:
        self.dismiss(True)
