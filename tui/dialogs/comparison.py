"""The outcome of a comparison: the same reply with and without drafting, in numbers."""

from textual.app import ComposeResult
from textual.widgets import DataTable, Static

from localspec.engine.messages import Compared
from localspec.stats import Stats
from localspec.terminal_text import for_terminal

from .base import Dialog


class ComparisonDialog(Dialog[None]):
    """Two rows and a verdict."""

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
        yield Static(for_terminal(verdict(self._compared)), markup=False, classes="detail")


def numbers(stats: Stats) -> tuple[str, ...]:
    accepted = f"{stats.acceptance_rate:.0%}" if stats.drafted else "–"
    return (
        f"{stats.emitted:,}",
        f"{stats.decode_seconds:.2f}",
        f"{stats.tokens_per_second:.1f}",
        accepted,
        f"{stats.mean_accepted_length:.2f}",
    )


def verdict(compared: Compared) -> str:
    """How much faster it was, whether the texts agree, and if not, at which token they part."""
    found = compared.difference
    if found is None:
        return compared.verdict
    gap = "" if found.logit_gap is None else f", the likeliest two {found.logit_gap:.4f} logits apart"
    drafted, plain = found.drafted or "the end", found.plain or "the end"
    return f"{compared.verdict}\n\nToken {found.position + 1:,}: {drafted!r} with drafting, {plain!r} without{gap}."
