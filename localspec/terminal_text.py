"""Text of models and files on a terminal: characters that would steer it are shown as a sign instead."""

from typing import Final

_STEERING: Final = (*range(0x20), *range(0x7F, 0xA0))
# Embeddings, overrides and isolates; the marks U+061C, U+200E and U+200F belong to ordinary Arabic and Hebrew.
_REORDERING: Final = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_BREAKING: Final = (0x2028, 0x2029)
_UNPRINTABLE: Final = range(0xD800, 0xE000)  # surrogates
_CONTROLS: Final = (*_STEERING, *_REORDERING, *_BREAKING, *_UNPRINTABLE)
_IN_A_LINE: Final = dict.fromkeys(_CONTROLS, "\ufffd")
_IN_A_TEXT: Final = {code: sign for code, sign in _IN_A_LINE.items() if chr(code) not in "\n\t"} | {
    ord("\r"): " "
}

_NOTHING: Final = dict.fromkeys(_CONTROLS)


def for_terminal(text: str) -> str:
    """The text with U+FFFD for every control character but newline and tab, one for one; blank for a return.

    Raw, they could set the clipboard, the colours or the title, or draw over what is on the screen.
    """
    return text.translate(_IN_A_TEXT)


def line_for_terminal(text: str) -> str:
    """The text with U+FFFD for every control character, newline and tab included: it stays one line."""
    return text.translate(_IN_A_LINE)


def without_controls(text: str) -> str:
    """The text without control characters; as they take no cell of a terminal, it is as wide as before."""
    return text if text.isprintable() else text.translate(_NOTHING)
