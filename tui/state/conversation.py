"""The open conversation in memory and on the disk, and its export as Markdown."""

import asyncio
import itertools
import re
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from localspec.conversations import conversations
from localspec.conversations.conversations import Conversation, StoredMessage, as_json
from localspec.errors import BadSetting
from localspec.files import FileLock, expanded, write_text_atomically
from localspec.prompt.messages import Message, Messages


@dataclass(slots=True)
class OpenConversation:
    folder: Path
    about: Conversation  # the conversation's data, without its messages
    messages: list[StoredMessage] = field(default_factory=list)
    stored: bool = True  # whether the conversation is saved on disk
    is_behind: bool = False  # whether the last write failed
    lock: FileLock | None = None  # the conversation's lock, taken at the first write
    # Messages that an edited question replaces. They stay on disk until the edited question has a reply.
    _replaced: tuple[StoredMessage, ...] = ()
    # Unsaved copies of the conversation, each from before a question was edited.
    _unsaved_copies: list[Conversation] = field(default_factory=list)
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)  # locked by one write at a time

    @classmethod
    def resumed(cls, folder: Path, lock: FileLock, found: Conversation, *, stored: bool) -> Self:
        return cls(folder, replace(found, messages=(), course_of=""), list(found.messages), stored, lock=lock)

    async def ask(self, message: StoredMessage, instead_of: int | None = None) -> None:
        """Add a question; with `instead_of`, replace the messages from that index on. Raises OSError."""
        if instead_of is None:
            await self.add(message)
        else:
            self._replaced = tuple(self.messages[instead_of:])
            self.messages[instead_of:] = [message]

    async def add(self, message: StoredMessage) -> None:
        """Add and save a message; a second reply becomes the newest version of the reply. Raises OSError."""
        if message.role == "assistant" and not message.pair:
            message = replace(message, pair=self.about.pair)
        if message.role == "assistant" and self.reply:
            self.messages[-1] = self.reply.replaced_by(message)
        else:
            if self.drops_replies:
                earlier, name = (*self.messages[:-1], *self._replaced), Conversation.new().name
                copy = replace(self.about, name=name, messages=earlier, course_of=self.about.name)
                self._unsaved_copies.append(copy)
            self._replaced = ()
            self.messages.append(message)
        self.about = replace(self.about, talked=time.time())
        await self.save()

    @property
    def stored_name(self) -> str:
        return self.about.name if self.stored else ""

    @property
    def is_changed(self) -> bool:
        """Whether the last question replaces earlier messages and has no reply yet."""
        return bool(self._replaced)

    @property
    def drops_replies(self) -> bool:
        """Whether the edited question replaces more messages than the old question and its reply."""
        return len(self._replaced) > 2

    async def take_back(self) -> None:
        """Drop the last question, and restore the messages that it replaced. Raises OSError."""
        self.messages[-1:], self._replaced = self._replaced, ()
        await self.save()

    async def choose(self, index: int, version: int) -> None:
        self.messages[index] = self.messages[index].in_version(version)
        await self.save()

    async def rename(self, title: str) -> None:
        """Set the title; for "", the first question becomes the title. Raises OSError."""
        self.about = replace(self.about, given_title=title)
        await self.save()

    async def save(self) -> None:
        """Lock and write the conversation. Raises OSError."""
        if not self.stored:
            return
        async with self._writing:
            lasting = (*self.messages[:-1], *self._replaced) if self._replaced else tuple(self.messages)
            written = (replace(self.about, messages=lasting), *self._unsaved_copies)
            self.is_behind = True
            self.lock = self.lock or await asyncio.to_thread(conversations.hold, self.folder, self.about.name)
            await asyncio.to_thread(conversations.save, self.folder, *written)
            del self._unsaved_copies[: len(written) - 1]
            self.is_behind = False

    def close(self) -> None:
        if self.lock is not None:
            self.lock.release()

    @property
    def reply(self) -> StoredMessage | None:
        return self.messages[-1] if self.messages and self.messages[-1].role == "assistant" else None

    @property
    def questions(self) -> list[int]:
        return [index for index, message in enumerate(self.messages) if message.role == "user"]

    @property
    def last_question(self) -> int | None:
        return self.questions[-1] if self.questions else None

    @property
    def saved(self) -> Conversation:
        return replace(self.about, messages=tuple(self.messages))

    def turns(self, typed: str = "") -> Messages:
        """Return the messages for a request: the system prompt, then all up to the last question or the typed text."""
        system = [Message("system", self.about.system)] if self.about.system else []
        asked = self.messages[: (self.last_question or 0) + 1]
        if typed:
            asked = [*self.messages, StoredMessage("user", typed)]
        # Join consecutive messages of one role, because many chat templates refuse two questions in a row.
        groups = itertools.groupby(asked, key=lambda message: message.role)
        return (*system, *(_joined(role, [*group]) for role, group in groups))


def _joined(role: str, group: list[StoredMessage]) -> Message:
    images = tuple(image for one in group for image in one.images)
    return Message(role, "\n\n".join(one.content for one in group), images=images)


def write_export(conversation: Conversation, name: str) -> Path:
    """Write JSON if `name` ends with .json, else Markdown; return the file's path. Raises BadSetting."""
    text = as_json(conversation, indent=2) + "\n" if name.endswith(".json") else to_markdown(conversation)
    path = expanded(name).absolute()
    try:
        if path.exists():
            raise BadSetting(f"{name} exists already", hint="give another name")
        if not path.parent.is_dir():
            raise NotADirectoryError(0, "its folder does not exist")
        write_text_atomically(path, text)
    except (OSError, ValueError) as error:  # ValueError: the name has a null byte or a lone surrogate
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadSetting(f"{name} cannot be written: {reason}", hint="give another path") from error
    return path


def free_name(conversation: Conversation) -> str:
    title = re.sub(r"\W+", "-", conversation.title.lower()).strip("-") or conversation.name
    numbers = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    return next(name for number in numbers if not Path(name := f"{title}{number}.md").exists())


def to_markdown(conversation: Conversation) -> str:
    pairs = ", ".join(dict.fromkeys(reply.pair for reply in conversation.messages if reply.pair))
    sections = [
        f"# {conversation.title}",
        f"*{pairs or conversation.pair} · exported {datetime.now(UTC):%Y-%m-%d}*",
    ]
    if conversation.system:
        sections.append(f"## System\n\n{conversation.system}")
    for message in conversation.messages:
        sections.append(f"## {'You' if message.role == 'user' else 'Reply'}")
        if message.reasoning:
            sections.append(f"<details><summary>Reasoning</summary>\n\n{message.reasoning}\n\n</details>")
        sections.append(message.shown)
    return "\n\n".join(sections) + "\n"
