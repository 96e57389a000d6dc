"""A table of texts that fits its width."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from rich.text import Text
from textual.widgets import DataTable

from localspec.display import for_terminal

Item = TypeVar("Item")


class TextTable(DataTable[Text], Generic[Item]):
    """A row of text for each item, shown as it is: a plain string would be read as markup."""

    def __init__(
        self,
        columns: Callable[[Item], Sequence[str]],
        *heads: str,
        numbers: Sequence[str] = (),
        wide: int = 0,
        least: int = 12,
    ) -> None:
        """`columns` gives the cells of an item; numbers stand right, the wide column takes the rest, or `least`."""
        super().__init__(cursor_type="row", zebra_stripes=True)
        self._columns_of = columns
        self._heads = [Text(head, justify="right" if head in numbers else "left") for head in heads]
        self._wide, self._least = wide, least
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
        cell = partial(Text, no_wrap=True, overflow="ellipsis")
        sides = [head.justify for head in self._heads]
        rows = [
            [
                cell(for_terminal(text), justify=side)
                for text, side in zip(self._columns_of(item), sides, strict=True)
            ]
            for item in self._items
        ]
        cursor = self.cursor_row
        self.clear(columns=True)
        for head, width in zip(self._heads, self._widths(rows), strict=True):
            self.add_column(head, width=width)
        self.add_rows(rows)
        self.move_cursor(row=cursor)

    def _widths(self, rows: Sequence[Sequence[Text]]) -> list[int]:
        """Width in cells, without the padding."""
        columns = zip(self._heads, *rows, strict=True)
        widths = [max(cell.cell_len for cell in column) for column in columns]
        wide = widths[self._wide]
        taken = sum(widths) - wide + 2 * self.cell_padding * len(widths) + self.styles.scrollbar_size_vertical
        widths[self._wide] = max(self._least, min(wide, self.size.width - taken))
        return widths
