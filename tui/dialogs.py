"""The boxes over the chat: a question, a race, and help."""

from collections.abc import Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import ClassVar, Final, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from localspec.display import for_terminal
from localspec.measure.race import BRANCHED, NOW_BRANCHED, STOPPED, Race, clock

from .commands.table import COMMANDS
from .state.engine import EngineState, ReplyState
from .widgets.lines import Line, heading
from .widgets.markdown import hanging_lines
from .widgets.reply import LEGEND, STYLES

RACE_SECONDS: Final = 0.2  # time between two drawings of a race
Answer = TypeVar("Answer")


class Dialog(ModalScreen[Answer]):
    """A box over the chat, with content, a line of detail and a line of keys."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "close")]
    BOX_TITLE: str
    KEYS: str
    detail = ""  # the text above the line of keys

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
                notice = Static(markup=False, classes="remark")
                notice.display = False
                yield notice
                yield Static(self.KEYS, markup=False, classes="keys")

    def content(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(self.text, markup=False)

    def show_detail(self, text: str) -> None:
        self._show(".detail", for_terminal(text))

    def show_notice(self, notice: Content) -> None:
        self._show(".remark", notice)

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


class RaceDialog(Dialog[None]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "leave")]
    BOX_TITLE = "With and without drafting"
    KEYS = "esc stop or close"

    def __init__(self, engine: EngineState) -> None:
        super().__init__()
        self._engine = engine
        self._is_stopping = False  # whether the user has stopped the race
        self._seconds = 0.0  # the plain side is drawn as it was after this many seconds of decoding
        self._is_marked = False  # whether the dialog has scrolled to the first words that differ
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
        self.query_one(".keys").display = False  # the border shows the keys instead, which saves a row
        self.query_one(".box").border_subtitle = self.KEYS
        self._draw()
        self.set_interval(RACE_SECONDS, self._draw)

    def _draw(self) -> None:
        """Draw both sides. The plain side has run before, and is shown again beside the drafting side."""
        engine = self._engine
        plain, drafting = (side.race_side for side in (*engine.sides, ReplyState(0), ReplyState(0))[:2])
        branch_point = Race(plain, drafting).branch_point
        if len(engine.sides) == 2:
            self._seconds = max(self._seconds + RACE_SECONDS * drafting.is_done, drafting.seconds)
            is_stopped = engine.compared is not None and not drafting.is_done
            plain = plain.begun(len(drafting.written)) if is_stopped else plain.until(self._seconds)
        sides = zip(self._heads, self._texts, Race(plain, drafting).race_sides.items(), strict=True)
        for head, side, (title, race_side) in sides:
            text = Content("").join(
                Content.styled(for_terminal(text), BRANCHED if number == branch_point else STYLES.get(by, ""))
                for number, (text, by) in enumerate(race_side.written)
            )
            side.update(text.rstrip())
            head.update(Content.assemble((title, "bold"), f"\n{clock(race_side)}"))
        if branch_point is not None and engine.compared and plain.is_done and not self._is_marked:
            self._is_marked = True
            same = Content("".join(for_terminal(text) for text, _ in drafting.written[:branch_point]))
            self.call_after_refresh(self._show_row, same.get_height({}, self._texts[1].size.width))
        is_won = engine.compared is not None and Race(*(side.race_side for side in engine.sides)).is_won
        if engine.compared is not None:
            lines, first = engine.compared.verdict.split("\n"), 1 + (branch_point is not None)
            headline = "\n".join(lines[:first])
            self._show(".verdict", for_terminal("\n".join(lines[first:])))
        elif not engine.comparing:
            headline = STOPPED
        elif branch_point is not None:
            headline = NOW_BRANCHED
        elif drafting.is_done:
            headline = "comparing the texts"
        else:
            headline = "drafting, with plain replayed" if drafting.cycles else "plain decoding runs first"
        style = "bold $text-success" if is_won else "bold"
        self._show(".headline", Content.styled(for_terminal(headline), style))

    def _show_row(self, row: int) -> None:
        scroll = self.query_one(VerticalScroll)
        scroll.anchor(False)
        scroll.scroll_to(y=row - scroll.size.height // 2, animate=False)

    def action_leave(self) -> None:
        """Stop the race and stay for its verdict. If the race has ended or was stopped before, leave."""
        if not self._engine.comparing or self._is_stopping:
            self.dismiss()
        self._engine.stop()
        self._is_stopping = True


_SPEED: Final = "Drawing uses one CPU core, so `localspec run` is faster where cores are few."
_TYPING = (
    ("enter", "Send"),
    ("shift+enter, ^j", "New line (many terminals only know ^j)"),
    ("up, down", "Earlier prompts, from the first or last line"),
    ("page up, page down", "Scroll the conversation and the inspector"),
    ("tab", "Complete a /command or an @path"),
    ("mouse, ^c", "Select text and copy it"),
    ("^c", "Stop the reply, clear the prompt, or leave the second time"),
    ("^z, ^y", "Undo and redo changes of the prompt"),
    ("^d", "Leave, from an empty prompt"),
)


class HelpDialog(Dialog[None]):
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
        lines += [heading(area, "bold $primary"), *(line for row in found for line in _row(*row, width))]
    folder_line = Content(f"Conversations, prompts and choices: {folder}")
    texts = {"tokens in the live text": LEGEND, "speed": Content(_SPEED), "files": folder_line}
    for area, text in texts.items():
        lines += [heading(area, "bold $primary"), *hanging_lines(Content("  "), text, width)]
    return Content("\n").join(lines)[1:]


def page_folder(folder: Path) -> str:
    home = Path.home()
    return f"~/{folder.relative_to(home)}" if folder.is_relative_to(home) else str(folder)


def _row(usage: str, key: str, text: str, width: int) -> Iterator[Content]:
    before = Content.assemble("  ", (f"{usage:<20}", "bold"), f"{key:<5}")
    if width < 60:  # on a narrow screen, the help text begins below the command
        yield before
        before = Content(" " * 4)
    yield from hanging_lines(before, Content(text), width)
