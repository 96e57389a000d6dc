"""Conversations on disk, with the prompts that were typed in them. A process locks its open conversation."""

import base64
import json
import re
import secrets
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from localspec.caches.store import forget_conversation
from localspec.conversations.database import TABLES, StoreFailed, kept_files, perform, select
from localspec.errors import BadSetting, LocalspecError
from localspec.events import Stats
from localspec.files import AHEAD_SECONDS, FileLock, repaired
from localspec.options import data_dir, texts_dir
from localspec.prompt.images import Image, shown

LOCKS: Final = "conversations"  # name of the folder for the lock files of conversations
TITLE_LENGTH: Final = 60
MOST_PROMPTS: Final = 500
MOST_IMAGE_BYTES: Final = 64 * 1024 * 1024  # limit for all images of a stored conversation together


class ConversationInUse(LocalspecError):
    """Another process has the conversation open."""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    role: str  # "user" or "assistant"
    content: str
    reasoning: str = ""
    reasoning_tokens: int = 0
    outcome: str = ""  # how the reply ended: "stop", "length", "cancelled", or "died" if the engine died
    stats: Stats | None = None
    pair: str = field(default="", compare=False)  # the pair that wrote the reply
    versions: tuple["StoredMessage", ...] = ()  # all replies to one question, oldest first; () for one reply
    version: int = 0  # the index of this reply in `versions`
    images: tuple[Image, ...] = ()  # in `content`, the text PLACE marks the position of each image

    @property
    def shown(self) -> str:
        return shown(self.content, self.images)

    def has_words_after(self, beginning: str) -> bool:
        """Return whether the reply has reasoning, or a text longer than `beginning`."""
        return bool(self.content.removeprefix(beginning).strip() or self.reasoning.strip())

    def replaced_by(self, message: "StoredMessage") -> "StoredMessage":
        versions = (*(self.versions or (self,)), message)
        return replace(message, versions=versions, version=len(versions) - 1)

    def in_version(self, version: int) -> "StoredMessage":
        """Return the reply with index `version` in `versions`, together with all versions. Raises IndexError."""
        return replace(self.versions[version], versions=self.versions, version=version)


@dataclass(frozen=True, slots=True)
class Conversation:
    name: str  # the ID for `localspec chat --resume`
    pair: str = ""
    system: str = ""
    messages: tuple[StoredMessage, ...] = ()
    given_title: str = ""
    files: tuple[str, ...] = ()  # full paths of target and draft, if the pair has no name
    talked: float = field(default=0.0, compare=False)  # the time of the last message, in seconds since 1970
    # When the user edits a question, a copy of the conversation before the edit is stored: an "earlier course".
    # `course_of` in the copy is the name of the conversation. It becomes "" when the user continues the copy.
    course_of: str = ""

    @classmethod
    def new(cls, pair: str = "", system: str = "") -> "Conversation":
        """Make a conversation with a new name. It is not stored yet."""
        name = f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        return cls(name, pair, system, talked=time.time())

    @property
    def title(self) -> str:
        questions = (message.shown for message in self.messages if message.role == "user")
        line = " ".join((self.given_title or next(questions, "empty")).split())
        return line if len(line) <= TITLE_LENGTH else line[: TITLE_LENGTH - 1] + "…"


@dataclass(frozen=True, slots=True)
class ListedConversation:
    name: str
    title: str
    talked: float  # time of the last message, in seconds since 1970; 0 if the stored time is in the future
    pair: str
    count: int  # number of messages


def listing(folder: Path, text: str = "", most: int = -1) -> list[ListedConversation]:
    """Return the conversations that contain every word of `text`, latest first. Raises StoreFailed."""
    # A time in the future comes from a wrong clock. It counts as 0, so that its conversation is not always the first.
    query = "SELECT name, title, iif(talked > ?, 0, talked) AS at, pair, count FROM conversations WHERE 1"
    words = [re.sub(r"([\\%_])", r"\\\1", word) for word in text.casefold().split()]
    query += " AND text LIKE ? ESCAPE '\\'" * len(words) + " ORDER BY at DESC, name DESC LIMIT ?"
    found = select(folder, query, time.time() + AHEAD_SECONDS, *(f"%{word}%" for word in words), most)
    return [ListedConversation(*row) for row in found]


def find(folder: Path, name: str, *, only: bool = False) -> str:
    """Return the newest ID that begins with `name`; with `only`, refuse several. Raises BadSetting, StoreFailed."""
    rows = listing(folder)
    found = [row.name for row in rows if row.name.startswith(name)]
    if name in found:
        return name
    if found and (not only or (name and len(found) == 1)):
        return found[0]
    what = f"{len(found) or 'no'} conversations have an ID that begins with {name!r}"
    hint = f"give the ID of one of the latest: {', '.join(f'{row.name} ({row.title})' for row in rows[:5])}"
    if not rows:
        what = "no conversation is stored" if name else "there is no conversation to resume"
        hint = "start one with `localspec chat`, or with `localspec run --store PROMPT`"
    raise BadSetting(what, hint=hint)


def read(folder: Path, name: str) -> Conversation:
    """Read a stored conversation. Raises BadSetting, StoreFailed."""
    rows = select(folder, "SELECT body FROM conversations WHERE name = ?", name)
    if not rows:
        raise BadSetting(f"there is no conversation {name}", hint="find its ID with `localspec chats`")
    import msgspec  # not at the top, because it takes 20 ms

    try:
        return msgspec.json.decode(rows[0][0], type=Conversation)
    except ValueError as error:
        hint = f"delete it: `localspec chats rm {name}`"
        raise StoreFailed(f"the conversation {name} is damaged: {error}", hint=hint) from error


def resume(folder: Path, name: str) -> tuple[FileLock, Conversation]:
    """Lock and read a conversation. Raises ConversationInUse, BadSetting, StoreFailed."""
    lock = hold(folder, name)
    try:
        return lock, read(folder, name)
    except LocalspecError:
        lock.release()
        raise


def hold(folder: Path, name: str) -> FileLock:
    """Return a lock that keeps other processes from opening the conversation. Raises ConversationInUse."""
    lock = FileLock(folder / LOCKS / f"{name}.lock")
    try:
        free = lock.try_acquire()
    except OSError:  # no lock file can be made here, so the conversation is used without one
        return lock
    if not free:
        raise ConversationInUse(
            f"the conversation {name} is open in another terminal",
            hint="continue there, or close it there first",
        )
    return lock


def exists(name: str) -> bool:
    return bool(select(data_dir(), "SELECT 1 FROM conversations WHERE name = ?", name))


def save(folder: Path, *conversations: Conversation) -> None:
    """Store conversations, and delete those without messages, in one transaction. Raises OSError."""
    columns = "name, title, pair, course_of, text, body, talked, count"
    insert = f"INSERT OR REPLACE INTO conversations ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
    steps: list[tuple[object, ...]] = []
    for one in conversations:
        text = "\n".join((one.title, one.pair, *(message.content for message in one.messages))).casefold()
        body = as_json(_with_fewer_images(one))
        texts = map(repaired, (one.name, one.title, one.pair, one.course_of, text, body))
        written = (insert, *texts, one.talked, len(one.messages))
        steps.append(written if one.messages else ("DELETE FROM conversations WHERE name = ?", one.name))
    perform(folder, *steps)


def _with_fewer_images(conversation: Conversation) -> Conversation:
    """Replace the oldest images by their names, until the others have at most MOST_IMAGE_BYTES together."""
    found, room = list(conversation.messages), MOST_IMAGE_BYTES
    for index in reversed(range(len(found))):
        room -= sum(len(image.data) for image in found[index].images)
        if room < 0 and found[index].images:
            found[index] = replace(found[index], content=found[index].shown, images=())
    return replace(conversation, messages=tuple(found))


def as_json(conversation: Conversation, indent: int | None = None) -> str:
    def text(data: bytes) -> str:
        return base64.b64encode(data).decode()

    return json.dumps(asdict(conversation), indent=indent, ensure_ascii=False, default=text)


def courses(folder: Path, name: str) -> list[str]:
    """Return the names of a conversation's earlier courses: the copies stored before the user edited a question."""
    return [row[0] for row in select(folder, "SELECT name FROM conversations WHERE course_of = ?", name)]


def delete(folder: Path, name: str) -> None:
    """Delete a conversation with its earlier courses, typed prompts and prompt caches.

    If ConversationInUse or OSError is raised, the conversation is still stored.
    """
    perform(folder)  # check the file for damage before anything is deleted
    names = [name, *courses(folder, name)]
    before = select(folder, "SELECT course_of FROM conversations WHERE name = ?", name)
    with ExitStack() as locks:
        for each in names:
            locks.callback(hold(folder, each).release)
        _forget_caches(*names, *(row[0] for row in before))
        asked = set[str]()
        for each in names:
            with suppress(LocalspecError):
                asked |= {repaired(one.content) for one in read(folder, each).messages if one.role == "user"}
        for kept in kept_files(folder):
            kept.unlink(missing_ok=True)  # a damaged copy may contain the conversation
        prompts = [("DELETE FROM prompts WHERE text = ?", text) for text in asked]
        perform(
            folder,
            *prompts,
            *((f"DELETE FROM {table} WHERE name = ?", one) for one in names for table in TABLES),
        )
        perform(folder, ("PRAGMA wal_checkpoint(TRUNCATE)",))
        _forget_caches(*names)  # again, because an engine may have stored a prompt cache meanwhile


def _forget_caches(*names: str) -> None:
    for name in filter(None, names):
        forget_conversation(texts_dir(), name)


def add_prompt(folder: Path, text: str, name: str = "") -> None:
    """Store a typed prompt, which is deleted with the conversation `name`. Raises OSError."""
    oldest = "DELETE FROM prompts WHERE rowid <= (SELECT max(rowid) FROM prompts) - ?"
    new = ("INSERT INTO prompts (text, name) VALUES (?, ?)", repaired(text), name)
    perform(folder, new, (oldest, MOST_PROMPTS))


def prompts(folder: Path) -> list[str]:
    return [row[0] for row in select(folder, "SELECT text FROM prompts ORDER BY rowid")]
