"""The reasoning of a reply, which folds."""

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from localspec.events import Piece
from localspec.terminal_text import for_terminal


class ReasoningView(Vertical):
    """The reasoning of a reply: one line that says how long it is, and the text below when unfolded."""

    def __init__(self, unfolded: bool) -> None:
        super().__init__(classes="thinking -unfolded" if unfolded else "thinking")
        self._text: list[str] = []
        self._tokens = 0
        self._running = True
        self._head = Static(markup=False, classes="head")
        self._body = Static(markup=False, classes="thought")

    def compose(self) -> ComposeResult:
        yield self._head
        yield self._body

    def grow(self, pieces: list[Piece]) -> None:
        self._text += [piece.text for piece in pieces]
        self._tokens += len(pieces)
        self._show()

    def end(self) -> None:
        """The answer has begun."""
        if self._running:
            self._running = False
            self._show()

    def finish(self, text: str, tokens: int) -> None:
        self._running = False
        self._text, self._tokens = [text], tokens
        self._show()

    def unfold(self, unfolded: bool) -> None:
        self.set_class(unfolded, "-unfolded")
        self._show()

    def on_click(self) -> None:
        self.unfold(not self.has_class("-unfolded"))

    def _show(self) -> None:
        mark = "▾" if self.has_class("-unfolded") else "▸"
        verb = "thinking" if self._running else "thought for"
        self._head.update(f"{mark} {verb} {self._tokens:,} tokens")
        if self.has_class("-unfolded"):
            self._body.update(for_terminal("".join(self._text).strip()))
