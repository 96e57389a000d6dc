"""The values that a chat begins with, and its state while it runs."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from localspec.chat.conversations import Conversation, Journal
from localspec.engine.client import EngineProcess
from localspec.engine.messages import LoadPair, Options
from localspec.events import Piece
from localspec.files import change_json_object

from .conversation import OpenConversation
from .engine import Downloads, EngineState
from .remembered import Preferences, Presets, PromptHistory, Saver


@dataclass(frozen=True, slots=True)
class Setup:
    """The start values of a chat. The engine runs already and has the load request."""

    engine: EngineProcess
    folder: Path  # of conversations, prompt history and preferences
    load: LoadPair = field(default_factory=LoadPair)
    settings: Options = field(default_factory=dict)  # of replies
    system: str = ""
    resumed: tuple[Journal, Conversation] | None = None  # held
    stored: bool = True  # False: the chat leaves nothing in the folder
    pull: bool = False  # fetch the pair when it is not here
    downloads: Downloads = field(default_factory=Downloads)

    @property
    def conversations(self) -> Path:
        return self.folder / "conversations"


class ChatState:
    """The engine, the pairs, the open conversation, and the user's choices."""

    def __init__(self, setup: Setup, tell: Callable[[str], None]) -> None:
        """`tell` gets a sentence when a prompt or a preference could not be written."""
        self.setup = setup
        self.engine = EngineState(setup.engine, setup.load, setup.settings)
        self.engine.load(setup.load, started=True)
        self.downloads = setup.downloads
        self.prompt_history = PromptHistory.load(setup.folder / "prompts.jsonl", stored=setup.stored)
        self.preferences = Preferences.load(setup.folder / "chat.json")
        self.saver = Saver(tell)
        self.presets = Presets(setup.folder / "presets.json")
        self.prefill = ""  # the given beginning of the next reply
        self.conversation = self.new_conversation(setup.system)
        if setup.resumed:
            self.conversation = OpenConversation.resumed(*setup.resumed, stored=setup.stored)

    def new_conversation(self, system: str) -> OpenConversation:
        """A conversation with the pair that is loaded; nothing of it is on the screen or on the disk."""
        journal = Journal.new(self.setup.conversations, self.engine.pair_name, system)
        journal.files = self.engine.files
        return OpenConversation(journal, stored=self.setup.stored)

    async def save_running(self) -> None:
        """Save the text of the running reply as stopped, and all that an earlier write lost. Raises OSError."""
        for report in self.engine.client.drain():
            if isinstance(report, Piece):
                self.engine.absorb(report)
        reply, comparing = self.engine.reply, self.engine.comparing
        self.engine.end_reply()
        if reply is not None and not comparing:
            message = reply.message("cancelled")
            if message.has_words_after(reply.beginning):
                await self.conversation.add(message)
        await self.conversation.catch_up()

    def prefer(self, **changes: object) -> None:
        self.preferences = replace(self.preferences, **changes)  # type: ignore[arg-type]
        if self.setup.stored:
            self.saver.save(partial(change_json_object, self.setup.folder / "chat.json", changes))

    def remember_prompt(self, text: str) -> None:
        self.saver.save(partial(self.prompt_history.add, text))

    def close_engines(self) -> None:
        self.engine.client.close()
        self.downloads.close()
