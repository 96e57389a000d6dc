"""Stand-ins for the characters of message content, so that a rendered prompt shows who wrote what."""

import re
from collections.abc import Iterable, Iterator

from localspec.chat.messages import Message

# Private use planes: no vocabulary and no template gives these characters a meaning.
_FIRST, _LAST = 0xF0000, 0x10FFFD
_PRIVATE = re.compile(f"[{chr(_FIRST)}-{chr(_LAST)}]")


class Shield:
    """Replaces characters one for one, and back; what matches `open_texts` is left as it is."""

    def __init__(
        self, characters: Iterable[str], taken: Iterable[str], open_texts: Iterable[str] = ()
    ) -> None:
        """`taken` are texts whose own private characters must not serve as stand-ins."""
        stand_ins = _unused(taken)
        pairs = [(character, next(stand_ins)) for character in sorted(set(characters))]
        self._hide = str.maketrans(dict(pairs))
        self._show = str.maketrans({stand_in: character for character, stand_in in pairs})
        longest_first = sorted(open_texts, key=len, reverse=True)
        self._open = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def hide(self, message: Message) -> Message:
        """The message with stand-ins in all its texts."""
        return message.with_texts(self._hidden)

    def show(self, text: str) -> str:
        """A text with the stand-ins replaced by what they stand for; its length stays."""
        return text.translate(self._show)

    def _hidden(self, text: str) -> str:
        if not self._open:
            return text.translate(self._hide)
        parts, done = [], 0
        for match in self._open.finditer(text):
            parts += [text[done : match.start()].translate(self._hide), match.group()]
            done = match.end()
        return "".join([*parts, text[done:].translate(self._hide)])


def _unused(taken: Iterable[str]) -> Iterator[str]:
    used = {character for text in taken for character in _PRIVATE.findall(text)}
    return (chr(code) for code in range(_FIRST, _LAST) if chr(code) not in used)
