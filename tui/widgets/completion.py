"""The list of slash commands that match what is typed, above the prompt."""

from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from ..commands.table import Command, matching


class Completion(OptionList):
    """Opens while the prompt holds the beginning of a command; the prompt keeps the focus."""

    can_focus = False

    def show_for(self, text: str) -> bool:
        """Offer the commands that begin like the text. Returns whether there are any."""
        typing_a_name = text.startswith("/") and " " not in text and "\n" not in text
        found = matching(text[1:]) if typing_a_name else ()
        self.set_class(bool(found), "-open")
        if found:
            self.clear_options()
            self.add_options(_option(command) for command in found)
            self.highlighted = 0
        return bool(found)

    def close(self) -> None:
        self.remove_class("-open")

    @property
    def chosen(self) -> str | None:
        """The name of the highlighted command."""
        option = self.highlighted_option
        return option.id if option is not None else None


def _option(command: Command) -> Option:
    key = (f"  {command.key_label}" if command.key else "", "dim")
    return Option(Content.assemble((f"/{command.usage:<27}", "bold"), command.help, key), id=command.name)
