"""The pair picker: known pairs, those on disk, those that fit, and their speed-ups."""

from collections.abc import Sequence
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from localspec.display import size_text
from localspec.models.picker import PairRow

from ..state.engine import Downloads
from ..text.status import pull_status
from .small import Dialog, TextTable

FITS: Final = {"gpu": "yes", "part": "in part", "cpu": "in RAM", "no": "no"}


class PairsDialog(Dialog[str]):
    """Answers with the name of the pair to load; fetching continues when the dialog closes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "pull", "pull"),
        Binding("x", "cancel_pull", "stop pulling"),
    ]
    BOX_TITLE = "Pairs"
    KEYS = "↵ load, or pull what is not here · p pull · x stop pulling · esc close"

    def __init__(self, downloads: Downloads) -> None:
        super().__init__()
        self._downloads = downloads
        self._rows: Sequence[PairRow] | None = None

    def content(self) -> ComposeResult:
        yield TextTable(columns, "pair", "size", "memory", "fits", "here", "speed-up")

    def on_mount(self) -> None:
        self._table: TextTable[PairRow] = self.query_one(TextTable)
        self._refresh()
        self.set_interval(0.1, self._refresh)

    def _refresh(self) -> None:
        """A pair that was fetched moves up; the cursor stays on its pair, wherever that goes."""
        if self._downloads.rows != self._rows:
            self._rows, before = self._downloads.rows, self._table.chosen
            self._table.show(self._rows or ())
            names = [row.name for row in self._rows or ()]
            if before is not None and before.name in names:
                self._table.move_cursor(row=names.index(before.name))
        self.show_detail(self._detail_now())

    def _detail_now(self) -> str:
        if self._downloads.progress is not None:
            return pull_status(self._downloads.progress)
        if self._rows is None:
            return "looking…"
        return pair_detail(row) if (row := self._table.chosen) else "No pairs are known."

    @on(DataTable.RowSelected)
    def _take(self) -> None:
        row = self._table.chosen
        if row is not None and row.on_disk:
            self.dismiss(row.name)
        else:
            self.action_pull()

    def action_pull(self) -> None:
        row = self._table.chosen
        if row is None or row.on_disk:
            return
        if not row.runnable:
            self.notify(f"{row.name} cannot run yet: its kind of draft is unknown.", severity="warning")
        elif self._downloads.progress is not None:
            self.notify("One pair at a time; x stops the running one.")
        else:
            self._downloads.pull(row.name)

    def action_cancel_pull(self) -> None:
        self._downloads.cancel()


def columns(row: PairRow) -> tuple[str, ...]:
    fits = FITS[row.fits] if row.runnable else "not yet"
    speed = f"{row.speedup:.2f}x" if row.speedup else "–"
    here = "yes" if row.on_disk else "–"
    return row.name, size_text(row.size_bytes), size_text(row.memory_bytes), fits, here, speed


def pair_detail(row: PairRow) -> str:
    """Details beyond the table."""
    measured = f"measured here: {row.speedup:.2f}x plain decoding" if row.speedup else ""
    here = "Enter loads it." if row.on_disk else "Enter fetches it." if row.runnable else ""
    published = f"published: {row.published}" if row.published else ""
    return "\n".join(part for part in (f"{row.use}. {here}", measured, published) if part)
