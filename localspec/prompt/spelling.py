"""Texts of a conversation in another spelling: with JSON escapes where a reply may be JSON, or without them.

An agent writes a file as a JSON string, with escaped line ends and quotes. If the conversation has the file in only
one spelling, drafts in the other spelling are copied from these texts.
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate

from localspec.algorithm.protocols import Vocabulary
from localspec.prompt.messages import Message
from localspec.structure.tool_call_format import ToolCallFormat

LEAST = 64  # shorter texts are left out, because they save little
MOST = 1 << 18  # limit of characters for one reply, the newest texts first
KEPT = 1 << 20  # limit of characters whose tokens are kept for later replies
_STRING = re.compile(r'\\.|"((?:[^"\\\n]|\\.)*+)"')  # an escaped quote outside a string begins no string


class Spellings:
    """Texts in the other spelling as tokens. The tokens of a text are kept while the text is among the newest."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._known: dict[str, tuple[int, ...]] = {}  # tokens by text, the latest last

    def of(
        self, messages: Sequence[Message], prompt: ToolCallFormat, reply: ToolCallFormat | None
    ) -> tuple[tuple[int, ...], ...]:
        """Return texts to copy from, as tokens. `prompt`, `reply`: how each spells calls; None: no call is expected."""
        found, room = dict[str, tuple[int, ...]](), MOST
        for text in _spelled(messages, prompt, reply):
            if LEAST <= len(text) <= room and text not in found:
                room -= len(text)
                tokens = self._known.get(text) or self._vocabulary.tokenize(text, parse_special=False)
                found[text] = tuple(tokens)
        # Replace the dictionary as a whole, because other sessions may read it meanwhile.
        known = {text: tokens for text, tokens in self._known.items() if text not in found} | found
        sizes = accumulate(map(len, reversed(known)))
        stays = sum(size <= KEPT for size in sizes)
        self._known = dict([*known.items()][len(known) - stays :])
        return tuple(found.values())


def _spelled(
    messages: Sequence[Message], prompt: ToolCallFormat, reply: ToolCallFormat | None
) -> Iterator[str]:
    """Yield the texts that the prompt spells in another way, those of the newest message first."""
    for message in reversed(messages):
        for text in replace(message, content="", reasoning="").texts if message.tool_calls else ():
            if prompt.inside(text) != text:
                yield text
        content = message.content
        for string in _STRING.finditer(content) if "\\n" in content else ():
            if len(string[0]) > LEAST and "\\n" in string[0]:
                with suppress(ValueError):
                    yield json.loads(string[0])
        if reply and (text := reply.inside(content)) != content:
            yield text
