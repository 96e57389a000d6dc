"""A reply under the microscope: acceptance by position, accepted lengths, the cycles, and the last proposal."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from localspec.events import Cycle

from ..state.reply import ReplyState
from ..text.status import bars, gauge, time_split
from .reply import LEGEND

BAR_CELLS: Final = 18
TIMELINE_ROWS: Final = 8


class Inspector(VerticalScroll):
    """Four small charts of the reply that runs, or of the last one."""

    can_focus = False

    def __init__(self) -> None:
        super().__init__(id="inspector")
        self._chart = Static(markup=False)

    def compose(self) -> ComposeResult:
        yield self._chart

    def show(self, reply: ReplyState | None) -> None:
        """Draw; costs nothing while hidden."""
        if self.display:
            self._chart.update(Content("\n").join(inspector_lines(reply)))


def inspector_lines(reply: ReplyState | None) -> Iterator[Content]:
    """The inspector's lines."""
    if reply is None or not reply.timeline:
        yield Content("Nothing was decoded yet.").stylize("dim")
        return
    stats = reply.stats
    yield _head("Acceptance by position")
    yield from _positions(stats.acceptance_by_position, stats.drafted_by_position)
    yield _head("Tokens per pass")
    yield from _lengths(reply.lengths)
    yield Content(f"mean {stats.mean_accepted_length:.2f} · {stats.cycles:,} passes")
    yield _head("Cycles (ms: draft, verify, other)")
    yield Content(bars(reply.acceptance, 32)).stylize("$primary")
    yield from (_cycle(cycle) for cycle in list(reply.timeline)[-TIMELINE_ROWS:])
    yield _head("Last proposal")
    yield _outcome(reply.timeline[-1], reply.proposal)
    yield _head("Tokens in the text")
    yield LEGEND


def _head(title: str) -> Content:
    return Content(f"\n{title}").stylize("bold")


def _positions(rates: Sequence[float], tried: Sequence[int]) -> Iterator[Content]:
    if not rates:
        yield Content("no drafts").stylize("dim")
    for position, (rate, count) in enumerate(zip(rates, tried, strict=True), start=1):
        bar = (gauge(rate, BAR_CELLS), "$accent")
        yield Content.assemble(f"{position:2} ", bar, f" {rate:4.0%}", (f" of {count:,}", "dim"))


def _lengths(lengths: Mapping[int, int]) -> Iterator[Content]:
    total, most = sum(lengths.values()), max(lengths.values())
    for length in range(1, max(lengths) + 1):
        count = lengths.get(length, 0)
        bar = (gauge(count / most, BAR_CELLS), "$primary")
        yield Content.assemble(f"{length:2} ", bar, f" {count / total:4.0%}")


def _cycle(cycle: Cycle) -> Content:
    seconds = (cycle.draft_seconds, cycle.verify_seconds, cycle.other_seconds)
    times = f" {seconds[0] * 1e3:4.1f} {seconds[1] * 1e3:5.1f} {seconds[2] * 1e3:4.1f} {cycle.source}"
    return Content.assemble(f"{cycle.accepted:2}/{cycle.drafted:<2}", *time_split(seconds, 10), times)


def _outcome(cycle: Cycle, texts: Sequence[str]) -> Content:
    """Each drafted token on its own line: kept or rejected."""
    if not cycle.proposal:
        return Content("none: plain decoding").stylize("dim")
    shown = texts if len(texts) == cycle.drafted else [f"#{token}" for token in cycle.proposal]
    lines = []
    for position, text in enumerate(shown):
        kept = position < cycle.accepted
        mark, style = ("✓", "") if kept else ("✗", "dim strike")
        lines.append(Content.assemble(f"{mark} ", (repr(text)[1:-1], style)))
    lines.append(Content(f"then the target's own token ({cycle.origins[-1]})").stylize("dim"))
    return Content("\n").join(lines)
