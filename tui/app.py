"""The Textual application: theme, signals, order of keys, garbage collection, and exit."""

import asyncio
import codecs
import gc
import logging
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, ClassVar, Final

from rich.segment import Segment
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


# For each kind of theme, the colours of accepted, corrected and bonus tokens.
ORIGINS: Final = {
    "dark": {"text": "auto 87%", "accepted": "#10561c", "corrected": "#5c4c0c", "bonus": "#12487c"},
    "light": {"text": "auto 87%", "accepted": "#b4e0b4", "corrected": "#fada8c", "bonus": "#b4d4fa"},
    "ansi": {
        "text": "ansi_black",
        "accepted": "ansi_bright_green",
        "corrected": "ansi_bright_yellow",
        "bonus": "ansi_bright_cyan",
    },
}
# A full garbage collection delays keys, so `_collect` runs only after REST_SECONDS without a key.
REST_SECONDS: Final = 20.0
AGAIN_SECONDS: Final = 2.0  # a second Ctrl+C within this time ends the program
HELD_SECONDS: Final = 1.0  # longest time that a key waits until the key before it is handled
_NEVER: Final = 1_000_000  # a threshold so high that Python never starts a full garbage collection itself


class NoControls(LineFilter):
    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [segment._replace(text=without_controls(segment.text)) for segment in segments]


class LogNotices(logging.Handler):
    def __init__(self, app: App[None]) -> None:
        super().__init__(logging.WARNING)
        self._app = app

    def emit(self, record: logging.LogRecord) -> None:
        self._app.call_later(self._app.notify, record.getMessage(), severity="warning")


class ChatApp(App[None]):
    TITLE = "localspec"
    CSS_PATH: ClassVar[CSSPathType | None] = "app.tcss"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (INSPECTED_COLUMNS, "-wide")]  # noqa: RUF012 - Textual declares it so
    VERTICAL_BREAKPOINTS = [(0, "-short"), (16, "-medium"), (32, "-tall")]  # noqa: RUF012

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.state = ChatState(setup, lambda notice: self.notify(notice, severity="warning"))
        self._no_controls = NoControls()
        self._collected_after: ReplyState | None = None
        self._typed: deque[events.Key | events.Paste] = deque()
        self._is_typing = self._has_notice = False
        # Time of the last Ctrl+C that found no reply to stop and no prompt to clear.
        self._asked_at = -AGAIN_SECONDS
        self._log_notices = LogNotices(self)
        self.register_theme(LOCALSPEC)
        wanted = self.state.preferences.theme
        self.theme = wanted if wanted in self.available_themes else LOCALSPEC.name

    async def on_event(self, event: events.Event) -> None:
        """Delay a key until the keys before it are handled."""
        if not isinstance(event, events.Key | events.Paste) or event.is_forwarded:
            await super().on_event(event)
            return
        self._typed.append(event)
        if not self._is_typing:
            self._is_typing = True
            self.run_worker(self._apply_typed(), group="keys")

    async def _apply_typed(self) -> None:
        """Handle keys in the order of typing, because Textual may handle a letter before an earlier Enter."""
        try:
            while self._typed and self.screen_stack:
                event = self._typed.popleft()
                is_text = self._is_text(event)
                if self._has_notice:  # any key removes the notice
                    self._show_notice(Content(""))
                await super().on_event(event)
                if not (is_text and self._typed and self._is_text(self._typed[0])):
                    await self._settled()
        finally:
            self._is_typing = False

    def _is_text(self, event: events.Key | events.Paste) -> bool:
        if isinstance(event, events.Paste) or not event.is_printable or self.focused is None:
            return False
        return self.focused.check_consume_key(event.key, event.character)

    async def _settled(self) -> None:
        """Wait, at most HELD_SECONDS, until the messages that the last key caused are handled."""
        with suppress(TimeoutError):
            async with asyncio.timeout(HELD_SECONDS):
                for _ in range(4):  # repeated, because handling a message may post another one
                    if not self.screen_stack:  # the app is closing
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
        return [*super().get_line_filters(), self._no_controls]

    def panic(self, *_renderables: object) -> None:
        """Exit without Textual's traceback, because the traceback would show text of the chat."""
        self.exit(return_code=1)

    _fatal_error = panic

    def raise_failure(self) -> None:
        """Save the running reply, and raise the error that ended the app. Do nothing after a normal end."""
        if not self.return_code:
            return
        with suppress(OSError, LocalspecError):  # a failed save must not hide the error that ended the app
            asyncio.run(self.state.save_running())
        self.state.conversation.close()
        self.state.close_engines()
        error = self._exception or LocalspecError(
            "localspec cannot read keys from this terminal", hint="start it in a new terminal window"
        )
        raise error.error if isinstance(error, WorkerFailed) else error

    def notify(self, message: str, *, severity: str = "information", **_: Any) -> None:  # noqa: ANN401 - Textual's
        """Show a notice in the open dialog, or in the status line if no dialog is open."""
        style = "$text" if severity == "information" else f"$text-{severity}"
        self._show_notice(Content.styled(for_terminal(message), style))

    def _show_notice(self, notice: Content) -> None:
        self._has_notice = bool(notice)
        for screen in reversed(self.screen_stack):
            if show := getattr(screen, "show_notice", None):
                show(notice)
                return

    def on_mount(self) -> None:
        self._handle_signals()
        logging.getLogger("localspec").addHandler(self._log_notices)
        self._resting = self.set_interval(REST_SECONDS, self._collect)

    def _collect(self) -> None:
        """Run a full garbage collection, at most once after each reply."""
        if not self.state.engine.busy and self.state.engine.last_reply is not self._collected_after:
            self._collected_after = self.state.engine.last_reply
            gc.collect()

    def action_help_quit(self) -> None:
        """Stop the reply. If no reply runs, clear the prompt. If the prompt is empty, leave at the second Ctrl+C."""
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
            self.notify("Press ^c again, or ^q, to leave.")

    async def on_unmount(self) -> None:
        logging.getLogger("localspec").removeHandler(self._log_notices)
        await self.state.saver.finish()
        self.state.conversation.close()

    async def action_quit(self) -> None:
        await self._save_reply()
        # No daemon thread, so that the program waits until the engine processes are closed.
        threading.Thread(target=self.state.close_engines).start()
        self.exit()

    async def _save_reply(self) -> None:
        for screen in self.screen_stack:
            if isinstance(screen, ChatScreen):
                await receive_all(screen)
                await screen.is_saved(self.state.save_running())

    def _handle_signals(self) -> None:
        """Save the reply on SIGTERM and SIGHUP, and release the terminal while SIGTSTP stops the app."""
        if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
            return
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, lambda: self.run_worker(self.action_quit()))
        loop.add_signal_handler(signal.SIGHUP, lambda: self.run_worker(self._hang_up()))
        loop.add_signal_handler(signal.SIGTSTP, lambda: self._take_terminal_again(stop=True))
        loop.add_signal_handler(signal.SIGCONT, self._take_terminal_again)

    def _take_terminal_again(self, *, stop: bool = False) -> None:
        """Release the terminal, stop the process if `stop`, and take the terminal again.

        Textual's own handler would take the terminal twice, and the app would then read no keys.
        """
        with self.suspend():
            if stop:
                os.kill(os.getpid(), signal.SIGSTOP)

    async def _hang_up(self) -> None:
        await self._save_reply()
        await self.state.saver.finish()
        # End by a signal, because `exit` could block while it writes to the closed terminal.
        # The engine process then ends by itself, because its stdin closes.
        self.state.conversation.close()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGHUP)

    def on_key(self) -> None:
        self._resting.reset()


def read_any_bytes() -> None:
    """Read typed bytes that are not UTF-8 as cp1252. Textual's own decoder would end the chat."""
    if sys.platform == "win32":
        return
    from textual.drivers import linux_driver

    codecs.register_error("localspec", _as_western)
    decoder = partial(codecs.getincrementaldecoder("utf-8"), "localspec")
    linux_driver.getincrementaldecoder = lambda _: decoder  # type: ignore[attr-defined]


def _as_western(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return error.object[error.start : error.end].decode("cp1252", "replace"), error.end


def chat(setup: Setup) -> int:
    read_any_bytes()
    app = ChatApp(setup)
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(before[0], before[1], _NEVER)  # only `_collect` starts full collections
    try:
        app.run()
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
    app.raise_failure()
    return 0
