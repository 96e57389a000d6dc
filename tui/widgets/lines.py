"""The one-line widgets around the conversation: title, status, and the keys at the bottom."""

from textual.content import Content
from textual.widgets import Static

from ..commands import COMMANDS


class TitleBar(Static):
    """The program on the left; pair, drafting and temperature on the right."""

    def __init__(self) -> None:
        super().__init__(markup=False, id="title")
        self._state = ""

    def show(self, state: str) -> None:
        self._state = state
        self.on_resize()

    def on_resize(self) -> None:
        width = self.content_size.width
        name = "localspec"
        state = (
            self._state
            if len(self._state) + len(name) + 3 <= width
            else self._state[: width - len(name) - 4] + "…"
        )
        gap = max(1, width - len(name) - Content(state).cell_length)
        self.update(Content.assemble((name, "bold $primary"), " " * gap, state), layout=False)


class StatusLine(Static):
    """One sentence on the left: what goes on, or what helps; where the time goes on the right, if there is room."""

    def __init__(self) -> None:
        super().__init__(markup=False, id="status")
        self._left = ""
        self._right = Content("")

    def show(self, sentence: str, split: Content) -> None:
        if (sentence, split) != (self._left, self._right):
            self._left, self._right = sentence, split
            self.on_resize()

    def on_resize(self) -> None:
        left = Content(self._left)
        gap = self.content_size.width - left.cell_length - self._right.cell_length
        self.update(left if gap < 2 else left + Content(" " * gap) + self._right, layout=False)


class KeyLine(Static):
    """The keys worth knowing, from the command table; a click runs one."""

    def __init__(self) -> None:
        super().__init__(id="keys")

    def on_mount(self) -> None:
        self.on_resize()

    def on_resize(self) -> None:
        line = Content("↵ send  ⇧↵ line")
        for command in (command for command in COMMANDS if command.footer):
            label = f"{command.key_label} {command.footer}"
            if line.cell_length + len(label) + 2 > self.content_size.width:
                break
            line += Content("  ") + Content.from_markup(f"[@click=screen.{command.action}]{label}[/]")
        self.update(line, layout=False)
