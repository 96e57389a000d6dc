"""Conversations on disk: one append-only file of JSON lines each, readable by its owner only.

A line is written whole and synced before anything shows it as finished. A line cut short by a crash loses that line
and nothing else; a file that cannot be read is named and left alone.
"""

import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from localspec.errors import LocalspecError

VERSION: Final = 1
TITLE_LENGTH: Final = 60


class BrokenConversation(LocalspecError):
    """A file among the conversations that is none, or that a newer version wrote."""


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

    @classmethod
    def new(cls, folder: Path, pair: str, system: str) -> "Journal":
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        return cls(folder / f"{stamp}-{secrets.token_hex(2)}.jsonl", pair, system)

    @classmethod
    def resume(cls, conversation: Conversation) -> "Journal":
        described = {"pair": conversation.pair, "system": conversation.system}
        return cls(conversation.path, conversation.pair, conversation.system, described)

    def add(self, message: Message) -> None:
        """Write a message. Returns when it is on the disk. Raises OSError."""
        compact = {name: value for name, value in asdict(message).items() if value not in ("", 0, None)}
        self._append([{"type": "message", "at": time.time(), **compact}])

    def keep(self, count: int) -> None:
        """From here on only the first `count` messages belong to the conversation; the others stay in the file."""
        self._append([{"type": "keep", "count": count}])

    def _append(self, records: list[dict[str, object]]) -> None:
        described = {"pair": self.pair, "system": self.system}
        if not self._written:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            records.insert(
                0, {"type": "conversation", "version": VERSION, "created": time.time(), **described}
            )
        elif self._written != described:
            records.insert(0, {"type": "settings", **described})
        _write_lines(self.path, records)
        self._written = described


def _write_lines(path: Path, records: Iterable[dict[str, object]]) -> None:
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()
    # O_BINARY keeps Windows from turning the newlines into pairs.
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags, 0o600)
    try:
        if _ends_inside_a_line(descriptor):
            lines = b"\n" + lines
        while lines:
            lines = lines[os.write(descriptor, lines) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _ends_inside_a_line(descriptor: int) -> bool:
    """True after a crash that cut the last line short; what follows must start a line of its own."""
    if os.lseek(descriptor, 0, os.SEEK_END) == 0:
        return False
    os.lseek(descriptor, -1, os.SEEK_END)
    return os.read(descriptor, 1) != b"\n"


def read(path: Path) -> Conversation:
    """A conversation from its file. Raises BrokenConversation when the file is no conversation."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise BrokenConversation(
            f"{path.name} cannot be read: {error.strerror}", hint=f"check the permissions of {path.parent}"
        ) from error
    records = [record for line in lines if line.strip() and (record := _record(line))]
    lost = sum(1 for line in lines if line.strip()) - len(records)
    if not records or records[0].get("type") != "conversation":
        raise BrokenConversation(
            f"{path.name} does not begin like a conversation", hint="it was left as it is"
        )
    if records[0].get("version") != VERSION:
        raise BrokenConversation(
            f"{path.name} was written by a newer localspec", hint="update localspec to open it"
        )
    try:
        start = Conversation(
            path,
            float(records[0]["created"]),
            str(records[0]["pair"]),
            str(records[0]["system"]),
            lost_lines=lost,
        )
        return _replay(start, records[1:])
    except (KeyError, TypeError, ValueError) as error:
        raise BrokenConversation(
            f"{path.name} holds a line that makes no sense: {error}", hint="it was left as it is"
        ) from error


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _replay(conversation: Conversation, records: Iterable[dict[str, Any]]) -> Conversation:
    messages: list[Message] = []
    for record in records:
        match record["type"]:
            case "message":
                messages.append(_message(record))
            case "keep":
                del messages[int(record["count"]) :]
            case "settings":
                conversation = replace(conversation, pair=str(record["pair"]), system=str(record["system"]))
            case unknown:
                raise ValueError(f"type {unknown!r}")
    return replace(conversation, messages=tuple(messages))


def _message(record: dict[str, Any]) -> Message:
    values = {name: value for name, value in record.items() if name not in ("type", "at")}
    numbers = values.pop("numbers", None)
    message = Message(role=values.pop("role"), content=values.pop("content", ""), **values)
    return replace(message, numbers=Numbers(**numbers)) if numbers else message


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
    """Remove the file of a conversation."""
    conversation.path.unlink(missing_ok=True)


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
