"""Conversations on disk: one append-only file of JSON lines each, readable by its owner only.

A line is written whole and synced before anything shows it as finished. A line cut short by a crash, or written by
another version, is left out; a file without a head is named and kept.
A process that has a conversation open holds its lock, because two writers would cut each other's messages.
"""

import math
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from localspec.errors import BadSetting, LocalspecError
from localspec.events import Stats
from localspec.files import FileLock, append_json_lines, expanded, read_as, read_json_lines

VERSION: Final = 1
TITLE_LENGTH: Final = 60
LATEST: Final = 2.0**40  # seconds since 1970; a later time is damage


class BrokenConversation(LocalspecError):
    """A file that is no conversation, or that a newer version wrote."""


class ConversationInUse(LocalspecError):
    """A conversation that another process has open."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The cost of a reply, for its footer."""

    tokens: int
    seconds: float  # decoding, prefill left out
    acceptance_rate: float
    mean_accepted_length: float
    drafted: int
    speedup: float | None = None  # against plain decoding; None when it was not measured
    restored_tokens: int | None = None  # of the prompt, from the disk; None when there were none
    restore_seconds: float | None = None

    @classmethod
    def of(cls, stats: Stats) -> "Numbers":
        return cls(
            tokens=stats.emitted,
            seconds=stats.decode_seconds,
            acceptance_rate=stats.acceptance_rate,
            mean_accepted_length=stats.mean_accepted_length,
            drafted=stats.drafted,
            speedup=stats.speedup.value if stats.speedup and stats.drafted else None,
            restored_tokens=stats.restored_tokens or None,
            restore_seconds=stats.restore_seconds or None,
        )

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message; a reply also has its end and its cost."""

    role: str  # user or assistant
    content: str
    reasoning: str = ""
    reasoning_tokens: int = 0
    outcome: str = ""  # of a reply: stop, length, cancelled, or died with the engine
    numbers: Numbers | None = None
    pair: str = field(default="", compare=False)  # of a reply: that wrote it
    # Of a reply that was generated again: all of them, in the order they came
    versions: tuple["StoredMessage", ...] = ()
    version: int = 0  # which of them this is

    def has_words_after(self, beginning: str) -> bool:
        """Whether the reply says more than the beginning that it was given."""
        return bool(self.content.removeprefix(beginning).strip() or self.reasoning.strip())

    def replaced_by(self, message: "StoredMessage") -> "StoredMessage":
        """A newer version of this reply, which keeps the older ones."""
        versions = (*(self.versions or (self,)), message)
        return replace(message, versions=versions, version=len(versions) - 1)

    def in_version(self, version: int) -> "StoredMessage":
        """That version of this reply, which keeps the others. Raises IndexError."""
        return replace(self.versions[version], versions=self.versions, version=version)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation so far."""

    path: Path
    talked: float  # seconds since 1970: when something was last said in it
    pair: str
    system: str
    messages: tuple[StoredMessage, ...] = ()
    lost_lines: int = 0  # lines that make no sense, and were left out
    given_title: str = ""
    files: tuple[str, ...] = ()  # whole paths of target and draft, where the pair has no name

    @property
    def name(self) -> str:
        """The ID for `localspec chat --resume`."""
        return self.path.stem

    @property
    def title(self) -> str:
        first = self.given_title or next(
            (message.content for message in self.messages if message.role == "user"), "empty"
        )
        line = " ".join(first.split())
        return line if len(line) <= TITLE_LENGTH else line[: TITLE_LENGTH - 1] + "…"


@dataclass(frozen=True, slots=True)
class ConversationList:
    """Every conversation in a folder, the latest first, and the reason for each unreadable file."""

    conversations: tuple[Conversation, ...]
    broken: tuple[tuple[Path, str], ...] = ()


@dataclass(slots=True)
class Journal:
    """Appends to one conversation; the file is made with the first line, so that an unused chat leaves none."""

    path: Path
    pair: str = ""
    system: str = ""
    files: tuple[str, ...] = ()  # as of Conversation
    _written: dict[str, object] = field(default_factory=dict)  # pair, system and files as the file has them
    _lock: FileLock | None = None  # held from the first line on

    @classmethod
    def new(cls, folder: Path, pair: str, system: str) -> "Journal":
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        return cls(folder / f"{stamp}-{secrets.token_hex(2)}.jsonl", pair, system)

    def add(self, *messages: StoredMessage, keep: int | None = None) -> None:
        """Write messages with their versions; they take the place of all after the first `keep`, where it is given.

        Returns when they are on the disk. Raises OSError.
        """
        records: list[dict[str, object]] = [] if keep is None else [{"type": "keep", "count": keep}]
        self._append(records + [record for message in messages for record in _records(message)])

    def add_version(self, message: StoredMessage, back: int) -> None:
        """Write and choose another version of the reply `back` messages from the end. Raises OSError."""
        self._append([_record("version", message, back=back)])

    def choose(self, version: int, back: int) -> None:
        """Choose that version of the reply `back` messages from the end. Raises OSError."""
        self._append([{"type": "choose", "version": version, "back": back}])

    def keep(self, count: int) -> None:
        """Drop all but the first `count` messages from the conversation; the file keeps them."""
        self._append([{"type": "keep", "count": count}])

    def rename(self, title: str) -> None:
        """Give the conversation a title; "" goes back to its first question. Raises OSError."""
        self._append([{"type": "title", "title": title}])

    def close(self) -> None:
        """Let others open the conversation; a second call does nothing."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _append(self, records: list[dict[str, object]]) -> None:
        described = _described(self)
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = self._lock or _held(self.path)
        if self._written and self._written != described:
            records.insert(0, {"type": "settings", **described})
        if len(records) > 1:  # one line, so that a crash keeps all of them or none
            records = [{"type": "batch", "records": records}]
        # The head is written again when somebody has removed the file meanwhile.
        head = {"type": "conversation", "version": VERSION, "created": time.time(), **described}
        append_json_lines(self.path, records, head=head)
        self._written = described


def _records(message: StoredMessage) -> list[dict[str, object]]:
    """A message, its other versions, and the chosen one."""
    first, *others = message.versions or (message,)
    records = [_record("message", first), *(_record("version", other, back=1) for other in others)]
    if message.version < len(others):
        records.append({"type": "choose", "version": message.version, "back": 1})
    return records


def _record(kind: str, message: StoredMessage, **more: object) -> dict[str, object]:
    values = asdict(replace(message, versions=(), version=0)).items()
    return {"type": kind, "at": time.time(), **more} | {name: value for name, value in values if value}


def resume(path: Path) -> tuple[Journal, Conversation]:
    """Open a conversation to continue it. Raises ConversationInUse, BrokenConversation.

    It is read under its lock, because a list may be old.
    """
    lock = _held(path)
    try:
        conversation = read(path)
    except BrokenConversation:
        lock.release()
        raise
    described = _described(conversation)
    return Journal(
        path, conversation.pair, conversation.system, conversation.files, described, lock
    ), conversation


def files_of(target: str | None, draft: str | None) -> tuple[str, ...]:
    """Whole paths of the target and the draft, if the target is a file that is there."""
    target_path, draft_path = (expanded(text or "").absolute() for text in (target, draft))
    found = [str(path) for path in (target_path, draft_path) if path.is_file()]
    return tuple(found) if target_path.is_file() else ()


def _described(of: Journal | Conversation) -> dict[str, object]:
    return {"pair": of.pair, "system": of.system} | ({"files": list(of.files)} if of.files else {})


def _settings(record: dict[str, Any]) -> dict[str, Any]:
    """The fields that `_described` wrote. Raises KeyError, TypeError."""
    files = tuple(map(str, record.get("files", ())))
    return {"pair": str(record["pair"]), "system": str(record["system"]), "files": files}


def _held(path: Path) -> FileLock:
    lock = FileLock(path.with_suffix(".lock"))
    try:
        free = lock.try_acquire()
    except OSError:  # no locks there, or no room for one: no reason to keep anyone from the conversation
        return lock
    if not free:
        raise ConversationInUse(
            f"the conversation {path.stem} is open in another terminal",
            hint="continue there, or close it there first",
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
            f"{path.name} is not a conversation file",
            hint="the file stays as it is; open another conversation",
        )
    if records[0].get("version") != VERSION:
        raise BrokenConversation(
            f"{path.name} was written by a newer localspec", hint="update localspec to open it"
        )
    try:
        created = float(records[0]["created"])
        if not math.isfinite(created):
            raise ValueError("created")
        start = Conversation(path, created, **_settings(records[0]), lost_lines=lost)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise BrokenConversation(
            f"{path.name} cannot be read in its first line: {error}",
            hint="the file stays as it is; open another conversation",
        ) from error
    return _replay(start, records[1:])


def _replay(conversation: Conversation, records: Iterable[dict[str, Any]]) -> Conversation:
    messages: list[StoredMessage] = []
    for record in _singly(records):
        try:
            conversation = _take(record, messages, conversation)
        except (KeyError, IndexError, TypeError, ValueError, OverflowError):
            conversation = replace(conversation, lost_lines=conversation.lost_lines + 1)
    return replace(conversation, messages=tuple(messages))


def _singly(records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The records, those of a batch one by one."""
    for record in records:
        batch = record.get("records") if record.get("type") == "batch" else None
        yield from batch if isinstance(batch, list) else [record]


def _take(record: dict[str, Any], messages: list[StoredMessage], conversation: Conversation) -> Conversation:
    """Apply a record to the messages; returns the conversation. Raises the errors that _replay catches."""
    match record["type"]:
        case "message":
            messages.append(_message(record, conversation.pair))
        case "version":
            index = _reply_index(record, messages)
            messages[index] = messages[index].replaced_by(_message(record, conversation.pair))
        case "choose":
            index = _reply_index(record, messages)
            messages[index] = messages[index].in_version(_natural(record["version"]))
        case "keep":
            del messages[max(0, int(record["count"])) :]
        case "settings":
            return replace(conversation, **_settings(record))
        case "title":
            return replace(conversation, given_title=str(record["title"]))
        case unknown:
            raise ValueError(f"type {unknown!r}")
    at = record.get("at", 0.0)
    said = isinstance(at, int | float) and conversation.talked < at < LATEST
    return replace(conversation, talked=float(at)) if said else conversation


def _reply_index(record: dict[str, Any], messages: list[StoredMessage]) -> int:
    index = _natural(len(messages) - _natural(record["back"]))
    if messages[index].role != "assistant":
        raise ValueError("only replies have versions")
    return index


def _natural(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no natural number")
    return value


def _message(record: dict[str, Any], pair: str) -> StoredMessage:
    """`pair`: that the conversation was with then."""
    role = record["role"]
    default = {"reasoning": "", "reasoning_tokens": 0, "outcome": "", "content": ""}
    default |= {"role": role, "pair": pair if role == "assistant" else ""}
    own = {name: record.get(name, value) for name, value in default.items()}
    message = read_as(StoredMessage, own | {"numbers": None, "versions": [], "version": 0})
    if message.role not in ("user", "assistant"):
        raise ValueError(f"role {message.role!r}")
    return replace(message, numbers=_numbers(record.get("numbers")))


def _numbers(values: Any) -> Numbers | None:  # noqa: ANN401 - whatever the file has
    """The numbers of a reply; None if one is damaged, so that the text is not lost."""
    try:
        return read_as(Numbers, {field.name: values.get(field.name) for field in fields(Numbers)})
    except (ValueError, AttributeError, OverflowError):
        return None


def listing(folder: Path) -> ConversationList:
    """Every conversation in the folder; a file that is broken is named and skipped."""
    return _read_all(_files(folder))


def _files(folder: Path) -> Iterator[Path]:
    """Every file of a conversation, without empty files of a full disk or a crash."""
    for path in folder.glob("*.jsonl"):
        with suppress(OSError):
            if path.stat().st_size:
                yield path


def _read_all(paths: Iterable[Path]) -> ConversationList:
    found: list[Conversation] = []
    broken: list[tuple[Path, str]] = []
    for path in sorted(paths, reverse=True):
        try:
            found.append(read(path))
        except BrokenConversation as error:
            broken.append((path, str(error)))
    found.sort(key=lambda conversation: conversation.talked, reverse=True)
    return ConversationList(tuple(found), tuple(broken))


def find(folder: Path, name: str) -> Conversation:
    """A conversation by its name or its beginning; of several the latest, and with "" the latest with messages.

    Raises BadSetting if there is none, BrokenConversation.
    """
    matching = [path for path in _files(folder) if path.stem.startswith(name)]
    found = _read_all(matching)
    for conversation in found.conversations:
        if conversation.messages or name:
            return conversation
    if found.broken:
        return read(found.broken[0][0])  # says what is wrong with it
    raise BadSetting(
        f"there is no conversation called {name}" if name else "there is no conversation to resume",
        hint="/load in `localspec chat` lists them"
        if name
        else "`localspec run --store PROMPT` keeps one; on a terminal every prompt is kept",
    )


def delete(conversation: Conversation, forget: Callable[[Collection[str]], object]) -> None:
    """Forget the user's prompts of the conversation, then remove the file.

    Raises ConversationInUse, OSError; the conversation is still there then.
    """
    lock = _held(conversation.path)
    try:
        forget(_written_by_the_person(conversation.path))
        conversation.path.unlink(missing_ok=True)
    finally:
        lock.release()


def _written_by_the_person(path: Path) -> frozenset[str]:
    """Every question in the file, with changed and withdrawn ones."""
    values = read_json_lines(path)[0] if path.exists() else []
    records = _singly(value for value in values if isinstance(value, dict))
    questions = (value for value in records if isinstance(value, dict) and value.get("role") == "user")
    return frozenset(text for value in questions if isinstance(text := value.get("content"), str))
