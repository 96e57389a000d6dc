"""The start values of a chat, and its state while it runs."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from localspec.conversations.conversations import Conversation, StoredMessage
from localspec.engine.client import EngineProcess
from localspec.engine.messages import LoadPair, Options
from localspec.errors import BadSetting
from localspec.events import Piece
from localspec.files import FileLock, change_json_object
from localspec.prompt.images import NO_IMAGES, Image

from . import mentions
from .conversation import OpenConversation
from .engine import Downloads, EngineState
from .remembered import Preferences, PromptHistory, Saver


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
