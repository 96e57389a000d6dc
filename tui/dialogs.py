"""The boxes over the chat: a question, themes, a link, a comparison, and help."""

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import ClassVar, Final, TypeVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static

from localspec.display import for_terminal
from localspec.measure.race import Race, clock

from .commands.table import COMMANDS
from .state.engine import EngineState, ReplyState
from .widgets.lines import Line
from .widgets.markdown import hanging_lines
from .widgets.reply import LEGEND, STYLES

RACE_SECONDS: Final = 0.1  # between two drawings
NO_SIDES: Final = (ReplyState(0), ReplyState(0))
Answer = TypeVar("Answer")


class Dialog(ModalScreen[Answer]):
    """A titled box over the chat with content, a detail, and the keys that it takes; Esc leaves it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "close")]
    BOX_TITLE: str
    KEYS: str
    detail = ""  # stands above the keys, always in view

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self.text = for_terminal(text)

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = self.BOX_TITLE
            yield from self.content()
            with Vertical(classes="foot"):
                detail = Static(for_terminal(self.detail), markup=False, classes="detail")
                detail.display = bool(self.detail)
                yield detail
                remark = Static(markup=False, classes="remark")
                remark.display = False
                yield remark
                yield Static(self.KEYS, markup=False, classes="keys")

    def content(self) -> ComposeResult:
        """What may take all the room that the foot leaves."""
        with VerticalScroll():
            yield Static(self.text, markup=False)

    def show_detail(self, text: str) -> None:
        self._show(".detail", for_terminal(text))

    def show_remark(self, remark: Content) -> None:
        self._show(".remark", remark)

    def _show(self, where: str, text: str | Content) -> None:
        line = self.query_one(where, Static)
        line.update(text)
        line.display = bool(text)


class ConfirmDialog(Dialog[bool]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "yes"),
        Binding("n,enter", "dismiss", "no"),
    ]
    BOX_TITLE = "Sure?"
    KEYS = "y yes · n or ↵ no"


class ThemeDialog(Dialog[str]):
    """Answers with the name of a theme; tries out each that is highlighted."""

    BOX_TITLE = "Theme"
    KEYS = "↑ ↓ try · ↵ keep · esc back"

    def content(self) -> ComposeResult:
        names = sorted(self.app.available_themes)
        themes = OptionList(*names)
        themes.highlighted = names.index(self.app.theme)
        yield themes

    @on(OptionList.OptionHighlighted)
    def _highlighted(self, event: OptionList.OptionHighlighted) -> None:
        self.app.theme = str(event.option.prompt)

    @on(OptionList.OptionSelected)
    def _take(self) -> None:
        self.dismiss(self.app.theme)


class LinkDialog(Dialog[None]):
    """Shows the whole address of a link; the model chose it, so nothing is opened from here."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("c", "copy", "copy")]
    BOX_TITLE = "Link"
    KEYS = "c copy the address · esc close"

    def action_copy(self) -> None:
        self.app.copy_to_clipboard(self.text)
        self.notify("Copied, if your terminal allows it (OSC 52).")


class RaceDialog(Dialog[None]):
    """A reply with and without drafting, side by side as it is written."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "leave"),
        Binding("s", "share", "share"),
    ]
    BOX_TITLE = "With and without drafting"
    KEYS = "s save as SVG · esc stop or close"

    def __init__(self, engine: EngineState, share: Callable[[], Awaitable[object]]) -> None:
        super().__init__()
        self._engine, self._share = engine, share
        self._seconds = 0.0  # on the clock that both sides are shown at
        self._heads, self._texts = (
            [Static(markup=False, classes="side") for _ in range(2)] for _ in range(2)
        )

    def content(self) -> ComposeResult:
        yield Static(markup=False, classes="headline")
        with Horizontal():
            yield from self._heads
        with Vertical(), VerticalScroll() as scroll:
            with Horizontal():
                yield from self._texts
            yield Static(markup=False, classes="verdict")
        scroll.anchor()

    def on_mount(self) -> None:
        self._draw()
        self.set_interval(RACE_SECONDS, self._draw)

    def _draw(self) -> None:
        """Drafting as it is written; beside it plain decoding, which ran before, as far as it was by then."""
        engine = self._engine
        plain, drafting = (side.lane for side in (*engine.sides, *NO_SIDES)[:2])
        if len(engine.sides) == 2:
            self._seconds = max(self._seconds + RACE_SECONDS * drafting.is_done, drafting.seconds)
            plain = plain.until(self._seconds)
        sides = zip(self._heads, self._texts, Race(plain, drafting).lanes.items(), strict=True)
        for head, side, (title, lane) in sides:
            text = Content("").join(
                Content.styled(for_terminal(text), STYLES.get(by, "")) for text, by in lane.written
            )
            side.update(text.rstrip())
            told = clock(lane)
            if self.has_class("-short"):
                told = told.split(" · ")[-1 if lane.is_toy else 0]
            head.update(Content.assemble((title, "bold"), f"\n{told}"))
        is_won = engine.compared is not None and Race(*(side.lane for side in engine.sides)).is_won
        headline = "plain decoding runs first" if not drafting.cycles else "now drafting; plain as it was"
        if not engine.comparing:
            headline = "ended before both sides had replied"
        if engine.compared is not None:
            headline, _, rest = engine.compared.verdict.partition("\n")
            self._show(
                ".verdict", "" if self.has_class("-short") else for_terminal(rest)
            )  # the texts come first
        self._show(
            ".headline", Content.styled(for_terminal(headline), "bold $text-success" if is_won else "bold")
        )

    async def action_share(self) -> None:
        if self._engine.compared is not None:
            await self._share()

    def action_leave(self) -> None:
        self._engine.stop()
        self.dismiss()


_TYPING = (
    ("enter", "Send"),
    ("shift+enter, ^j", "New line (not every terminal tells Shift+Enter)"),
    ("up, down", "Earlier prompts, from the first or last line"),
    ("page up, page down", "Scroll the conversation and the inspector"),
    ("^up, ^down", "To the message before or after"),
    ("tab", "Complete a /command, or the path after it"),
    ("mouse, ^c", "Select text and copy it"),
    ("^c", "Stop the reply, clear the prompt, or leave the second time"),
    ("^z, ^y", "Undo and redo changes of the prompt"),
    ("^d", "Leave, from an empty prompt"),
)


HELP_CELLS: Final = 60  # from here on its texts stand beside the keys


class HelpDialog(Dialog[None]):
    """Keys, commands, and where files live; made from the command table, so it cannot fall behind."""

    BOX_TITLE = "Help"
    KEYS = "↑ ↓ scroll · esc close"

    def content(self) -> ComposeResult:
        with VerticalScroll():
            yield Line("page", partial(help_page, self.text))


def help_page(folder: str, width: int) -> Content:
    rows = {"typing": [(key, "", text) for key, text in _TYPING]}
    for area, table in groupby(COMMANDS, key=lambda command: command.area):
        rows[area] = [(f"/{command.usage}", command.key_label, command.help) for command in table]
    lines = []
    for area, found in rows.items():
        lines += [_help_head(area), *(line for row in found for line in _row(*row, width))]
    indent, place = Content("  "), Content(f"Conversations, prompts and choices: {folder}")
    lines += [_help_head("tokens in the live text"), *hanging_lines(indent, LEGEND, width)]
    lines += [_help_head("files"), *hanging_lines(indent, place, width)]
    return Content("\n").join(lines)[1:]


def page_folder(folder: Path) -> str:
    """The folder as people write it."""
    home = Path.home()
    return f"~/{folder.relative_to(home)}" if folder.is_relative_to(home) else str(folder)


def _help_head(title: str) -> Content:
    return Content(f"\n{title}").stylize("bold $primary")


def _row(usage: str, key: str, text: str, width: int) -> Iterator[Content]:
    """The text beside what it explains, or below where there is little room."""
    before = Content.assemble("  ", (f"{usage:<28}", "bold"), f"{key:<5}")
    if width < HELP_CELLS:
        yield before
        before = Content(" " * 4)
    yield from hanging_lines(before, Content(text), width)
