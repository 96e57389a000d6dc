"""The lines around the conversation (title, meter, status, keys), and the inspector beside it."""

from collections.abc import Callable, Iterator
from typing import Final

from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from localspec.display import counted, for_terminal

from ..commands.table import COMMANDS
from ..state.engine import EngineState, ReplyState
from ..status import acceptance_text, gain, gauge, time_split, title
from .reply import LEGEND

SUGGESTIONS: Final = (  # prompts that even the demo pair answers well
    "Why is speculative decoding faster?",
    "Write a haiku about rain",
    "Write a Python function that adds two numbers.",
)
BAR_CELLS: Final = 18


class Line(Static):
    def __init__(self, name: str, content: Callable[[int], Content]) -> None:
        """`content`: a function that returns the line's text for a width in cells."""
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
    state = Content(for_terminal(title(engine, stored=stored)))
    name = Content.styled("localspec", "bold $primary")
    if name.cell_length + state.cell_length + 3 > width:
        name, state = Content(""), state.truncate(width, ellipsis=True)
    return name + " " * (width - name.cell_length - state.cell_length) + state


def key_line(width: int) -> Content:
    *others, end = (
        Content.from_markup(f"  [@click=screen.{command.action}]{command.key_label} {command.footer}[/]")
        for command in COMMANDS
        if command.footer
    )
    line = Content("↵ send  ⇧↵ line")
    for key in others:
        if line.cell_length + key.cell_length + end.cell_length > width:
            break
        line += key
    return line + end


def meter_line(engine: EngineState, width: int) -> Content:
    """Return the meter line: the gain, then as many other numbers as fit into `width` cells."""
    reply = engine.reply or engine.last_reply
    if reply is None or not reply.stats.tokens_per_second:
        return Content("")
    stats, (words, is_good) = reply.stats, gain(engine, reply)
    line = Content.styled(words, "bold $text-success" if is_good else "bold")
    parts = [_speed(reply)]
    if stats.drafted and not reply.is_off:
        parts.append(acceptance_text(stats.accepted, stats.drafted))
        parts.append(f"depth {reply.depth}{' by a head' * (stats.from_head > 0)}")
        if (saved := stats.saved_seconds or 0.0) > 0.05 and is_good:
            parts.append(f"{saved:.1f} s saved")
    for part in parts:
        if line.cell_length + len(part) + 3 <= width:
            line += f"   {part}"
    return line


def _speed(reply: ReplyState) -> str:
    stats = reply.stats
    speed = f"{stats.tokens_per_second:.{0 if stats.tokens_per_second >= 100 else 1}f} tok/s"
    if reply.is_demo or stats.hardly_drafted or stats.speedup is None:
        return speed
    plain = stats.tokens_per_second / stats.speedup.value
    return f"{speed} (plain {plain:.{0 if plain >= 100 else 1}f})"


def welcome(engine: EngineState, _width: int) -> Content:
    lines = []
    if ready := engine.ready:
        draft = (ready.draft, "drafts tokens; each one that the model above accepts saves time")
        none = ("no draft model", "drafts repeated text where it pays; --draft FILE adds one")
        roles = [(ready.target, "decides every token of a reply"), draft if ready.draft else none]
        cells = max(len(name) for name, _ in roles)
        lines = [
            Content.assemble((for_terminal(f"{name:<{cells}}"), "bold"), f"  {role}") for name, role in roles
        ]
    lines += [
        Content(for_terminal(f"pair: {engine.pair_name} · ^o chooses another, /pair FILE.gguf opens a file")),
        Content(""),
        Content.assemble("Ask, or try one of these with ", ("tab", "bold")),
    ]
    lines += [Content.styled(f"  {text}", "$text-primary") for text in SUGGESTIONS]
    lines += [Content(""), Content("The colours of a reply:  ") + LEGEND]
    return Content("\n").join(lines)


class Inspector(VerticalScroll):
    def __init__(self) -> None:
        self._chart = Static(markup=False)
        super().__init__(self._chart, id="inspector", can_focus=False)

    def show(self, reply: ReplyState | None) -> None:
        if self.display:
            self._chart.update(Content("\n").join(inspector_lines(reply)))


def inspector_lines(reply: ReplyState | None) -> Iterator[Content]:
    yield Content("esc closes, page down scrolls").stylize("dim")
    if reply is None or not reply.timeline:
        yield Content("Nothing was decoded yet.").stylize("dim")
        return
    stats = reply.stats
    yield heading("Where the time went")
    seconds = (stats.draft_seconds, stats.verify_seconds, stats.other_seconds)
    draft, verify, other = (part / max(sum(seconds), 1e-9) for part in seconds)
    yield Content.assemble(*time_split(seconds, width=30))
    yield Content.assemble(
        (f"draft {draft:.0%}", "$text-warning"),
        " · ",
        (f"verify {verify:.0%}", "$text-primary"),
        f" · other {other:.0%}",
    )
    yield heading("Acceptance by depth")
    if not stats.acceptance_by_position:
        yield Content("no draft tokens").stylize("dim")
    tried = zip(stats.acceptance_by_position, stats.drafted_by_position, strict=True)
    for position, (rate, count) in enumerate(tried, start=1):
        bar = (gauge(rate, BAR_CELLS), "$accent")
        yield Content.assemble(f"{position:2} ", bar, f" {rate:4.0%}", (f" of {count:,}", "dim"))
    yield heading("Tokens from each pass")
    total, most = reply.lengths.total(), max(reply.lengths.values())
    for length in range(1, max(reply.lengths) + 1):
        bar = (gauge(reply.lengths[length] / most, BAR_CELLS), "$primary")
        yield Content.assemble(f"{length:2} ", bar, f" {reply.lengths[length] / total:4.0%}")
    yield Content(f"mean {stats.mean_accepted_length:.2f} · {counted(stats.cycles, 'pass', 'passes')}")


def heading(title: str, style: str = "bold") -> Content:
    return Content(f"\n{title}").stylize(style)
