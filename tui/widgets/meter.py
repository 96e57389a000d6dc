"""One line that shows speculation at work: speed now, acceptance by cycle, depth, and where the time goes."""

from typing import Final

from textual.content import Content
from textual.widgets import Static

from localspec.stats import Stats

from ..state.engine import EngineState
from ..state.reply import ReplyState
from ..text.bars import bars, gauge, time_split

GAUGE_CELLS: Final = 12
SPLIT_CELLS: Final = 12
NARROW: Final = 100


class Meter(Static):
    """Shows the reply that runs, or the one before, in the width that it has."""

    def __init__(self, engine: EngineState) -> None:
        super().__init__(markup=False, id="meter")
        self._engine = engine
        self._drawn = Content("")

    def on_resize(self) -> None:
        self.show()

    def show(self) -> None:
        """Draw it as it is now."""
        drawn = draw(self._engine, self.content_size.width)
        if drawn != self._drawn:
            self._drawn = drawn
            self.update(drawn, layout=False)


def draw(engine: EngineState, width: int) -> Content:
    """The meter as one line of at most `width` cells; what matters least goes first when it is narrow."""
    reply = engine.last_reply
    if reply is None or not reply.stats.tokens_per_second:
        return Content("")
    stats = reply.stats
    line = _speed(engine, reply.speed_now if engine.busy else stats.tokens_per_second)
    parts = [_acceptance(reply, 10 if width < NARROW else 20), _gain(stats)]
    for part in (*parts, Content(f"reply {stats.tokens_per_second:.1f} tok/s")):
        if part.cell_length and line.cell_length + part.cell_length + 3 <= width:
            line += Content("   ") + part
    return line


def _speed(engine: EngineState, now: float) -> Content:
    """The gauge ends at the fastest that was seen with this pair here."""
    scale = max(engine.best_speed, now, 1e-9)
    content = Content.assemble(
        (f"{now:6.1f}", "bold"), " tok/s ▕", (gauge(now / scale, GAUGE_CELLS), "$accent"), "▏"
    )
    if engine.plain_speed:
        # The mark stands where plain decoding would reach.
        cell = min(GAUGE_CELLS - 1, int(engine.plain_speed / scale * GAUGE_CELLS))
        start = content.plain.index("▕") + 1 + cell
        content = content[:start] + Content("┃").stylize("$warning") + content[start + 1 :]
    return content


def _acceptance(reply: ReplyState, width: int) -> Content:
    stats = reply.stats
    if reply.is_off or not stats.drafted:
        return Content("drafting off: it does not pay here" if reply.is_off else "plain decoding")
    shown = (bars(reply.acceptance, width), "$primary")
    by = " by a head" if stats.from_head else ""
    return Content.assemble(f"accept {stats.acceptance_rate:4.0%} ", shown, f"  depth {reply.depth}{by}")


def _gain(stats: Stats) -> Content:
    if not stats.drafted or stats.speedup is None:
        return Content("")
    saved = stats.saved_seconds or 0.0
    words = f", {saved:.1f} s saved" if saved > 0.05 else ""
    return Content.assemble((f"{stats.speedup.value:.2f}x plain", "bold"), words)


def split(stats: Stats) -> Content:
    """The share of draft, verify and other time."""
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
