"""Tokens to text, one at a time, never breaking a character."""

import codecs
from collections.abc import Set as AbstractSet

from localspec.chat.vocabulary import Vocabulary
from localspec.structure.tokens import prefixes_space


class Detokenizer:
    """Text from tokens as soon as its characters are complete.

    Bytes that can no longer become a character turn into U+FFFD; the start of one is held. Control tokens
    give no text, except those in `visible`, which give their name. With `starts_text` the reply begins a text
    of its own: the space that SentencePiece vocabularies put before the first word is left out.
    """

    def __init__(
        self, vocabulary: Vocabulary, *, visible: AbstractSet[int] = frozenset(), starts_text: bool = True
    ) -> None:
        self._piece = vocabulary.piece
        self._names = {token: vocabulary.text(token).encode() for token in visible}
        self._held = b""
        self._drops_space = starts_text and prefixes_space(vocabulary)

    def push(self, token: int) -> str:
        """The text that is complete with this token."""
        piece = self._names[token] if token in self._names else self._piece(token)
        if self._drops_space and piece:
            self._drops_space = False
            piece = piece.removeprefix(b" ")
        if self._held:
            piece = self._held + piece
        try:
            text = piece.decode()
            self._held = b""
        except UnicodeDecodeError:
            text, used = codecs.utf_8_decode(piece, "replace", False)
            self._held = piece[used:]
        return text

    def flush(self) -> str:
        """What was held back, when no more tokens follow."""
        held, self._held = self._held, b""
        return held.decode(errors="replace")
