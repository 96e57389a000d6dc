"""Finds code in a reply."""

import re

_BLOCK = re.compile(r"^(?P<marks>`{3,}|~{3,})[^\n]*\n(?P<code>.*?)^(?P=marks)\s*$", re.MULTILINE | re.DOTALL)


def last_code_block(markdown: str) -> str:
    """The code of the last fenced block; "" when there is none."""
    blocks = [match["code"] for match in _BLOCK.finditer(markdown)]
    return blocks[-1] if blocks else ""
