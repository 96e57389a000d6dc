"""The conversation that is open: its messages in memory, its journal on disk, and its export as Markdown."""

import asyncio
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from localspec.chat.conversations import Conversation, Journal, StoredMessage
from localspec.engine.messages import Messages
from localspec.errors import BadSetting
from localspec.files import expanded, write_text_atomically


@dataclass(slots=True)
class OpenConversation:
    """A change shows as finished once the disk has it; after a failed write the next one writes all."""

    journal: Journal
    messages: list[StoredMessage] = field(default_factory=list)
    lost_lines: int = 0  # of the file, when it was read
    title: str = ""  # that the user gave it
    stored: bool = True  # False: nothing more reaches the file
    is_behind: bool = False  # the file, because a write failed
    # Messages that a changed question replaces: they count in the file until that question has a reply.
    _replaced: tuple[StoredMessage, ...] = ()
    # Two writers in two threads could swap lines.
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @classmethod
    def resumed(cls, journal: Journal, conversation: Conversation, *, stored: bool) -> "OpenConversation":
        """Continue a conversation that is held."""
        given = conversation.given_title
        return cls(journal, list(conversation.messages), conversation.lost_lines, given, stored)

    async def ask(self, question: str, instead_of: int | None = None) -> None:
        """Add a question; its reply ends message `instead_of` and all after it. Raises OSError as `add` does."""
        message = StoredMessage("user", question)
        if instead_of is None:
            await self.add(message)
        else:
            self._replaced = tuple(self.messages[instead_of:])
            self.messages[instead_of:] = [message]

    async def add(self, message: StoredMessage) -> None:
        """Add a message, in memory even if it raises OSError; a second reply becomes the newest version."""
        if message.role == "assistant" and not message.pair:
            message = replace(message, pair=self.journal.pair)
        earlier = self.reply
        if earlier is not None and message.role == "assistant":
            self.messages[-1] = earlier.replaced_by(message)
            await self._write(lambda: self.journal.add_version(message, back=1))
        elif self.is_changed:
            *before, question = self.messages
            earlier_course = (*before, *self._replaced) if self.drops_replies else ()
            self._replaced = ()
            self.messages.append(message)
            await self._write(lambda: self._replace(question, message, len(before), earlier_course))
        else:
            self.messages.append(message)
            await self._write(lambda: self.journal.add(message))

    @property
    def is_changed(self) -> bool:
        """Whether the last question replaces others and has no reply yet."""
        return bool(self._replaced)

    @property
    def drops_replies(self) -> bool:
        """Whether more than the changed question and its reply goes."""
        return len(self._replaced) > 2

    def _replace(
        self,
        question: StoredMessage,
        reply: StoredMessage,
        count: int,
        earlier_course: Sequence[StoredMessage],
    ) -> None:
        """Write a changed question with its reply, and the earlier course as a conversation of its own."""
        if earlier_course:
            branch = Journal.new(self.journal.path.parent, self.journal.pair, self.journal.system)
            branch.files = self.journal.files
            try:
                branch.add(*earlier_course)
                if self.title:
                    branch.rename(self.title)
            finally:
                branch.close()
        self.journal.add(question, reply, keep=count)

    async def take_back(self) -> None:
        """Drop the last question, and restore the messages that it replaced. Raises OSError."""
        if self.is_changed:
            self.messages[-1:], self._replaced = self._replaced, ()
        else:
            await self.keep(len(self.messages) - 1)

    async def choose(self, index: int, version: int) -> None:
        """Go back to another version of a reply. Raises OSError as `add` does."""
        back = len(self.messages) - index
        self.messages[index] = self.messages[index].in_version(version)
        await self._write(lambda: self.journal.choose(version, back))

    async def rename(self, title: str) -> None:
        """Give it a title. Raises OSError."""
        self.title = title
        await self._write(lambda: self.journal.rename(title))

    async def keep(self, count: int) -> None:
        """Drop everything after the first `count` messages. Raises OSError."""
        if count < len(self.messages):
            del self.messages[count:]
            await self._write(lambda: self.journal.keep(count))

    async def catch_up(self) -> None:
        """Save the rest of an earlier failed write. Raises OSError."""
        if self.is_behind:
            await self._write(lambda: None)

    async def _write(self, write: Callable[[], None]) -> None:
        if not self.stored:
            return
        lasting = (*self.messages[:-1], *self._replaced) if self.is_changed else tuple(self.messages)
        async with self._writing:
            try:
                if self.is_behind:
                    await asyncio.to_thread(self.journal.rename, self.title)
                    await asyncio.to_thread(self.journal.add, *lasting, keep=0)
                else:
                    await asyncio.to_thread(write)
            except OSError:
                self.is_behind = True
                raise
            self.is_behind = False

    @property
    def reply(self) -> StoredMessage | None:
        """The reply to the last question, if it has one."""
        return self.messages[-1] if self.messages and self.messages[-1].role == "assistant" else None

    @property
    def questions(self) -> list[int]:
        """The indices of the messages that the user wrote."""
        return [index for index, message in enumerate(self.messages) if message.role == "user"]

    @property
    def last_question(self) -> int | None:
        return self.questions[-1] if self.questions else None

    @property
    def saved(self) -> Conversation:
        """The conversation as its file would give it."""
        journal = self.journal
        return Conversation(
            journal.path, 0.0, journal.pair, journal.system, tuple(self.messages), 0, self.title
        )

    def turns(self) -> Messages:
        """The request to the engine: the system prompt, and the messages up to the last question."""
        system = [{"role": "system", "content": self.journal.system}] if self.journal.system else []
        asked = self.messages[: (self.last_question or 0) + 1]
        # Neighbours of one role become one turn: many chat templates refuse two questions in a row.
        groups = itertools.groupby(asked, key=lambda message: message.role)
        turns = (
            {"role": role, "content": "\n\n".join(one.content for one in group)} for role, group in groups
        )
        return (*system, *turns)


def version_before(reply: StoredMessage) -> int:
    """The version before that of a reply; before the first comes the last."""
    return (reply.version - 1) % len(reply.versions)


def export_markdown(conversation: Conversation, name: str) -> Path:
    """Write a conversation into a file that is not there yet; its whole path. Raises BadSetting."""
    return write_new(name, to_markdown(conversation))


def free_name(conversation: Conversation, ending: str) -> str:
    """A file called like the conversation; with a number where others have the name."""
    title = re.sub(r"\W+", "-", conversation.title.lower()).strip("-") or conversation.name
    names = itertools.chain(
        [f"{title}{ending}"], (f"{title}-{number}{ending}" for number in itertools.count(2))
    )
    return next(name for name in names if not Path(name).exists())


def beside(path: Path) -> str:
    """A path as short as it can be told."""
    return path.name if path.parent == Path.cwd() else str(path)


def write_new(name: str, text: str) -> Path:
    """Write a text into a file that is not there yet; its whole path. Raises BadSetting."""
    path = expanded(name).absolute()
    try:
        if path.exists():
            raise BadSetting(f"{name} exists already", hint="give another name")
        if not path.parent.is_dir():
            raise NotADirectoryError(0, "there is no folder for it")
        write_text_atomically(path, text)
    except (OSError, ValueError) as error:  # ValueError: a character that no file name or file can hold
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadSetting(f"{name} cannot be written: {reason}", hint="give another path") from error
    return path


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
        sections.append(message.content)
    return "\n\n".join(sections) + "\n"
