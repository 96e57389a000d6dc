"""The conversation that is on the screen: its messages in memory and its journal on disk, always in that order."""

import asyncio
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from localspec import conversations
from localspec.conversations import Conversation, Journal, Message
from localspec.engine.messages import Turn


@dataclass(slots=True)
class Dialogue:
    """Changes reach the disk first and memory after, so what is shown as finished is saved."""

    journal: Journal
    messages: list[Message] = field(default_factory=list)
    # Two writers in two threads could swap lines.
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @classmethod
    def new(cls, folder: Path, pair: str, system: str) -> "Dialogue":
        return cls(Journal.new(folder, pair, system))

    @classmethod
    def resume(cls, path: Path) -> "Dialogue":
        """Go on with a conversation. Raises ConversationInUse, BrokenConversation."""
        return cls.going_on(*conversations.resume(path))

    @classmethod
    def going_on(cls, journal: Journal, conversation: Conversation) -> "Dialogue":
        """Go on with a conversation that is held."""
        return cls(journal, list(conversation.messages))

    def close(self) -> None:
        """Let others open the conversation."""
        self.journal.close()

    async def add(self, message: Message) -> None:
        """Save a message, then hold it. Raises OSError, and holds it all the same."""
        try:
            await self._write(lambda: self.journal.add(message))
        finally:
            self.messages.append(message)

    async def keep(self, count: int) -> None:
        """Drop everything after the first `count` messages. Raises OSError."""
        if count < len(self.messages):
            try:
                await self._write(lambda: self.journal.keep(count))
            finally:
                del self.messages[count:]

    async def _write(self, write: Callable[[], None]) -> None:
        async with self._writing:
            await asyncio.to_thread(write)

    @property
    def last_question(self) -> int | None:
        """The index of the last message that the person wrote."""
        return next((i for i in reversed(range(len(self.messages))) if self.messages[i].role == "user"), None)

    def turns(self) -> tuple[Turn, ...]:
        """What the engine is asked: the system prompt and the messages."""
        system = [Turn("system", self.journal.system)] if self.journal.system else []
        return (*system, *merged(Turn(m.role, m.content) for m in self.messages))


def merged(turns: Iterable[Turn]) -> tuple[Turn, ...]:
    """Neighbours of one role as one turn: many chat templates refuse two questions in a row."""
    groups = itertools.groupby(turns, key=lambda turn: turn.role)
    return tuple(Turn(role, "\n\n".join(turn.content for turn in group)) for role, group in groups)
