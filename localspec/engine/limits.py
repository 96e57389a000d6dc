"""Limits that end a reply early: after some time at the next line end, or when its text repeats itself."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from localspec.chat.text import LONGEST_BLOCK, REPEATS, repeated_block
from localspec.events import Cycle, Event, Finished, FinishReason, Piece

_INSIDE_A_LINE = 48  # a loop of fewer tokens inside a line may go on, because "ha ha ha" may be intended
# Letters, emoji and parts of emoji. Text without them, as rulers and columns of numbers, may repeat for longer.
_WORDS = re.compile("[^\\W\\d_]|[\U0001f000-\U0001faff\ufffd]")
LOOPED = (
    "the reply repeated the same text eight times, so localspec ended it; "
    "`stop_loops = false` in config.toml lets replies repeat themselves"
)


class Limit:
    """A limit of a reply; this base class sets none."""

    reason = FinishReason.LENGTH

    def __init__(self) -> None:
        self.reached = False  # whether the reply has to end

    def seen(self, event: Event) -> Event:
        """Return the event. A Finished gets this limit's finish reason if the limit has ended the reply."""
        self.reached = self.reached or self._is_reached(event)
        if not self.reached or not isinstance(event, Finished):
            return event
        cancelled = event.reply.finish_reason is FinishReason.CANCELLED
        return Finished(replace(event.reply, finish_reason=self.reason)) if cancelled else event

    def _is_reached(self, event: Event) -> bool:
        return False


class LineLimit(Limit):
    """A limit that ends a reply at the first line end after some seconds."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._seconds, self._clock = seconds, clock
        self._began: float | None = None  # time of the first text; None before the first

    def _is_reached(self, event: Event) -> bool:
        if not isinstance(event, Piece):
            return False
        self._began = self._clock() if self._began is None else self._began
        return self._clock() - self._began > self._seconds and "\n" in event.text


class LoopLimit(Limit):
    """A limit that ends a reply when its text repeats itself, except in code blocks and tables."""

    reason = FinishReason.REPETITION

    def __init__(self, text_of: Callable[[Sequence[int]], str]) -> None:
        """`text_of`: a function that returns the text of tokens."""
        super().__init__()
        self._text_of = text_of
        self._tokens: list[int] = []
        self._text = ""

    def _is_reached(self, event: Event) -> bool:
        if isinstance(event, Piece):
            self._text += event.text
        if not isinstance(event, Cycle):
            return False
        self._tokens = (self._tokens + list(event.tokens))[-REPEATS * LONGEST_BLOCK :]
        if not (block := self._text_of(repeated_block(self._tokens))):
            return False
        least = _INSIDE_A_LINE * ("\n" not in block) if _WORDS.search(block) else REPEATS * LONGEST_BLOCK
        return bool(repeated_block(self._tokens, least)) and not _is_laid_out(self._text)


def _is_laid_out(text: str) -> bool:
    """Return whether the text ends in a code block or a table."""
    lines = text.rstrip("\n").split("\n")
    in_code = sum(line.lstrip().startswith(("```", "~~~")) for line in lines) % 2 == 1
    return in_code or lines[-1].lstrip().startswith("|")
