"""What was typed before, across conversations: one JSON string a line, for its owner only."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from localspec.files import append_json_lines, read_json_lines

LIMIT: Final = 500
LONGEST: Final = 20_000  # characters; a pasted book is not worth recalling


@dataclass(slots=True)
class PromptHistory:
    """Walks back and forth through earlier prompts; the text that was being typed waits at the end."""

    path: Path | None = None
    entries: list[str] = field(default_factory=list)
    _index: int = 0
    _unsent: str = ""

    @classmethod
    def load(cls, path: Path) -> "PromptHistory":
        """The last prompts from a file; lines that a crash cut short are skipped."""
        try:
            values, _damaged = read_json_lines(path)
        except OSError:
            values = []  # a lost history is no reason to keep anyone from typing
        entries = [value for value in values if isinstance(value, str)][-LIMIT:]
        return cls(path, entries, len(entries))

    def add(self, text: str) -> None:
        """Remember a prompt. Raises OSError."""
        if text and len(text) <= LONGEST and (not self.entries or self.entries[-1] != text):
            self.entries.append(text)
            if self.path is not None:
                append_json_lines(self.path, [text])
        self._index = len(self.entries)

    def older(self, current: str) -> str | None:
        if self._index == 0:
            return None
        if self._index == len(self.entries):
            self._unsent = current
        self._index -= 1
        return self.entries[self._index]

    def newer(self) -> str | None:
        if self._index >= len(self.entries):
            return None
        self._index += 1
        return self._unsent if self._index == len(self.entries) else self.entries[self._index]
