"""Preferences, presets and prompts: each change applies to the file as other chats have left it."""

import asyncio
import json
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from localspec.errors import BadSetting
from localspec.files import (
    append_json_lines,
    change_json_object,
    locked,
    read_as,
    read_json_lines,
    read_json_object,
    write_text_atomically,
)

LIMIT: Final = 500  # prompts
MOST_LINES: Final = 2 * LIMIT  # in the file; with more of them it is rewritten
LONGEST: Final = 20_000  # characters; a pasted book is not worth recalling


@dataclass(frozen=True, slots=True)
class Preferences:
    theme: str = "localspec"
    colours: bool = True  # of words, by who wrote them
    inspector: bool = False

    @classmethod
    def load(cls, path: Path) -> "Preferences":
        """Preferences from a file; missing or damaged ones have their defaults."""
        try:
            values = read_json_object(path)
        except (OSError, ValueError):
            return cls()
        chosen: dict[str, Any] = {}
        for name, kind in (("theme", str), ("colours", bool), ("inspector", bool)):
            with suppress(KeyError, ValueError):
                chosen[name] = read_as(kind, values[name])
        return cls(**chosen)


@dataclass(frozen=True, slots=True)
class Presets:
    """System prompts by name in a file, read each time because other chats write it too."""

    path: Path

    def load(self) -> dict[str, str]:
        """Names and texts; an entry that is no text is left out. Raises BadSetting for a damaged file."""
        try:
            values = read_json_object(self.path)
        except (OSError, ValueError) as error:
            hint = "repair it; a new preset begins a new file and keeps this one"
            raise BadSetting(f"{self.path} cannot be read: {error}", hint=hint) from error
        return {name: text for name, text in values.items() if isinstance(text, str) and text}

    def save(self, name: str, text: str) -> str:
        """Keep a text under a name, or forget it; says where a damaged file was put, if one was. Raises BadSetting."""
        try:
            return change_json_object(self.path, {name: text or None})
        except OSError as error:
            what = f"{self.path} cannot be written: {error.strerror}"
            raise BadSetting(what, hint="check its folder and the disk") from error


@dataclass(slots=True)
class PromptHistory:
    """Walks back and forth through earlier prompts; the text that was being typed waits at the end."""

    path: Path
    stored: bool = True  # False: additions end with the program
    entries: list[str] = field(default_factory=list)
    _index: int = 0
    _unsent: str = ""
    _lines: int = 0  # of the file

    @classmethod
    def load(cls, path: Path, *, stored: bool = True) -> "PromptHistory":
        """The last prompts from a file; lines that a crash cut short are skipped."""
        try:
            prompts, lines = _read(path)
        except OSError:
            prompts, lines = [], 0  # a lost history is no reason to keep anyone from typing
        entries = prompts[-LIMIT:]
        return cls(path, stored, entries, len(entries), _lines=lines)

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
            self._rewrite([text for text in _read(self.path)[0] if text not in texts])

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
    """The prompts in a file, and the number of its lines. Raises OSError."""
    values, damaged = read_json_lines(path)
    return [value for value in values if isinstance(value, str)], damaged + len(values)


class Saver:
    """Runs saves one after the other; `tell` gets a sentence about those that fail, and what others return."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        # A task of its own: Textual cancels its workers when the app ends.
        self._last: asyncio.Task[None] | None = None

    def save(self, work: Callable[[], str | None]) -> None:
        self._last = asyncio.create_task(self._run(work, self._last))

    async def finish(self) -> None:
        if self._last is not None:
            await self._last

    async def _run(self, work: Callable[[], str | None], before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])  # whatever became of it
        try:
            told = await asyncio.to_thread(work)
        except OSError as error:
            told = f"Could not be remembered: {error}"
        if told:
            self._tell(f"{told}.")
