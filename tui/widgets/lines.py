"""The lines around the conversation (title, meter, status, keys), and the inspector beside it."""

from collections.abc import Callable, Iterator
from typing import Final

from textual.containers import VerticalScroll
from textual.content import Content
from textual.style import Style
from textual.widgets import Static

from localspec.display import counted, for_terminal

from ..commands.table import COMMANDS, Command
from ..state.engine import EngineState, ReplyState
from ..text.status import gain, gauge, kept_text, shown_name, time_split, title
from .reply import LEGEND

SUGGESTIONS: Final = (  # the demo pair answers them well, too
    "Why is speculative decoding faster?",
    "Write a haiku about rain",
    "Write a Python function that adds two numbers.",
)
UNDRAFTED: Final = "no draft model: only repeated text is guessed; --draft FILE adds one"
WELCOME_CELLS: Final = 70  # of its widest line
GAUGE_CELLS: Final = 10
SPLIT_CELLS: Final = 30
BAR_CELLS: Final = 18


class Line(Static):
    """Drawn anew where its content or its width has changed."""

    def __init__(self, name: str, content: Callable[[int], Content]) -> None:
        """`content` fills as many cells as it is given."""
        super().__init__(markup=False, id=name)
        self._content_in = content
        self._drawn = Content("")

    def show(self) -> None:
        drawn, width = self._content_in(self.content_size.width), self.content_size.width
        if drawn != self._drawn:
            wraps = width and drawn.get_height({}, width) != self._drawn.get_height({}, width)
            self._drawn = drawn
            self.update(drawn, layout=bool(wraps))

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


def status_line(sentence: Content, legend: Content, width: int) -> Content:
    """Left: a remark, the current work or advice. Right: what the colours mean, if there is room."""
    gap = width - sentence.cell_length - legend.cell_length
    return sentence if gap < 2 else sentence + " " * gap + legend


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
    """The meter as one line of at most `width` cells, the gain first; what matters least is left out."""
    reply = engine.reply or engine.last_reply
    if reply is None or not reply.stats.tokens_per_second:
        return Content("")
    stats, (words, is_good) = reply.stats, gain(engine, reply)
    line = Content.styled(words, "bold $text-success" if is_good else "bold")
    parts = [_speed(engine, reply)]
    if stats.drafted and not reply.is_off:
        parts.append(Content(kept_text(stats.accepted, stats.drafted)))
        parts.append(Content(f"{reply.depth} at a time{' by a head' * (stats.from_head > 0)}"))
        if (saved := stats.saved_seconds or 0.0) > 0.05 and is_good:
            parts.append(Content(f"{saved:.1f} s saved"))
    for part in parts:
        if line.cell_length + part.cell_length + 3 <= width:
            line += Content("   ") + part
    return line


def _speed(engine: EngineState, reply: ReplyState) -> Content:
    """Tokens per second, on a bar up to the best that was seen with this pair here, with a mark for plain decoding."""
    stats, now = reply.stats, reply.speed_now if engine.busy else reply.stats.tokens_per_second
    plain = (
        stats.emitted / stats.plain_seconds if stats.drafted and stats.plain_seconds else engine.plain_speed
    )
    scale = max(engine.best_speed, now, plain or 0.0, 1e-9)
    filled = round(now / scale * GAUGE_CELLS)
    bar = Content.assemble(("━" * filled, "$accent"), ("━" * (GAUGE_CELLS - filled), "$panel-lighten-2"))
    speed = Content(f"{now:.{0 if now >= 100 else 1}f} tok/s ")
    if not plain or not stats.drafted or reply.is_toy:  # the speed of a toy says nothing
        return speed + bar
    cell = min(GAUGE_CELLS - 1, int(plain / scale * GAUGE_CELLS))
    mark = Content.styled("╋", "$text-warning")
    return (
        speed + bar[:cell] + mark + bar[cell + 1 :] + Content(f" plain {plain:.{0 if plain >= 100 else 1}f}")
    )


def welcome(engine: EngineState, width: int) -> Content:
    """The first screen: who writes, who guesses, what to ask, and how to read the colours."""
    ready, wide = engine.ready, width >= WELCOME_CELLS
    target, draft = (ready.target, ready.draft) if ready else ("the large model", "")
    writes = "writes: every word is its own choice" if wide else "writes"
    guesses = "guesses the next words; right guesses save passes" if wide else "guesses ahead"
    cells = max(len(target), len(draft)) * wide
    guessing = Content.assemble((for_terminal(f"{draft:<{cells}}"), "bold"), f"  {guesses}")
    if not draft:  # while the pair loads nobody knows whether there is one
        guessing = Content((UNDRAFTED if wide else "no draft model: --draft FILE") if ready else "")
    other = "^o chooses another, /pair FILE.gguf opens a file" if wide else "^o: others"
    lines = [
        Content.assemble((for_terminal(f"{target:<{cells}}"), "bold"), f"  {writes}"),
        guessing,
        Content(for_terminal(f"pair: {shown_name(engine)} · {other}")),
        Content(""),
        Content.assemble("Ask, or try one of these with ", ("tab", "bold")),
    ]
    for number, text in enumerate(SUGGESTIONS):
        click = Style.from_meta({"@click": f"screen.suggest({number})"})
        lines.append(Content("  " * wide) + Content(text).stylize("$text-primary").stylize(click))
    if wide:
        lines += [Content(""), Content("The colours of a reply:  ") + LEGEND]
    return Content("\n").join(lines)


class Inspector(VerticalScroll):
    """Three small charts of the reply that runs, or of the last one."""

    def __init__(self) -> None:
        self._chart = Static(markup=False)
        super().__init__(self._chart, id="inspector", can_focus=False)

    def show(self, reply: ReplyState | None) -> None:
        """Draw; costs nothing while hidden."""
        if self.display:
            self._chart.update(Content("\n").join(inspector_lines(reply)))


def inspector_lines(reply: ReplyState | None) -> Iterator[Content]:
    yield Content("esc closes, page down scrolls").stylize("dim")
    if reply is None or not reply.timeline:
        yield Content("Nothing was decoded yet.").stylize("dim")
        return
    stats = reply.stats
    yield _head("Where the time went")
    seconds = (stats.draft_seconds, stats.verify_seconds, stats.other_seconds)
    draft, verify, other = (part / max(sum(seconds), 1e-9) for part in seconds)
    yield Content.assemble(*time_split(seconds, SPLIT_CELLS))
    yield Content.assemble(
        (f"draft {draft:.0%}", "$text-warning"),
        " · ",
        (f"verify {verify:.0%}", "$text-primary"),
        f" · other {other:.0%}",
    )
    yield _head("Guesses kept, by place")
    if not stats.acceptance_by_position:
        yield Content("no guesses").stylize("dim")
    tried = zip(stats.acceptance_by_position, stats.drafted_by_position, strict=True)
    for position, (rate, count) in enumerate(tried, start=1):
        bar = (gauge(rate, BAR_CELLS), "$accent")
        yield Content.assemble(f"{position:2} ", bar, f" {rate:4.0%}", (f" of {count:,}", "dim"))
    yield _head("Tokens from each pass")
    total, most = reply.lengths.total(), max(reply.lengths.values())
    for length in range(1, max(reply.lengths) + 1):
        bar = (gauge(reply.lengths[length] / most, BAR_CELLS), "$primary")
        yield Content.assemble(f"{length:2} ", bar, f" {reply.lengths[length] / total:4.0%}")
    yield Content(f"mean {stats.mean_accepted_length:.2f} · {counted(stats.cycles, 'pass', 'passes')}")


def _head(title: str) -> Content:
    return Content(f"\n{title}").stylize("bold")
