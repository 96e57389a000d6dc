"""One line that shows speculation at work: speed now, acceptance by cycle, depth, and where the time goes."""

from typing import Final

from textual.content import Content
from textual.widgets import Static

from localspec.stats import Stats

from ..text.bars import bars, gauge, shares
from ..text.status import Reading

GAUGE_CELLS: Final = 12
SPLIT_CELLS: Final = 12
NARROW: Final = 100


class Meter(Static):
    """Draws readings into the width that it has."""

    def __init__(self) -> None:
        super().__init__(markup=False, id="meter")
        self._reading = Reading()

    def show(self, reading: Reading) -> None:
        if reading == self._reading:
            return
        self._reading = reading
        self.update(draw(reading, self.content_size.width), layout=False)

    def on_resize(self) -> None:
        self.update(draw(self._reading, self.content_size.width), layout=False)


def draw(reading: Reading, width: int) -> Content:
    """The meter as one line of at most `width` cells; what matters least goes first when it is narrow."""
    if not reading.stats.tokens_per_second:
        return Content("")
    parts = [_speed(reading), _acceptance(reading, 10 if width < NARROW else 20)]
    parts += [_gain(reading.stats), Content(f"reply {reading.stats.tokens_per_second:.1f} tok/s")]
    line = parts[0]
    for part in parts[1:]:
        if part.cell_length and line.cell_length + part.cell_length + 3 <= width:
            line += Content("   ") + part
    return line


def _speed(reading: Reading) -> Content:
    scale = max(reading.best_speed, reading.speed_now, 1e-9)
    filled = gauge(reading.speed_now / scale, GAUGE_CELLS)
    content = Content.assemble((f"{reading.speed_now:6.1f}", "bold"), " tok/s ▕", (filled, "$accent"), "▏")
    if reading.plain_speed:
        # The mark stands where plain decoding would reach.
        cell = min(GAUGE_CELLS - 1, int(reading.plain_speed / scale * GAUGE_CELLS))
        start = content.plain.index("▕") + 1 + cell
        content = content[:start] + Content("┃").stylize("$warning") + content[start + 1 :]
    return content


def _acceptance(reading: Reading, width: int) -> Content:
    if reading.off or not reading.stats.drafted:
        return Content("drafting off: it does not pay here" if reading.off else "plain decoding")
    return Content.assemble(
        f"accept {reading.stats.acceptance_rate:4.0%} ",
        (bars(reading.acceptance, width), "$primary"),
        f"  depth {reading.depth}",
    )


def _gain(stats: Stats) -> Content:
    if not stats.drafted or stats.speedup is None:
        return Content("")
    saved = stats.saved_seconds or 0.0
    words = f", {saved:.1f} s saved" if saved > 0.05 else ""
    return Content.assemble((f"{stats.speedup.value:.2f}x plain", "bold"), words)


def split(stats: Stats) -> Content:
    """The share of draft, verify and other time."""
    if not stats.decode_seconds:
        return Content("")
    seconds = (stats.draft_seconds, stats.verify_seconds, stats.other_seconds)
    draft, verify, other = shares(seconds, SPLIT_CELLS)
    percent = [100 * part / stats.decode_seconds for part in seconds]
    return Content.assemble(
        (f"draft {percent[0]:.0f}% ", "$text-warning"),
        ("▒" * draft, "$warning"),
        ("█" * verify, "$primary"),
        ("░" * other, "$secondary"),
        (f" verify {percent[1]:.0f}%", "$text-primary"),
        f" other {percent[2]:.0f}%",
    )
