"""What was typed before, across conversations: one JSON string a line, for its owner only."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from localspec.files import append_json_lines, read_json_lines, write_text_atomically
from localspec.locks import locked

LIMIT: Final = 500
MOST_LINES: Final = 2 * LIMIT  # in the file; with more of them it is written anew
LONGEST: Final = 20_000  # characters; a pasted book is not worth recalling


@dataclass(slots=True)
class PromptHistory:
    """Walks back and forth through earlier prompts; the text that was being typed waits at the end."""

    path: Path
    stored: bool = True  # False: what is added is gone with the program
    entries: list[str] = field(default_factory=list)
    _index: int = 0
    _unsent: str = ""
    _lines: int = 0  # of the file

    @classmethod
    def load(cls, path: Path, *, stored: bool = True) -> "PromptHistory":
        """The last prompts from a file; lines that a crash cut short are skipped."""
        try:
            prompts, damaged = _read(path)
        except OSError:
            prompts, damaged = [], 0  # a lost history is no reason to keep anyone from typing
        entries = prompts[-LIMIT:]
        return cls(path, stored, entries, len(entries), _lines=len(prompts) + damaged)

    def add(self, text: str) -> None:
        """Remember a prompt. Raises OSError."""
        new = text and len(text) <= LONGEST and (not self.entries or self.entries[-1] != text)
        if new:
            self.entries.append(text)
        self._index = len(self.entries)
        if new and self.stored:
            self._save(text)

    def forget(self, texts: Collection[str]) -> None:
        """Remove prompts, also from the file. Raises OSError."""
        self.entries = [text for text in self.entries if text not in texts]
        self._index = len(self.entries)
        if not self.path.exists():
            return
        with locked(self.path.parent):
            prompts, damaged = _read(self.path)
            kept = [text for text in prompts if text not in texts]
            if damaged or len(kept) < len(prompts):
                self._rewrite(kept)

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

    def _save(self, text: str) -> None:
        with locked(self.path.parent):
            append_json_lines(self.path, [text])
            self._lines += 1
            if self._lines > MOST_LINES:
                self._rewrite(_read(self.path)[0][-LIMIT:])

    def _rewrite(self, prompts: Sequence[str]) -> None:
        write_text_atomically(self.path, "".join(json.dumps(text) + "\n" for text in prompts))
        self._lines = len(prompts)


def _read(path: Path) -> tuple[list[str], int]:
    """The prompts in a file, and how many lines were none. Raises OSError."""
    try:
        values, damaged = read_json_lines(path)
    except FileNotFoundError:
        return [], 0
    prompts = [value for value in values if isinstance(value, str)]
    return prompts, damaged + len(values) - len(prompts)
