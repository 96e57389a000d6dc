"""The outcome of a comparison: the same reply with and without drafting, in numbers."""

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import DataTable, Static

from localspec.engine.messages import Compared, Difference
from localspec.stats import Stats

from .dialog import Dialog


class CompareScreen(Dialog[None]):
    """Two rows and a verdict."""

    BOX_TITLE = "With and without drafting"
    KEYS = "esc close"

    def __init__(self, compared: Compared) -> None:
        super().__init__()
        self._compared = compared

    def content(self) -> ComposeResult:
        table: DataTable[str] = DataTable(cursor_type="none")
        table.add_columns("", "tokens", "seconds", "tok/s", "accepted", "per pass")
        table.add_row("drafting", *cells(self._compared.drafted.stats))
        table.add_row("plain", *cells(self._compared.plain.stats))
        yield table
        yield Static(verdict(self._compared), markup=False, classes="detail")


def cells(stats: Stats) -> tuple[str, ...]:
    accepted = f"{stats.acceptance_rate:.0%}" if stats.drafted else "–"
    return (
        f"{stats.emitted:,}",
        f"{stats.decode_seconds:.2f}",
        f"{stats.tokens_per_second:.1f}",
        accepted,
        f"{stats.mean_accepted_length:.2f}",
    )


def verdict(compared: Compared) -> Content:
    """Whether it was faster, and whether the texts agree."""
    plain, drafted = compared.plain.stats, compared.drafted.stats
    lines = []
    if plain.tokens_per_second and drafted.tokens_per_second:
        lines.append(
            f"{drafted.tokens_per_second / plain.tokens_per_second:.2f}x the speed of plain decoding"
        )
    lines.append(difference(compared.difference))
    return Content("\n".join(lines))


def difference(found: Difference | None) -> str:
    if found is None:
        return "texts identical"
    gap = "" if found.logit_gap is None else f", a logit gap of {found.logit_gap:.3f}"
    drafted, plain = found.drafted or "the end", found.plain or "the end"
    return (
        f"first difference after {found.position:,} tokens: {drafted!r} with drafting, {plain!r} without{gap}"
    )
