"""The Textual application: owns the engine, the preferences and the theme; the chat screen does the rest."""

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual.app import App, SystemCommand
from textual.command import Provider
from textual.notifications import SeverityLevel
from textual.screen import Screen
from textual.types import CSSPathType

from localspec.conversations import Conversation, Journal
from localspec.engine.client import Engine
from localspec.engine.messages import Load, ReplySettings
from localspec.models.resolve import resolve
from localspec.terminal_text import for_terminal

from . import collector, preferences, themes
from .conductor import Conductor
from .dialogue import Dialogue
from .librarian import Librarian
from .palette import CommandProvider
from .preferences import Preferences
from .prompt_history import PromptHistory
from .saving import Saver
from .screens.chat import ChatScreen


@dataclass(frozen=True, slots=True)
class Setup:
    """What a chat begins with. The engine runs already and has been sent the load request."""

    engine: Engine
    make_engine: Callable[[], Engine]  # for the process that lists and fetches pairs
    folder: Path  # of conversations, prompt history and preferences
    load: Load = field(default_factory=Load)
    settings: ReplySettings = field(default_factory=ReplySettings)
    system: str = ""
    resumed: tuple[Journal, Conversation] | None = None  # held
    stored: bool = True  # False: the chat leaves nothing in the folder
    theme: str | None = None  # wins over the remembered one
    pull: bool = False  # fetch the pair when it is not here
    find_pair: Callable[[str], object] = resolve  # raises when a pair is unknown, not here, or cannot run


class ChatApp(App[None]):
    """`localspec chat`."""

    TITLE = "localspec"
    CSS_PATH: ClassVar[CSSPathType | None] = "app.tcss"
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {CommandProvider}
    ENABLE_COMMAND_PALETTE = True

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.setup = setup
        self.conversations = setup.folder / "conversations"
        self.conductor = Conductor(setup.engine, setup.load, setup.settings)
        self.conductor.load(setup.load, started=True)
        if setup.resumed:
            self._first = Dialogue.going_on(*setup.resumed, stored=setup.stored)
        else:
            self._first = self.new_dialogue(setup.system)
        self.librarian = Librarian(setup.make_engine)
        self.prompt_history = PromptHistory.load(setup.folder / "prompts.jsonl", stored=setup.stored)
        self.preferences: Preferences = preferences.load(setup.folder / "chat.json")
        self._saver = Saver(self._not_saved)
        self.register_theme(themes.LOCALSPEC)
        wanted = setup.theme or self.preferences.theme
        self.theme = wanted if wanted in self.available_themes else themes.LOCALSPEC.name

    def get_default_screen(self) -> Screen[None]:
        return ChatScreen(self._first)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """None of Textual's own: the one table has what they do."""
        return ()

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,
    ) -> None:
        """A message in the corner, never read as markup: it may hold anything that was typed or read."""
        super().notify(for_terminal(message), title=title, severity=severity, timeout=timeout, markup=False)

    def on_mount(self) -> None:
        self._heed_signals()
        self._resting = self.set_interval(collector.REST_SECONDS, self._collect, pause=True)

    def _collect(self) -> None:
        if not self.conductor.busy:
            self._resting.pause()
            collector.collect()

    def new_dialogue(self, system: str) -> Dialogue:
        return Dialogue.new(self.conversations, self.conductor.pair_name, system, stored=self.setup.stored)

    def prefer(self, **changes: object) -> None:
        """Change preferences, and remember them."""
        self.preferences = replace(self.preferences, **changes)  # type: ignore[arg-type]
        if self.setup.stored:
            self._saver.save(self._save_preferences)

    def _save_preferences(self) -> None:
        preferences.save(self.setup.folder / "chat.json", self.preferences)

    def remember_prompt(self, text: str) -> None:
        self._saver.save(partial(self.prompt_history.add, text))

    def _not_saved(self, error: OSError) -> None:
        self.notify(f"Could not be remembered: {error}.", severity="warning")

    async def on_unmount(self) -> None:
        await self._saver.finish()

    async def action_quit(self) -> None:
        """Leave within a second, whatever the engine does; what a running reply has said is kept."""
        await self._save_reply()
        # Not a daemon: the program waits for it, so that no engine is left behind.
        threading.Thread(target=self.close_engines).start()
        self.exit()

    async def _save_reply(self) -> None:
        for screen in self.screen_stack:
            if isinstance(screen, ChatScreen):
                await screen.save_reply()

    def _heed_signals(self) -> None:
        """Keep the running reply also when the program or its terminal is closed from outside."""
        if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
            return
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, lambda: self.run_worker(self.action_quit()))
        loop.add_signal_handler(signal.SIGHUP, lambda: self.run_worker(self._hang_up()))

    async def _hang_up(self) -> None:
        await self._save_reply()
        await self._saver.finish()
        # Without a terminal an orderly end could block in writing to it. The engine ends when its stdin closes.
        for screen in self.screen_stack:
            if isinstance(screen, ChatScreen):
                screen.dialogue.close()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGHUP)

    def tidy_up(self) -> None:
        """Collect garbage when nobody has typed or asked for a while after a reply."""
        self._resting.reset()
        self._resting.resume()

    def on_key(self) -> None:
        self._resting.reset()

    def close_engines(self) -> None:
        self.conductor.engine.close()
        self.librarian.close()


def chat(setup: Setup) -> int:
    """Run the chat until the person leaves; the exit code. Raises BadSetting (theme)."""
    app = ChatApp(setup)
    if setup.theme:
        themes.check(setup.theme, app.available_themes)
    with collector.unhurried():
        app.run()
    return app.return_code or 0
