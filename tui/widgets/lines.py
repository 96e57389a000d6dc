"""The one-line widgets around the conversation: title, status, and the keys at the bottom."""

from textual.content import Content
from textual.widgets import Static

from localspec.terminal_text import for_terminal

from ..commands.table import COMMANDS, Command


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
    """One sentence on the left: what goes on, or what helps; where the time goes on the right, if there is room."""

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
