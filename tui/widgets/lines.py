"""The one-line widgets around the conversation: title, status, and the keys at the bottom."""

from typing import Final

from textual.content import Content
from textual.widgets import Static

from localspec.display import for_terminal
from localspec.events import Stats

from ..commands.table import COMMANDS, Command
from ..state.engine import EngineState
from ..state.reply import ReplyState
from ..text.status import bars, gauge, time_split


class TitleBar(Static):
    """Pair, drafting and temperature on the right; the program's name on the left where there is room."""

    def __init__(self) -> None:
        super().__init__(markup=False, id="title")
        self._state = ""

    def show(self, state: str) -> None:
        self._state = for_terminal(state)
        self.on_resize()

    def on_resize(self) -> None:
        state, width = Content(self._state), self.content_size.width
        name = Content.styled("localspec", "bold $primary")
        if name.cell_length + state.cell_length + 3 > width:
            name, state = Content(""), state.truncate(width, ellipsis=True)
        self.update(name + " " * (width - name.cell_length - state.cell_length) + state, layout=False)


class StatusLine(Static):
    """Left: the current work, or advice. Right: the shares of time, if there is room."""

    def __init__(self) -> None:
        super().__init__(markup=False, id="status")
        self._left = ""
        self._right = Content("")

    def show(self, sentence: str, split: Content) -> None:
        sentence = for_terminal(sentence)
        if (sentence, split) != (self._left, self._right):
            self._left, self._right = sentence, split
            self.on_resize()

    def on_resize(self) -> None:
        left = Content(self._left)
        gap = self.content_size.width - left.cell_length - self._right.cell_length
        self.update(left if gap < 2 else left + Content(" " * gap) + self._right, layout=False)


class KeyLine(Static):
    """The keys worth knowing, from the command table; help stays when there is little room. A click runs one."""

    def __init__(self) -> None:
        super().__init__(id="keys")

    def on_mount(self) -> None:
        self.on_resize()

    def on_resize(self) -> None:
        *others, last = (command for command in COMMANDS if command.footer)
        line, end = Content("↵ send  ⇧↵ line"), _key(last)
        for key in map(_key, others):
            if line.cell_length + key.cell_length + end.cell_length > self.content_size.width:
                break
            line += key
        self.update(line + end, layout=False)


def _key(command: Command) -> Content:
    label = f"{command.key_label} {command.footer}"
    return Content("  ") + Content.from_markup(f"[@click=screen.{command.action}]{label}[/]")


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
        drawn = meter_line(self._engine, self.content_size.width)
        if drawn != self._drawn:
            self._drawn = drawn
            self.update(drawn, layout=False)


def meter_line(engine: EngineState, width: int) -> Content:
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
    bar = (gauge(now / scale, GAUGE_CELLS), "$accent")
    content = Content.assemble((f"{now:6.1f}", "bold"), " tok/s ▕", bar, "▏")
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


def time_shares(stats: Stats) -> Content:
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
