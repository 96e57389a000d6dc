"""The theme picker: shows each theme while it is highlighted."""

from textual import on
from textual.app import ComposeResult
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from .base import Dialog


class ThemesDialog(Dialog[str]):
    """Answers with the name of a theme."""

    BOX_TITLE = "Theme"
    KEYS = "↑ ↓ try · ↵ keep · esc leave as it was"

    def content(self) -> ComposeResult:
        names = sorted(self.app.available_themes)
        options = OptionList(*(Option(name, id=name) for name in names))
        options.highlighted = names.index(self.app.theme)
        yield options

    @on(OptionList.OptionHighlighted)
    def _try(self, event: OptionList.OptionHighlighted) -> None:
        if event.option.id:
            self.app.theme = event.option.id

    @on(OptionList.OptionSelected)
    def _take(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option.id)
