"""Text of models and files on a terminal: characters that would steer it are shown as a sign instead."""

from typing import Final

_CONTROLS: Final = {
    code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in ("\n", "\t")
} | {ord("\r"): " "}


def for_terminal(text: str) -> str:
    """The text with U+FFFD for every control character but newline and tab, one for one; blank for a return.

    Raw, they could set the clipboard, the colours or the title, or draw over what is on the screen.
    """
    return text.translate(_CONTROLS)
