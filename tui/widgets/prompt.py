"""The prompt: Enter sends, Shift+Enter or Ctrl+J makes a line, Up in the first row recalls."""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, Final

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.document._edit import Edit
from textual.widgets import OptionList, TextArea
from textual.widgets.option_list import Option

from localspec.display import for_terminal

from ..commands.table import matching
from ..state.mentions import completions, typed_mention
from ..state.remembered import PromptHistory
from .lines import SUGGESTIONS
from .markdown import hanging_lines

BORDER_CELLS: Final = 9  # around the completion list
_BLANK_LINES: Final = re.compile(r"\A(?:[^\S\n]*\n)+")  # before the text; its indentation is part of it


class PromptInput(TextArea):
    """A text area that grows with its text, sends it, and remembers it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pageup", "screen.scroll_conversation('page', -1)", show=False),
        Binding("pagedown", "screen.scroll_conversation('page', 1)", show=False),
        Binding("ctrl+up", "screen.scroll_conversation('message', -1)", show=False),
        Binding("ctrl+down", "screen.scroll_conversation('message', 1)", show=False),
    ]

    def __init__(
        self,
        history: PromptHistory,
        completion: "Completion",
        complete: Callable[[str], Awaitable[None]],
        take: Callable[[str], Awaitable[None]],
    ) -> None:
        """`complete` gets the keys that an open completion list may want, and `take` each text that is sent."""
        placeholder = "Ask anything, or / for commands"
        super().__init__(id="prompt", highlight_cursor_line=False, placeholder=placeholder)
        self.history_of_prompts = history
        self._completion, self._complete, self._take = completion, complete, take

    def _undo_batch(self, edits: Sequence[Edit]) -> None:
        """Undo; the cursor waits at the beginning, as Textual looks for it before it puts it back into the text."""
        self.move_cursor((0, 0))
        super()._undo_batch(edits)

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "tab" and not self._completion.is_open and self.text in ("", *SUGGESTIONS):
            event.prevent_default()
            following = (SUGGESTIONS.index(self.text) + 1) % len(SUGGESTIONS) if self.text else 0
            self.replace_text(SUGGESTIONS[following])
            return
        wanted = (self._completion.is_open and event.key in ("up", "down", "enter")) or event.key == "tab"
        if wanted or event.key in ("enter", "shift+enter", "ctrl+j"):
            # TextArea would take the key as text.
            event.stop()
            event.prevent_default()
            if wanted:
                self.screen.call_later(self._complete, event.key)
            elif event.key == "enter":
                self.send()
            else:
                self.insert("\n")
            return
        await super()._on_key(event)

    def send(self) -> None:
        if self.text.strip():
            self.screen.call_later(self._take, _BLANK_LINES.sub("", self.text).rstrip())

    def get_line(self, line_index: int) -> Text:
        return Text(for_terminal(self.document.get_line(line_index)), end="", no_wrap=True)

    def replace_text(self, text: str) -> None:
        """Put other text into the prompt, with the cursor at its end; undo brings the old text back."""
        self.history.checkpoint()
        self.replace(text, (0, 0), self.document.end, maintain_selection_offset=False)
        self.move_cursor(self.document.end)

    @property
    def _row(self) -> int:
        """Row of the cursor in the wrapped text."""
        return self.wrapped_document.location_to_offset(self.cursor_location).y

    @property
    def before_cursor(self) -> str:
        """The text before the cursor in its line."""
        row, column = self.cursor_location
        return self.document.get_line(row)[:column]

    def complete(self, typed: str, whole: str) -> None:
        """Put a whole path or mention in place of what is typed of it before the cursor."""
        row, column = self.cursor_location
        self.history.checkpoint()
        self.replace(whole, (row, column - len(typed)), (row, column))

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
    """Opens while the beginning of a command or mention is typed, and for paths; the prompt keeps the focus."""

    can_focus = False
    _offered_for = ("", "")

    def show_for(self, typed: str, before_cursor: str) -> None:
        """Offer the commands that begin like the text, or files where one is mentioned."""
        if (typed, before_cursor) == self._offered_for:
            return
        self._offered_for = typed, before_cursor
        self.offer(self._offers(typed, before_cursor))

    def offer_paths(self, paths: Sequence[str]) -> None:
        self.offer([Option(Content(for_terminal(path)), id=path) for path in paths])

    def offer(self, options: Sequence[Option]) -> None:
        self.set_class(bool(options), "-open")
        if options:
            self.clear_options()
            self.add_options(options)
            self.highlighted = 0

    def _offers(self, typed: str, before_cursor: str) -> list[Option]:
        typing_a_name = typed.startswith("/") and " " not in typed and "\n" not in typed
        options = []
        is_narrow, width = self.screen.has_class("-narrow"), self.app.size.width - BORDER_CELLS
        for command in matching(typed[1:]) if typing_a_name else ():
            name = f"/{command.name:<11}" if is_narrow else f"/{command.usage:<27}"
            text = Content.assemble(command.help, (f"  {command.key_label}" * bool(command.key), "dim"))
            lines = hanging_lines(Content.styled(name, "bold"), text, width)
            options.append(Option(Content("\n").join(lines), id=command.name))
        if (start := typed_mention(before_cursor)) is not None:
            options = [Option(Content(for_terminal(path)), id=path) for path in completions(start)]
        return options

    @property
    def is_open(self) -> bool:
        return self.has_class("-open")

    @property
    def chosen(self) -> str:
        """The name of the highlighted command, or the path of the file."""
        assert self.highlighted_option is not None
        return str(self.highlighted_option.id)
