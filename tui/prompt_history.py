"""What was typed before, across conversations: one JSON string a line, for its owner only."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

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
        entries: list[str] = []
        try:
            lines = path.read_text("utf-8").splitlines()[-LIMIT:]
            entries = [text for line in lines if isinstance(text := json.loads(line), str)]
        except (OSError, ValueError):
            pass  # a lost history is no reason to keep anyone from typing
        return cls(path, entries, len(entries))

    def add(self, text: str) -> None:
        """Remember a prompt. Raises OSError."""
        if text and len(text) <= LONGEST and (not self.entries or self.entries[-1] != text):
            self.entries.append(text)
            if self.path is not None:
                self._write(self.path, text)
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

    def _write(self, path: Path, text: str) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            file.write(json.dumps(text).encode() + b"\n")
