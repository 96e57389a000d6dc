"""The user's preferences and earlier prompts; a save keeps changes that other chats made to the file."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from localspec.conversations import conversations
from localspec.files import read_as, read_json_object

LONGEST: Final = 20_000  # a prompt with more characters is not kept in the history


@dataclass(frozen=True, slots=True)
class Preferences:
    theme: str = "localspec"
    colours: bool = True  # whether tokens are coloured by origin
    inspector: bool = False

    @classmethod
    def load(cls, path: Path) -> "Preferences":
        try:
            values = read_json_object(path)
        except (OSError, ValueError):
            return cls()
        chosen: dict[str, Any] = {}
        for name, kind in (("theme", str), ("colours", bool), ("inspector", bool)):
            with suppress(KeyError, ValueError):
                chosen[name] = read_as(kind, values[name])
        return cls(**chosen)


class PromptHistory:
    def __init__(self, folder: Path, *, stored: bool = True) -> None:
        self._folder, self._stored = folder, stored
        self._back = 0  # position of the recalled entry, counted from the end; 0: no entry is recalled
        self._unsent = ""  # the prompt's text before an entry was recalled

    @cached_property
    def entries(self) -> list[str]:
        try:
            return conversations.prompts(self._folder)
        except OSError:  # an unreadable history must not stop the chat
            return []

    def add(self, text: str, conversation: str = "") -> None:
        """Add a prompt; the deletion of `conversation` deletes the prompt too. Raises OSError."""
        self._back = 0
        if text and len(text) <= LONGEST and self.entries[-1:] != [text]:
            self.entries.append(text)
            if self._stored:
                conversations.add_prompt(self._folder, text, conversation)

    def reload(self) -> None:
        self.__dict__.pop("entries", None)
        self._back = 0

    def older(self, current: str) -> str | None:
        if self._back == len(self.entries):
            return None
        if not self._back:
            self._unsent = current
        self._back += 1
        return self.entries[-self._back]

    def newer(self) -> str | None:
        if not self._back:
            return None
        self._back -= 1
        return self.entries[-self._back] if self._back else self._unsent


class Saver:
    """A queue that runs saves one after the other; `tell` shows the notice or the error of a save."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._last: asyncio.Task[None] | None = None  # a Textual worker would be cancelled at the app's end

    def save(self, work: Callable[[], str | None]) -> None:
        self._last = asyncio.create_task(self._run(work, self._last))

    async def finish(self) -> None:
        if self._last is not None:
            await self._last

    async def _run(self, work: Callable[[], str | None], before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        try:
            notice = await asyncio.to_thread(work)
        except OSError as error:
            notice = f"A prompt or preference could not be saved: {error}"
        if notice:
            self._tell(f"{notice}.")
