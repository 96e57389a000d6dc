"""Turns llama.cpp's stream of log fragments into whole lines for `logging`, and remembers the last errors."""

import logging
import re
from collections import deque

logger = logging.getLogger("localspec.llama")
# Without a handler, logging's last resort would print warnings on stderr, where the terminal UI draws.
logger.addHandler(logging.NullHandler())

_CONTINUES = 5  # GGML_LOG_LEVEL_CONT: more of the line before
_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}  # GGML_LOG_LEVEL
_EXPECTED = re.compile(r"adding \d+ dummy tokens")  # of every trimmed model, which has no tokenizer


class LogRouter:
    """Joins fragments to lines, passes them on, and keeps the last error lines for messages to quote."""

    def __init__(self, remembered: int = 16) -> None:
        self._line = ""
        self._level = logging.INFO
        self._errors: deque[str] = deque(maxlen=remembered)

    @property
    def errors(self) -> tuple[str, ...]:
        """The last error lines since `forget`, oldest first."""
        return tuple(self._errors)

    def forget(self) -> None:
        self._errors.clear()

    def write(self, level: int, text: str) -> None:
        """Take one fragment; `level` is a GGML_LOG_LEVEL."""
        if level != _CONTINUES:
            self._emit()
            self._level = _LEVELS.get(level, logging.INFO)
        *whole, rest = (self._line + text).split("\n")
        for self._line in whole:
            self._emit()
        self._line = rest

    def _emit(self) -> None:
        line, self._line = self._line.rstrip(), ""
        if not line:
            return
        if self._level >= logging.ERROR:
            self._errors.append(line)
        logger.log(logging.DEBUG if _EXPECTED.search(line) else self._level, "%s", line)
