"""What all dialogs share: a titled box in the middle, and Esc to leave it."""

from collections.abc import Sequence
from typing import ClassVar, Final, TypeVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import DataTable, Static

from localspec.display import for_terminal

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


NARROWEST: Final = 12  # cells of the first column


class TextTable(DataTable[Text]):
    """Rows of text, shown as it is: a plain string would be read as markup."""

    def __init__(self, *heads: str) -> None:
        super().__init__(cursor_type="row", zebra_stripes=True)
        self._heads = heads
        self._texts: Sequence[Sequence[str]] = ()
        self._drawn_width = 0

    def show(self, texts: Sequence[Sequence[str]]) -> None:
        """Show these rows; the cursor stays on its line."""
        self._texts = texts
        if self.size.width:
            self._draw()

    def on_resize(self) -> None:
        if self.size.width != self._drawn_width:
            self._draw()

    def _draw(self) -> None:
        self._drawn_width = self.size.width
        rows = [[_cell(text) for text in row] for row in self._texts]
        cursor = self.cursor_row
        self.clear(columns=True)
        for head, width in zip(self._heads, self._widths(rows), strict=True):
            self.add_column(head, width=width)
        for row in rows:
            self.add_row(*row)
        self.move_cursor(row=cursor)

    def _widths(self, rows: Sequence[Sequence[Text]]) -> list[int]:
        """In cells, without the padding."""
        columns = zip(map(Text, self._heads), *rows, strict=True)
        first, *others = (max(cell.cell_len for cell in column) for column in columns)
        taken = sum(others) + 2 * self.cell_padding * len(self._heads) + self.styles.scrollbar_size_vertical
        return [max(NARROWEST, min(first, self.size.width - taken)), *others]


def _cell(text: str) -> Text:
    return Text(for_terminal(text), no_wrap=True, overflow="ellipsis")
