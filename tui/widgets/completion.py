"""The list of commands or files that match what is typed, above the prompt."""

from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from localspec.terminal_text import for_terminal

from ..commands.table import Command, matching
from ..state.mentions import completions, typed_mention


class Completion(OptionList):
    """Opens while the beginning of a command or of a path is typed; the prompt keeps the focus."""

    can_focus = False

    def show_for(self, text: str, before_cursor: str) -> bool:
        """Offer the commands that begin like the text, or files where one is mentioned. Whether there are any."""
        typing_a_name = text.startswith("/") and " " not in text and "\n" not in text
        options = [_option(command) for command in matching(text[1:])] if typing_a_name else []
        if (start := typed_mention(before_cursor)) is not None:
            options = [Option(Content(for_terminal(path)), id=path) for path in completions(start)]
        self.set_class(bool(options), "-open")
        if options:
            self.clear_options()
            self.add_options(options)
            self.highlighted = 0
        return bool(options)

    def close(self) -> None:
        self.remove_class("-open")

    @property
    def chosen(self) -> str | None:
        """The name of the highlighted command, or the path of the file behind an @."""
        option = self.highlighted_option
        return option.id if option is not None else None


def _option(command: Command) -> Option:
    key = (f"  {command.key_label}" if command.key else "", "dim")
    return Option(Content.assemble((f"/{command.usage:<27}", "bold"), command.help, key), id=command.name)
