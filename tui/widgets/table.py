"""A table of texts that fits its width."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Generic, Protocol, TypeVar

from rich.text import Text
from textual.widgets import DataTable

from localspec.display import for_terminal


class Named(Protocol):
    @property
    def name(self) -> str: ...


Item = TypeVar("Item", bound=Named)


class TextTable(DataTable[Text], Generic[Item], can_focus=False):
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
        """Show these; the cursor stays on its item, wherever that goes, else on its line."""
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
        cursor, widths = self.cursor_row, self._widths(rows)
        ends = accumulate(width + 2 * self.cell_padding for width in widths)
        count = sum(end <= self._room for end in ends) or 1  # a number that is cut would be another one
        self.clear(columns=True)
        for head, width in zip(self._heads[:count], widths, strict=False):
            self.add_column(head, width=width)
        self.add_rows(row[:count] for row in rows)
        self.move_cursor(row=cursor)

    def _widths(self, rows: Sequence[Sequence[Text]]) -> list[int]:
        """Width in cells, without the padding."""
        columns = zip(self._heads, *rows, strict=True)
        widths = [max(cell.cell_len for cell in column) for column in columns]
        wide = widths[self._wide]
        taken = sum(widths) - wide + 2 * self.cell_padding * len(widths)
        widths[self._wide] = max(self._least, min(wide, self._room - taken))
        return widths

    @property
    def _room(self) -> int:
        return self.size.width - self.styles.scrollbar_size_vertical
