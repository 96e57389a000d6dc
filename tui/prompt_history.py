"""What was typed before, across conversations: one JSON string a line, for its owner only."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

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
            lines = path.read_bytes().split(b"\n")
        except OSError:
            lines = []  # a lost history is no reason to keep anyone from typing
        entries = [text for line in lines if (text := _text(line)) is not None][-LIMIT:]
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
        # O_BINARY keeps Windows from turning the newlines into pairs.
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(path, flags, 0o600), "a+b") as file:
            # A line that a crash cut short stays alone.
            start = b"\n" if _ends_inside_a_line(file) else b""
            file.write(start + json.dumps(text).encode() + b"\n")


def _text(line: bytes) -> str | None:
    try:
        text = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return text if isinstance(text, str) else None


def _ends_inside_a_line(file: BinaryIO) -> bool:
    if file.seek(0, os.SEEK_END) == 0:
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"
