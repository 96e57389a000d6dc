"""The prompt: Enter sends, Shift+Enter or Ctrl+J adds a line, Up in the first row recalls a prompt."""

import re
from collections.abc import Awaitable, Callable
from typing import ClassVar, Final

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import OptionList, TextArea
from textual.widgets.option_list import Option

from localspec.display import for_terminal

from ..commands import table
from ..state.chat import PromptHistory
from ..state.mentions import completions, pasted, typed_mention
from .lines import SUGGESTIONS
from .markdown import hanging_lines

# A longer text is shown by a name, because TextArea wraps the cursor's line at each key, and sometimes reads all lines.
_LONGEST_LINE: Final = 10_000  # characters
_MOST_LINES: Final = 50_000
_PASTED: Final = re.compile(r"\[pasted \d+: [\d,]+ characters\]")
_BLANK_LINES: Final = re.compile(r"(?:[^\S\n]*+\n)+")  # blank lines before the first line with text


def _without_blank_lines(text: str) -> str:
    blank = _BLANK_LINES.match(text)
    return text[blank.end() :] if blank else text


class PromptInput(TextArea):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pageup", "screen.scroll_conversation(-1)", show=False),
        Binding("pagedown", "screen.scroll_conversation(1)", show=False),
    ]

    def __init__(
        self,
        history: PromptHistory,
        completion: "Completion",
        run_command: Callable[[str], Awaitable[object]],
        take: Callable[[str], Awaitable[None]],
    ) -> None:
        """`run_command` is called with the name of a chosen command, and `take` with each sent text."""
        placeholder = "Ask anything, or / for commands"
        super().__init__(id="prompt", highlight_cursor_line=False, placeholder=placeholder)
        self.history_of_prompts = history
        self._completion, self._run_command, self._take = completion, run_command, take
        # Texts that the prompt shows by their names; undo can bring each back.
        self._pasted: dict[str, str] = {}

    @property
    def whole(self) -> str:
        """The text, with each pasted text in the place of its name."""
        return _PASTED.sub(lambda name: self._pasted.get(name[0], name[0]), self.text)

    def _shown(self, text: str, line: str = "") -> str:
        """Return `text`, or a name for it if it would slow down each key; `line`: the line that it is put into."""
        lines = text.splitlines()
        if len(lines) <= _MOST_LINES and len(line) + max(map(len, lines), default=0) <= _LONGEST_LINE:
            return text
        name = f"[pasted {len(self._pasted) + 1}: {len(text):,} characters]"
        self._pasted[name] = text
        return name

    def undo(self) -> None:
        """Undo, with the cursor at the start, because it might be beyond the end of the restored text."""
        text, cursor = self.text, self.cursor_location
        self.move_cursor((0, 0))
        super().undo()
        if self.text == text:
            self.move_cursor(cursor)

    async def _on_paste(self, event: events.Paste) -> None:
        # The terminal pastes the path of a file that was dropped on it.
        line = self.document.get_line(self.cursor_location[0])
        if (shown := pasted(event.text) or self._shown(event.text, line)) != event.text:
            event.prevent_default()
            self.insert(shown)

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "tab" and not self._completion.is_open and self.text in ("", *SUGGESTIONS):
            event.prevent_default()
            following = (SUGGESTIONS.index(self.text) + 1) % len(SUGGESTIONS) if self.text else 0
            self.replace_text(SUGGESTIONS[following])
            return
        wanted = (self._completion.is_open and event.key in ("up", "down", "enter")) or event.key == "tab"
        if wanted or event.key in ("enter", "shift+enter", "ctrl+j"):
            # Without these two calls, TextArea would also handle the key.
            event.stop()
            event.prevent_default()
            if wanted:
                self.screen.call_later(self.complete_by_key, event.key)
            elif event.key == "enter":
                self.send()
            else:
                self.insert("\n")
            return
        await super()._on_key(event)

    def send(self) -> None:
        if (text := self.whole).strip():
            self.screen.call_later(self._take, _without_blank_lines(text).rstrip())

    def get_line(self, line_index: int) -> Text:
        return Text(for_terminal(self.document.get_line(line_index)), end="", no_wrap=True)

    def replace_text(self, text: str) -> None:
        """Replace the text and move the cursor to the end; undo restores the old text."""
        self.history.checkpoint()
        self.replace(self._shown(text), (0, 0), self.document.end, maintain_selection_offset=False)
        self.move_cursor(self.document.end)

    @property
    def _row(self) -> int:
        return self.wrapped_document.location_to_offset(self.cursor_location).y

    @property
    def _before_cursor(self) -> str:
        row, column = self.cursor_location
        return self.document.get_line(row)[:column]

    @property
    def certain(self) -> str:
        """The text before the cursor's last word; "" for a command, or if files or long texts are attached."""
        row, _ = self.cursor_location
        before = "\n".join([*self.document.lines[:row], self._before_cursor])
        last = "" if before[-1:].isspace() else (before.rsplit(maxsplit=1) or [""])[-1]
        whole = _without_blank_lines(before[: len(before) - len(last)])
        attached = "@" in self.text or (self._pasted and _PASTED.search(self.text))
        return "" if whole.startswith("/") or attached or not whole.strip() else whole

    def suggest_completions(self) -> None:
        self._completion.show_for(self.text, self._before_cursor)

    async def complete_by_key(self, key: str) -> None:
        """Handle a key for the completion list, or send the text at Enter if the list has closed."""
        self.suggest_completions()  # suggest here, too, because `Changed` may come later than the key
        match key:
            case "up":
                self._completion.action_cursor_up()
            case "down":
                self._completion.action_cursor_down()
            case "enter" if not self._completion.is_open:  # the list may have been closed by newly typed text
                self.send()
            case _ if self._completion.is_open:
                await self.complete_with(self._completion.chosen, run=key == "enter")

    async def complete_with(self, name: str, run: bool) -> None:
        before, command = self._before_cursor, table.find(name)
        if name.startswith("@") and run and before.endswith(name):  # the user has typed the complete @path
            self.send()
        elif name.startswith("@"):
            row, column = self.cursor_location
            self.history.checkpoint()
            start = (row, before.rindex("@"))
            self.replace(name + " " * (name[-1] != "/"), start, (row, column))
            self.suggest_completions()
        elif command and run and (not command.argument or self.text[1:] in (name, *command.aliases)):
            self.clear()
            await self._run_command(name)
        else:
            self.replace_text(f"/{name} ")

    def action_cursor_up(self, select: bool = False) -> None:
        if select or self._row > 0:
            super().action_cursor_up(select)
        elif (text := self.history_of_prompts.older(self.text)) is not None:
            self.replace_text(text)

    def action_cursor_down(self, select: bool = False) -> None:
        if select or self._row < self.wrapped_document.height - 1:
            super().action_cursor_down(select)
        elif (text := self.history_of_prompts.newer()) is not None:
            self.replace_text(text)

    def action_delete_right(self) -> None:
        if self.text:
            super().action_delete_right()
        else:
            self.call_later(self.app.action_quit)


class Completion(OptionList):
    """A list of commands or files that complete the typed text; the prompt keeps the focus."""

    can_focus = False
    _offered_for = ("", "")

    def show_for(self, typed: str, before_cursor: str) -> None:
        if (typed, before_cursor) == self._offered_for:
            return
        self._offered_for = typed, before_cursor
        if (start := typed_mention(before_cursor)) is not None:
            options = [Option(Content(for_terminal(path)), id=path) for path in completions(start)]
        else:
            options = self._commands(typed)
        self.set_class(bool(options), "-open")
        if options:
            self.clear_options()
            self.add_options(options)
            self.highlighted = 0

    def _commands(self, typed: str) -> list[Option]:
        typing_a_name = typed.startswith("/") and " " not in typed and "\n" not in typed
        options = []
        for command in table.matching(typed[1:]) if typing_a_name else ():
            text = Content.assemble(command.help, (f"  {command.key_label}" * bool(command.key), "dim"))
            name = Content.styled(f"/{command.name:<11}", "bold")
            lines = hanging_lines(name, text, self.app.size.width - 9)  # 9 cells less, for the border
            options.append(Option(Content("\n").join(lines), id=command.name))
        return options

    @property
    def is_open(self) -> bool:
        return self.has_class("-open")

    @property
    def chosen(self) -> str:
        assert self.highlighted_option is not None
        return str(self.highlighted_option.id)
