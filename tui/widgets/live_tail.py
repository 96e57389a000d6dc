"""The end of a growing reply, token by token, styled by where each token came from; never by colour alone."""

from collections import deque
from collections.abc import Iterable
from typing import Final

from textual.content import Content, Span
from textual.widgets import Static

from localspec.events import Origin, Piece, Source
from localspec.terminal_text import for_terminal

from ..state.preferences import TokenStyle

_SUBTLE: Final = {
    Origin.FIX: "underline $text-warning",
    Origin.BONUS: "bold $text-accent",
    Origin.FORCED: "reverse",
}
_STRONG_ACCEPTED: Final = "on $success-muted"
_COPIED: Final = "italic"
_PLAIN: Final = "dim"
_REJECTED: Final = "dim strike"
COPYING: Final = frozenset({Source.LOOKUP, Source.PREDICTION})  # they draft from text that is there
CURSOR: Final = "▌"

LEGEND: Final = Content.assemble(
    "accepted · ",
    ("copied", _COPIED),
    " · ",
    ("fix", _SUBTLE[Origin.FIX]),
    " · ",
    ("bonus", _SUBTLE[Origin.BONUS]),
    " · ",
    ("plain", _PLAIN),
    " · ",
    ("rejected", _REJECTED),
)


class LiveTail(Static):
    """Text of no finished block yet."""

    def __init__(self) -> None:
        super().__init__(markup=False, classes="tail")
        self._pieces: deque[Piece] = deque()
        self._height = 0  # lines, as last drawn

    def grow(self, pieces: Iterable[Piece]) -> None:
        self._pieces.extend(pieces)

    def drop(self, characters: int) -> None:
        """Forget so many characters from the front."""
        while characters > 0:
            piece = self._pieces.popleft()
            if (left := len(piece.text) - characters) > 0:
                self._pieces.appendleft(Piece(piece.text[-left:], piece.kind, piece.origin, piece.source))
            characters -= len(piece.text)

    def show(self, style: TokenStyle, rejected: Iterable[str] = ()) -> None:
        text = "".join(piece.text for piece in self._pieces)
        content = Content(for_terminal(text), list(_spans(self._pieces, style)))
        if style is TokenStyle.STRONG:
            content += Content(for_terminal("".join(rejected))).stylize(_REJECTED)
        self._draw(content + CURSOR)

    def _draw(self, content: Content) -> None:
        """Laying out the whole conversation costs far more than a line: only when the height changes."""
        height = content.get_height({}, self.content_size.width) if self.content_size.width else 0
        self.update(content, layout=height != self._height)
        self._height = height


def _spans(pieces: Iterable[Piece], style: TokenStyle) -> Iterable[Span]:
    start = 0
    for piece in pieces:
        end = start + len(piece.text)
        if end > start and (look := style_of(piece, style)):
            yield Span(start, end, look)
        start = end


def style_of(piece: Piece, style: TokenStyle) -> str:
    """The Textual style of a token; "" for the common case, an accepted token of a draft model or a head."""
    if style is TokenStyle.OFF:
        return ""
    looks = [_SUBTLE.get(piece.origin, "")]
    if piece.origin is Origin.ACCEPTED and style is TokenStyle.STRONG:
        looks.append(_STRONG_ACCEPTED)
    if piece.origin is Origin.ACCEPTED and piece.source in COPYING:
        looks.append(_COPIED)
    if piece.origin is Origin.PLAIN:
        looks.append(_PLAIN)
    return " ".join(look for look in looks if look)
