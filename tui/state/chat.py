"""A chat's start values, its state while it runs, and the preferences and prompts that it leaves to the next one."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

from localspec.conversations import conversations
from localspec.conversations.conversations import Conversation, StoredMessage
from localspec.engine.client import EngineProcess
from localspec.engine.messages import LoadPair, Options
from localspec.errors import BadSetting
from localspec.events import Piece
from localspec.files import FileLock, change_json_object, read_json_object
from localspec.prompt.images import NO_IMAGES, Image

from . import mentions
from .conversation import OpenConversation
from .engine import Downloads, EngineState

LONGEST: Final = 20_000  # a prompt with more characters is not kept in the history


@dataclass(frozen=True, slots=True)
class Setup:
    engine: EngineProcess  # a started process that has received `load`
    folder: Path
    load: LoadPair
    settings: Options = field(default_factory=dict)  # the options that apply to every reply
    stops_loops: bool = True  # whether a reply that repeats itself ends
    system: str = ""
    resumed: tuple[FileLock, Conversation] | None = None  # a conversation to continue, and its lock
    stored: bool = True  # whether messages, prompts and preferences are saved in `folder`
    pull: bool = False  # whether to fetch a missing pair without a question
    downloads: Downloads = field(default_factory=Downloads)


@dataclass(frozen=True, slots=True)
class Preferences:
    """The user's choices. A save keeps the changes that other chats have made to the file."""

    theme: str = "localspec"
    colours: bool = True  # whether tokens are coloured by origin
    inspector: bool = False

    @classmethod
    def load(cls, path: Path) -> "Preferences":
        kinds: dict[str, type] = {"theme": str, "colours": bool, "inspector": bool}
        with suppress(OSError, ValueError):
            values: dict[str, Any] = read_json_object(path)
            return cls(**{name: values[name] for name in kinds if isinstance(values.get(name), kinds[name])})
        return cls()


class PromptHistory:
    def __init__(self, folder: Path, *, stored: bool = True) -> None:
        self._folder, self._stored = folder, stored
        self._back = 0  # position of the recalled entry, counted from the end; 0: no entry
        self._unsent = ""  # the text of the prompt before an entry was recalled

    @cached_property
    def entries(self) -> list[str]:
        try:
            return conversations.prompts(self._folder)
        except OSError:  # the chat works without its history
            return []

    def add(self, text: str, conversation: str = "") -> None:
        """Add a prompt, which is deleted together with `conversation`. Raises OSError."""
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
    """A queue that runs saves one after another. `tell` shows the notice or the error of a save."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._last: asyncio.Task[None] | None = None  # not Textual's worker, which the app's end would cancel

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


class ChatState:
    def __init__(self, setup: Setup, tell: Callable[[str], None]) -> None:
        """`tell`: a function that shows a sentence, for example that a prompt could not be saved."""
        self.setup = setup
        self.engine = EngineState(setup.engine, setup.load, setup.settings, stops_loops=setup.stops_loops)
        self.engine.load(setup.load, started=True)
        self.downloads = setup.downloads
        self.prompt_history = PromptHistory(setup.folder, stored=setup.stored)
        self.preferences = Preferences.load(setup.folder / "chat.json")
        self.saver = Saver(tell)
        self.images: tuple[Image, ...] = ()  # images that go with the next message
        self.conversation = self.new_conversation(setup.system)
        if setup.resumed:
            self.conversation = self.opened(*setup.resumed)

    def new_conversation(self, system: str) -> OpenConversation:
        about = replace(Conversation.new(self.engine.pair_name, system), files=self.engine.files)
        return OpenConversation(self.setup.folder, about, stored=self.setup.stored)

    def opened(self, lock: FileLock, found: Conversation) -> OpenConversation:
        return OpenConversation.resumed(self.setup.folder, lock, found, stored=self.setup.stored)

    async def save_running(self) -> None:
        """Save the running reply as cancelled, and messages whose earlier save failed. Raises OSError."""
        for report in self.engine.client.drain():
            if isinstance(report, Piece):
                self.engine.absorb(report)
        reply, comparing = self.engine.reply, self.engine.comparing
        self.engine.end_reply()
        if reply is not None and not comparing:
            message = reply.message("cancelled")
            if message.has_words_after(reply.beginning):
                await self.conversation.add(message)
        if self.conversation.is_behind:
            await self.conversation.save()

    def prefer(self, **changes: object) -> None:
        self.preferences = replace(self.preferences, **changes)  # type: ignore[arg-type]
        if self.setup.stored:
            self.saver.save(partial(change_json_object, self.setup.folder / "chat.json", changes))

    def asked(self, text: str, words: bool = True, editing: int | None = None) -> StoredMessage:
        """Return a typed message with the files and images that belong to it. Raises BadSetting."""
        images = self.images if editing is None else self.conversation.messages[editing].images
        message, ready = mentions.with_mentioned(text, words, images), self.engine.ready
        if message.images and ready and not ready.reads_images:
            raise BadSetting(f"{ready.target} reads no images", hint=NO_IMAGES)
        return message

    def remember_prompt(self, text: str) -> None:
        self.saver.save(partial(self.prompt_history.add, text, self.conversation.stored_name))

    def close_engines(self) -> None:
        self.engine.client.close()
        self.downloads.close()
