"""Conversations on disk: one append-only file of JSON lines each, readable by its owner only.

A line is written whole and synced before anything shows it as finished. A line cut short by a crash loses that line
and nothing else; a file that cannot be read is named and left alone. Whoever has a conversation open holds its lock,
because two writers would each say how many of the other's messages still count.
"""

import math
import secrets
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from localspec.errors import LocalspecError
from localspec.files import append_json_lines, read_json_lines
from localspec.locks import FileLock

VERSION: Final = 1
TITLE_LENGTH: Final = 60


class BrokenConversation(LocalspecError):
    """A file among the conversations that is none, or that a newer version wrote."""


class ConversationInUse(LocalspecError):
    """A conversation that another process has open."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a reply cost, kept for its footer."""

    tokens: int
    seconds: float  # decoding, prefill left out
    acceptance_rate: float
    mean_accepted_length: float
    drafted: int
    speedup: float | None = None  # against plain decoding; None when it was not measured

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Message:
    """One message; a reply also says how it ended and what it cost."""

    role: str  # user or assistant
    content: str
    reasoning: str = ""
    reasoning_tokens: int = 0
    outcome: str = ""  # of a reply: stop, length, cancelled, or died with the engine
    numbers: Numbers | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation as far as it got."""

    path: Path
    created: float  # seconds since 1970
    pair: str
    system: str
    messages: tuple[Message, ...] = ()
    lost_lines: int = 0  # lines that a crash cut short

    @property
    def name(self) -> str:
        """What `localspec chat --resume` takes."""
        return self.path.stem

    @property
    def title(self) -> str:
        first = next((message.content for message in self.messages if message.role == "user"), "empty")
        line = " ".join(first.split())
        return line if len(line) <= TITLE_LENGTH else line[: TITLE_LENGTH - 1] + "…"


@dataclass(frozen=True, slots=True)
class Listing:
    """Every conversation in a folder, newest first, and the files that could not be read with the reason."""

    conversations: tuple[Conversation, ...]
    broken: tuple[tuple[Path, str], ...] = ()


@dataclass(slots=True)
class Journal:
    """Appends to one conversation; the file is made with the first line, so that an unused chat leaves none."""

    path: Path
    pair: str = ""
    system: str = ""
    _written: dict[str, str] = field(default_factory=dict)  # pair and system as the file has them
    _lock: FileLock | None = None  # held from the first line on

    @classmethod
    def new(cls, folder: Path, pair: str, system: str) -> "Journal":
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        return cls(folder / f"{stamp}-{secrets.token_hex(2)}.jsonl", pair, system)

    def add(self, message: Message) -> None:
        """Write a message. Returns when it is on the disk. Raises OSError."""
        compact = {name: value for name, value in asdict(message).items() if value not in ("", 0, None)}
        self._append([{"type": "message", "at": time.time(), **compact}])

    def keep(self, count: int) -> None:
        """From here on only the first `count` messages belong to the conversation; the others stay in the file."""
        self._append([{"type": "keep", "count": count}])

    def close(self) -> None:
        """Let others open the conversation. Saying it twice is saying it once."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _append(self, records: list[dict[str, object]]) -> None:
        described = {"pair": self.pair, "system": self.system}
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = self._lock or _held(self.path)
        if self._written and self._written != described:
            records.insert(0, {"type": "settings", **described})
        # The head is written again when somebody has removed the file meanwhile.
        head = {"type": "conversation", "version": VERSION, "created": time.time(), **described}
        append_json_lines(self.path, records, head=head)
        self._written = described


def resume(path: Path) -> tuple[Journal, Conversation]:
    """Open a conversation to go on with it. Raises ConversationInUse, BrokenConversation.

    It is read only once it is held: what a list has shown may be old.
    """
    lock = _held(path)
    try:
        conversation = read(path)
    except BrokenConversation:
        lock.release()
        raise
    described = {"pair": conversation.pair, "system": conversation.system}
    return Journal(path, conversation.pair, conversation.system, described, lock), conversation


def _held(path: Path) -> FileLock:
    lock = FileLock(path.with_suffix(".lock"))
    try:
        free = lock.try_acquire()
    except OSError:  # no locks there, or no room for one: no reason to keep anyone from the conversation
        return lock
    if not free:
        raise ConversationInUse(
            f"the conversation {path.stem} is open in another terminal",
            hint="go on there, or leave it there first",
        )
    return lock


def read(path: Path) -> Conversation:
    """A conversation from its file. Raises BrokenConversation when the file is no conversation."""
    try:
        values, damaged = read_json_lines(path)
    except OSError as error:
        raise BrokenConversation(
            f"{path.name} cannot be read: {error.strerror}", hint=f"check the permissions of {path.parent}"
        ) from error
    records = [value for value in values if isinstance(value, dict) and value]
    lost = damaged + len(values) - len(records)
    if not records or records[0].get("type") != "conversation":
        raise BrokenConversation(
            f"{path.name} does not begin like a conversation", hint="it was left as it is"
        )
    if records[0].get("version") != VERSION:
        raise BrokenConversation(
            f"{path.name} was written by a newer localspec", hint="update localspec to open it"
        )
    try:
        created = float(records[0]["created"])
        if not math.isfinite(created):
            raise ValueError("created")
        start = Conversation(
            path,
            created,
            str(records[0]["pair"]),
            str(records[0]["system"]),
            lost_lines=lost,
        )
        return _replay(start, records[1:])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise BrokenConversation(
            f"{path.name} holds a line that makes no sense: {error}", hint="it was left as it is"
        ) from error


def _replay(conversation: Conversation, records: Iterable[dict[str, Any]]) -> Conversation:
    messages: list[Message] = []
    for record in records:
        match record["type"]:
            case "message":
                messages.append(_message(record))
            case "keep":
                del messages[max(0, int(record["count"])) :]
            case "settings":
                conversation = replace(conversation, pair=str(record["pair"]), system=str(record["system"]))
            case unknown:
                raise ValueError(f"type {unknown!r}")
    return replace(conversation, messages=tuple(messages))


def _message(record: dict[str, Any]) -> Message:
    values = {name: value for name, value in record.items() if name not in ("type", "at")}
    numbers = values.pop("numbers", None)
    message = Message(role=values.pop("role"), content=values.pop("content", ""), **values)
    texts = (message.role, message.content, message.reasoning, message.outcome)
    if not all(isinstance(text, str) for text in texts) or type(message.reasoning_tokens) is not int:
        raise TypeError("a message with a value of the wrong type")
    return replace(message, numbers=_numbers(numbers)) if numbers else message


def _numbers(values: dict[str, Any]) -> Numbers:
    numbers = Numbers(**values)
    known = {**asdict(numbers), "speedup": numbers.speedup or 0}
    if not all(type(value) in (int, float) for value in known.values()):
        raise TypeError("a number that is none")
    return numbers


def listing(folder: Path) -> Listing:
    """Every conversation in the folder; a file that is broken is named and skipped."""
    found: list[Conversation] = []
    broken: list[tuple[Path, str]] = []
    for path in sorted(folder.glob("*.jsonl"), reverse=True):
        try:
            found.append(read(path))
        except BrokenConversation as error:
            broken.append((path, str(error)))
    return Listing(tuple(found), tuple(broken))


def find(folder: Path, name: str) -> Conversation:
    """A conversation by its name or the beginning of one; "" is the newest. Raises BrokenConversation."""
    paths = sorted(folder.glob("*.jsonl"), reverse=True)
    matching = [path for path in paths if path.stem.startswith(name)]
    if not matching:
        raise BrokenConversation(
            f"there is no conversation called {name}" if name else "there is no conversation to resume",
            hint="Ctrl+S in `localspec chat` lists them",
        )
    return read(matching[0])


def delete(conversation: Conversation) -> None:
    """Remove the file of a conversation. Raises ConversationInUse, OSError."""
    lock = _held(conversation.path)
    try:
        conversation.path.unlink(missing_ok=True)
    finally:
        lock.release()


def to_markdown(conversation: Conversation) -> str:
    """A conversation as a Markdown document."""
    return "\n\n".join(_sections(conversation)) + "\n"


def _sections(conversation: Conversation) -> Iterator[str]:
    yield f"# {conversation.title}"
    yield f"*{conversation.pair} · exported {datetime.now(UTC):%Y-%m-%d}*"
    if conversation.system:
        yield f"## System\n\n{conversation.system}"
    for message in conversation.messages:
        yield f"## {'You' if message.role == 'user' else 'Reply'}"
        if message.reasoning:
            yield f"<details><summary>Reasoning</summary>\n\n{message.reasoning}\n\n</details>"
        yield message.content
