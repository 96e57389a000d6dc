"""The lines around the conversation (title, meter, status, keys), and the inspector beside it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from localspec.display import for_terminal
from localspec.events import Cycle, Stats

from ..commands.table import COMMANDS, Command
from ..state.engine import EngineState, ReplyState
from ..text.status import bars, gauge, time_split, title
from .reply import LEGEND

GAUGE_CELLS: Final = 12
SPLIT_CELLS: Final = 12
NARROW: Final = 100
BAR_CELLS: Final = 18
TIMELINE_ROWS: Final = 8


class Line(Static):
    """One line, drawn anew where its content or its width has changed."""

    def __init__(self, name: str, content: Callable[[int], Content]) -> None:
        """`content` fills as many cells as it is given."""
        super().__init__(markup=False, id=name)
        self._content_in = content
        self._drawn = Content("")

    def show(self) -> None:
        drawn = self._content_in(self.content_size.width)
        if drawn != self._drawn:
            self._drawn = drawn
            self.update(drawn, layout=False)

    def on_resize(self) -> None:
        self.show()


def title_line(engine: EngineState, stored: bool, width: int) -> Content:
    """Pair, drafting and temperature on the right; the program's name on the left where there is room."""
    state, name = (
        Content(for_terminal(title(engine, stored=stored))),
        Content.styled("localspec", "bold $primary"),
    )
    if name.cell_length + state.cell_length + 3 > width:
        name, state = Content(""), state.truncate(width, ellipsis=True)
    return name + " " * (width - name.cell_length - state.cell_length) + state


def status_line(sentence: str, stats: Stats, width: int) -> Content:
    """Left: the current work, or advice. Right: the shares of time, if there is room."""
    left, right = Content(for_terminal(sentence)), time_shares(stats)
    gap = width - left.cell_length - right.cell_length
    return left if gap < 2 else left + Content(" " * gap) + right


def key_line(width: int) -> Content:
    """The keys worth knowing, from the command table; help stays when there is little room. A click runs one."""
    *others, last = (command for command in COMMANDS if command.footer)
    line, end = Content("↵ send  ⇧↵ line"), _key(last)
    for key in map(_key, others):
        if line.cell_length + key.cell_length + end.cell_length > width:
            break
        line += key
    return line + end


def _key(command: Command) -> Content:
    label = f"{command.key_label} {command.footer}"
    return Content("  ") + Content.from_markup(f"[@click=screen.{command.action}]{label}[/]")


def meter_line(engine: EngineState, width: int) -> Content:
    """The meter as one line of at most `width` cells; what matters least goes first when it is narrow."""
    reply = engine.last_reply
    if reply is None or not reply.stats.tokens_per_second:
        return Content("")
    stats = reply.stats
    line = _speed(engine, reply.speed_now if engine.busy else stats.tokens_per_second)
    acceptance = Content("drafting off: it does not pay here" if reply.is_off else "plain decoding")
    if stats.drafted and not reply.is_off:
        shown = (bars(reply.acceptance, 10 if width < NARROW else 20), "$primary")
        depth = f"  depth {reply.depth}{' by a head' * (stats.from_head > 0)}"
        acceptance = Content.assemble(f"accept {stats.acceptance_rate:4.0%} ", shown, depth)
    gain = Content("")
    if stats.drafted and stats.speedup is not None:
        saved = stats.saved_seconds or 0.0
        words = f", {saved:.1f} s saved" if saved > 0.05 else ""
        gain = Content.assemble((f"{stats.speedup.value:.2f}x plain", "bold"), words)
    for part in (acceptance, gain, Content(f"reply {stats.tokens_per_second:.1f} tok/s")):
        if part.cell_length and line.cell_length + part.cell_length + 3 <= width:
            line += Content("   ") + part
    return line


def _speed(engine: EngineState, now: float) -> Content:
    """The gauge ends at the fastest that was seen with this pair here."""
    scale = max(engine.best_speed, now, 1e-9)
    bar = (gauge(now / scale, GAUGE_CELLS), "$accent")
    content = Content.assemble((f"{now:6.1f}", "bold"), " tok/s ▕", bar, "▏")
    if engine.plain_speed:
        # The mark stands where plain decoding would reach.
        cell = min(GAUGE_CELLS - 1, int(engine.plain_speed / scale * GAUGE_CELLS))
        start = content.plain.index("▕") + 1 + cell
        content = content[:start] + Content("┃").stylize("$warning") + content[start + 1 :]
    return content


def time_shares(stats: Stats) -> Content:
    seconds = (stats.draft_seconds, stats.verify_seconds, stats.other_seconds)
    if not sum(seconds):
        return Content("")
    draft, verify, other = (100 * part / sum(seconds) for part in seconds)
    return Content.assemble(
        (f"draft {draft:.0f}% ", "$text-warning"),
        *time_split(seconds, SPLIT_CELLS),
        (f" verify {verify:.0f}%", "$text-primary"),
        f" other {other:.0f}%",
    )


class Inspector(VerticalScroll):
    """Four small charts of the reply that runs, or of the last one."""

    def __init__(self) -> None:
        self._chart = Static(markup=False)
        super().__init__(self._chart, id="inspector", can_focus=False)

    def show(self, reply: ReplyState | None) -> None:
        """Draw; costs nothing while hidden."""
        if self.display:
            self._chart.update(Content("\n").join(inspector_lines(reply)))


def inspector_lines(reply: ReplyState | None) -> Iterator[Content]:
    if reply is None or not reply.timeline:
        yield Content("Nothing was decoded yet.").stylize("dim")
        return
    stats = reply.stats
    yield _head("Acceptance by position")
    if not stats.acceptance_by_position:
        yield Content("no drafts").stylize("dim")
    tried = zip(stats.acceptance_by_position, stats.drafted_by_position, strict=True)
    for position, (rate, count) in enumerate(tried, start=1):
        bar = (gauge(rate, BAR_CELLS), "$accent")
        yield Content.assemble(f"{position:2} ", bar, f" {rate:4.0%}", (f" of {count:,}", "dim"))
    yield _head("Tokens per pass")
    total, most = reply.lengths.total(), max(reply.lengths.values())
    for length in range(1, max(reply.lengths) + 1):
        bar = (gauge(reply.lengths[length] / most, BAR_CELLS), "$primary")
        yield Content.assemble(f"{length:2} ", bar, f" {reply.lengths[length] / total:4.0%}")
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
