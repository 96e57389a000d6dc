"""The Textual application: the theme, signals, garbage, and leaving in order; the chat screen does the rest."""

import asyncio
import gc
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from time import monotonic
from typing import Any, ClassVar, Final

from rich.color import Color as RichColor
from rich.palette import Palette
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import App
from textual.color import Color
from textual.content import Content
from textual.filter import LineFilter
from textual.screen import Screen
from textual.theme import Theme
from textual.types import CSSPathType
from textual.worker import WorkerFailed

from localspec.display import for_terminal, without_controls
from localspec.errors import LocalspecError

from .commands.base import receive_all
from .screen import INSPECTED_COLUMNS, ChatScreen
from .state.chat import ChatState, Setup
from .state.engine import ReplyState

LOCALSPEC: Final = Theme(
    name="localspec",
    primary="#7aa2c8",
    secondary="#8f9bb3",
    accent="#5fb3a1",
    foreground="#d5d9e0",
    background="#14171c",
    surface="#1a1e25",
    panel="#232933",
    success="#7fb069",
    warning="#e0a458",
    error="#d1605e",
)


# Of words by who wrote them, with room between them also in the 256 colours that many terminals have.
ORIGINS: Final = {
    "dark": {"text": "auto 87%", "kept": "#10561c", "corrected": "#5c4c0c", "bonus": "#12487c"},
    "light": {"text": "auto 87%", "kept": "#b4e0b4", "corrected": "#fada8c", "bonus": "#b4d4fa"},
    "ansi": {
        "text": "ansi_black",
        "kept": "ansi_bright_green",
        "corrected": "ansi_bright_yellow",
        "bonus": "ansi_bright_cyan",
    },
}
REST_SECONDS: Final = 20.0  # without a key or a reply: then nobody notices a full collection
AGAIN_SECONDS: Final = 2.0  # between two Ctrl+C that leave
HELD_SECONDS: Final = 1.0  # the longest that a key waits for the one before: also a busy screen can be left
_ROUNDS: Final = 4  # a key asks for a command, the command opens a dialog, and the dialog takes the focus
_NEVER: Final = 1_000_000  # collections of the middle generation before a full one: that takes too long


class NoControls(LineFilter):
    """Removes control characters from every line that is drawn, whichever widget it comes from."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [segment._replace(text=without_controls(segment.text)) for segment in segments]


_XTERM: Final = Palette([RichColor.from_ansi(number).get_truecolor() for number in range(16, 256)])


@lru_cache(maxsize=4096)
def in_256_colours(style: Style) -> Style:
    """The nearest colours of a terminal that has 256. Rich would round greys to blue, teal or pink."""
    near = (
        RichColor.from_ansi(_XTERM.match(color.triplet) + 16) if color and color.triplet else color
        for color in (style.color, style.bgcolor)
    )
    return style + Style.from_color(*near)


class NearestColours(LineFilter):
    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment._replace(style=segment.style and in_256_colours(segment.style)) for segment in segments
        ]


class ChatApp(App[None]):
    TITLE = "localspec"
    CSS_PATH: ClassVar[CSSPathType | None] = "app.tcss"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (INSPECTED_COLUMNS, "-wide")]  # noqa: RUF012 - Textual declares it so
    VERTICAL_BREAKPOINTS = [(0, "-short"), (16, "-tall")]  # noqa: RUF012

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.state = ChatState(setup, lambda told: self.notify(told, severity="warning"))
        self._no_controls, self._nearest = NoControls(), NearestColours()
        self._collected_after: ReplyState | None = None
        self._typed: deque[events.Key | events.Paste] = deque()
        self._is_typing = False
        self._asked_at = -AGAIN_SECONDS  # the last Ctrl+C with nothing to stop or to clear
        self.register_theme(LOCALSPEC)
        wanted = self.state.preferences.theme
        self.theme = wanted if wanted in self.available_themes else LOCALSPEC.name

    async def on_event(self, event: events.Event) -> None:
        """Hold a key until all is done that the keys before it asked for."""
        if not isinstance(event, events.Key | events.Paste) or event.is_forwarded:
            await super().on_event(event)
            return
        self._typed.append(event)
        if not self._is_typing:
            self._is_typing = True
            self.run_worker(self._apply_typed(), group="keys")

    async def _apply_typed(self) -> None:
        """Apply keys in their order: Textual would let letters and F keys overtake Backspace, Home and Enter."""
        try:
            while self._typed and self.screen_stack:
                event = self._typed.popleft()
                is_text = self._is_text(event)
                await super().on_event(event)
                if not (is_text and self._typed and self._is_text(self._typed[0])):
                    await self._settled()
        finally:
            self._is_typing = False

    def _is_text(self, event: events.Key | events.Paste) -> bool:
        """Whether the focused widget takes it by itself, and so in its order."""
        if isinstance(event, events.Paste) or not event.is_printable or self.focused is None:
            return False
        return self.focused.check_consume_key(event.key, event.character)

    async def _settled(self) -> None:
        """Wait until the messages have passed that the last key left on its way to the app."""
        with suppress(TimeoutError):
            async with asyncio.timeout(HELD_SECONDS):
                for _ in range(_ROUNDS):
                    if not self.screen_stack:  # the chat ends
                        return
                    for pump in (self.focused or self.screen).ancestors_with_self:
                        passed = asyncio.Event()
                        if pump.call_later(passed.set):
                            await passed.wait()

    def get_default_screen(self) -> Screen[None]:
        return ChatScreen(self.state)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        theme = self.current_theme
        origins = ORIGINS["ansi" if theme.ansi else "dark" if theme.dark else "light"]
        return {f"origin-{name}": colour for name, colour in origins.items()}

    def get_line_filters(self) -> Sequence[LineFilter]:
        nearest = [self._nearest] * (self.console.color_system == "256")
        return [*super().get_line_filters(), *nearest, self._no_controls]

    def panic(self, *_renderables: object) -> None:
        """Leave without Textual's traceback, which would show the conversation; `raise_failure` reports."""
        self.exit(return_code=1)

    _fatal_error = panic

    def raise_failure(self) -> None:
        """Save the running reply, then raise the error that ended the app, if one did."""
        if not self.return_code:
            return
        with suppress(OSError, LocalspecError):  # report only what ended the app
            asyncio.run(self.state.save_running())
        self.state.conversation.journal.close()
        self.state.close_engines()
        error = self._exception or LocalspecError("the terminal cannot be read", hint="open another one")
        raise error.error if isinstance(error, WorkerFailed) else error

    def notify(self, message: str, *, severity: str = "information", **_: Any) -> None:  # noqa: ANN401 - Textual's
        """A remark in the line of the dialog or the chat that is kept for it, never over what is typed."""
        style = "$text" if severity == "information" else f"$text-{severity}"
        for screen in reversed(self.screen_stack):
            if show := getattr(screen, "show_remark", None):
                show(Content.styled(for_terminal(message), style))
                return

    def on_mount(self) -> None:
        self._heed_signals()
        self._resting = self.set_interval(REST_SECONDS, self._collect)

    def _collect(self) -> None:
        """Collect all garbage once after a reply, when nobody has typed or asked for a while."""
        if not self.state.engine.busy and self.state.engine.last_reply is not self._collected_after:
            self._collected_after = self.state.engine.last_reply
            gc.collect()

    def action_help_quit(self) -> None:
        """Ctrl+C where no text is selected: stop the reply, else clear the prompt, else leave the second time."""
        screen = self.screen
        if self.state.engine.busy:
            self.state.engine.stop()
        elif isinstance(screen, ChatScreen) and (screen.editing is not None or screen.prompt.text):
            if not screen.end_editing():
                screen.prompt.replace_text("")
                self.notify("^z brings the text back.")
        elif monotonic() - self._asked_at < AGAIN_SECONDS:
            self.run_worker(self.action_quit())
        else:
            self._asked_at = monotonic()
            self.notify("^c again leaves, and so does ^q.")

    async def on_unmount(self) -> None:
        await self.state.saver.finish()
        self.state.conversation.journal.close()

    async def action_quit(self) -> None:
        """Leave within a second, whatever the engine does, and keep the text of a running reply."""
        await self._save_reply()
        # Not a daemon: the program waits for it, so that no engine is left behind.
        threading.Thread(target=self.state.close_engines).start()
        self.exit()

    async def _save_reply(self) -> None:
        for screen in self.screen_stack:
            if isinstance(screen, ChatScreen):
                await receive_all(screen)
                await screen.is_saved(self.state.save_running())

    def _heed_signals(self) -> None:
        """Keep the reply when the program or its terminal is closed from outside, and the terminal after a stop."""
        if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
            return
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, lambda: self.run_worker(self.action_quit()))
        loop.add_signal_handler(signal.SIGHUP, lambda: self.run_worker(self._hang_up()))
        loop.add_signal_handler(signal.SIGTSTP, lambda: self._take_terminal_again(stop=True))
        loop.add_signal_handler(signal.SIGCONT, self._take_terminal_again)

    def _take_terminal_again(self, *, stop: bool = False) -> None:
        """Give the terminal back and take it again, between them a stop.

        After a stop that gave nothing back, Textual's own handler takes it twice: it reads no key or never ends.
        """
        with self.suspend():
            if stop:
                os.kill(os.getpid(), signal.SIGSTOP)

    async def _hang_up(self) -> None:
        await self._save_reply()
        await self.state.saver.finish()
        # Without a terminal an orderly end could block in writing to it. The engine ends when its stdin closes.
        self.state.conversation.journal.close()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGHUP)

    def on_key(self) -> None:
        self._resting.reset()


def chat(setup: Setup) -> int:
    """Run the chat until the user leaves; the exit code."""
    app = ChatApp(setup)
    before = gc.get_threshold()
    gc.freeze()  # imported modules stay for good
    gc.set_threshold(before[0], before[1], _NEVER)  # the app runs full collections while nobody waits
    try:
        app.run()
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
    app.raise_failure()
    return 0
