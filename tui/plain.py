"""`localspec chat --plain`: a conversation as lines, without Textual; for screen readers, pipes and bare terminals.

Replies go to stdout, everything else to stderr.
"""

import asyncio
import io
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Final, Literal

from localspec.chat.conversations import listing
from localspec.display import OutputFailed, on_terminal, say
from localspec.engine.messages import Compared
from localspec.errors import BadSetting, EngineDied, LocalspecError
from localspec.events import Kind, Reply

from .commands import engine as reports
from .commands import table
from .commands.protocol import Refusal, Severity
from .state import clipboard, mentions
from .state.chat import ChatState, Setup
from .state.conversation import OpenConversation
from .text import status

LOOK_SECONDS: Final = 0.05
WAKE_SECONDS: Final = 0.25
PATIENCE_SECONDS: Final = 2.0  # after a request to stop
QUOTES: Final = '"""'  # around a message of several lines, as in `ollama run`


class PlainChat:
    """A conversation with a pair; satisfies `commands.protocol.Chat`. Nothing runs while the user types."""

    def __init__(self, setup: Setup) -> None:
        self.state = ChatState(setup, tell)
        self.editing: int | None = None
        self.ended_by: signal.Signals | None = None
        self._ended_at = self._interrupted_at = inf  # the second by Ctrl+C, since the last message
        self._failed = self._left = self._is_reading = self._shows_thinking = self._line_open = False
        self._announced: object = None  # the loaded pair
        self._announced_pull = ""

    async def run(self) -> int:
        """Run until the input ends or the user leaves; the exit code is 1 when a message got no reply."""
        try:
            if on_terminal(sys.stdin):
                tell("localspec, line by line. /help lists the commands, ^d or /quit leaves.")
            if messages := self.state.conversation.messages:
                tell(f"Resumed “{self.state.conversation.saved.title}”, {len(messages)} messages.")
            await self._until(self._is_idle)
            while not self._left and (text := self._read()) is not None:
                await self._take(text)
                await self._until(self._is_idle)
                await self.state.saver.finish()
        finally:
            try:
                await self.state.save_running()
            except OSError as error:
                with suppress(OSError, OutputFailed):  # the output may be what failed
                    tell(f"error: the conversation could not be saved: {error}")
            await self.state.saver.finish()
            self.state.conversation.close()
        return int(self._failed)

    def _read(self) -> str | None:
        """The next message; "" for a line that Ctrl+C has cleared, None at the end."""
        self._is_reading, self._interrupted_at = True, inf
        try:
            return read_message() if self.ended_by is None else None
        except KeyboardInterrupt:
            if self.ended_by is None and not on_terminal(sys.stdin):
                raise
            tell("\n^d or /quit leaves.")
            return "" if self.ended_by is None else None
        finally:
            self._is_reading = False

    async def _until(self, done: Callable[[], bool]) -> None:
        """Print the engine's reports until something is done, a signal ends the chat, or Ctrl+C ends the wait."""
        downloads = self.state.downloads
        while True:
            for report in self.state.engine.client.drain():
                await reports.receive(self, report)
            for end in downloads.take_ended():
                await reports.receive_end(self, end)
            self._print_fresh()
            if pull := downloads.progress:
                tenth = f"{pull.name} {10 * pull.done_bytes // max(1, pull.total_bytes)}"
                if tenth != self._announced_pull:
                    self._announced_pull = tenth
                    tell(f"{status.pull_status(pull)}; ^c stops it")
            interrupted = self._interrupted_at < inf and not self._is_working()
            if done() or self.ended_by is not None or interrupted:
                return
            await asyncio.sleep(LOOK_SECONDS)

    def _is_working(self) -> bool:
        return self.state.engine.busy or self.state.downloads.progress is not None

    def _is_idle(self) -> bool:
        return not (self._is_working() or self.state.engine.loading)

    async def _take(self, text: str) -> None:
        if command := table.parse(text):
            await self.run_command(*command)
        elif text.strip():
            try:
                asked = await asyncio.to_thread(mentions.with_mentioned, text)
            except BadSetting as error:
                self._failed = True
                await self.notice(str(error), error.hint, "error")
                return
            self.state.remember_prompt(text)
            editing, self.editing = self.editing, None
            await self._save_or_report(self.state.conversation.ask(asked, instead_of=editing))
            await self.ask_again()

    def interrupt(self, *_: object) -> None:
        """Ctrl+C: stop the reply or the pull, come back from a wait, clear a line. Raises KeyboardInterrupt."""
        if self.ended_by is not None and not self._is_reading:
            return
        again = monotonic() - self._interrupted_at > PATIENCE_SECONDS
        if self._is_reading or again or not (self._is_working() or on_terminal(sys.stdin)):
            raise KeyboardInterrupt
        self._interrupted_at = min(monotonic(), self._interrupted_at)
        if self.state.engine.busy:
            self.state.engine.stop()
        else:
            self.state.downloads.cancel()

    def end(self, number: int, _frame: object) -> None:
        """SIGTERM and SIGHUP: end in order."""
        self.ended_by, self._ended_at = signal.Signals(number), monotonic()
        self.wake()

    def wake(self, *_: object) -> None:
        """Every WAKE_SECONDS: leave a read that began as the signal came, and a write that nobody takes."""
        if self.ended_by is not None and monotonic() - self._ended_at > PATIENCE_SECONDS:
            os._exit(128 + self.ended_by)
        if self.ended_by is not None and self._is_reading:
            raise KeyboardInterrupt

    async def ask_again(self, beginning: str = "") -> None:
        try:
            self.state.begin_reply(beginning)
        except EngineDied as error:
            await self._step_back()
            await self.notice(str(error), error.hint, "error")

    async def end_reply(self, outcome: str, final: Reply | None = None) -> None:
        reply, comparing = self.state.engine.reply, self.state.engine.comparing
        self._print_fresh()
        self.state.engine.end_reply(final)
        if reply is None or comparing:
            return
        message = reply.message(outcome, final)
        if message.has_words_after(reply.beginning):
            await self._save_or_report(self.state.conversation.add(message))
            self.notify(f"[{status.footer(message)}]")
        else:
            await self._step_back()
            self.notify("[no reply; the message is taken back]")

    async def _step_back(self) -> None:
        """Restore the conversation of before the question."""
        self._failed = True
        conversation = self.state.conversation
        if conversation.reply is None and conversation.messages:
            await self._save_or_report(conversation.take_back())

    async def _save_or_report(self, saving: Awaitable[None]) -> None:
        try:
            await saving
        except OSError as error:
            await self.notice(f"the conversation could not be saved: {error}", "free some space", "error")

    def _print_fresh(self) -> None:
        reply = self.state.engine.reply
        if reply is None or self.state.engine.comparing:
            return
        for piece in reply.take_fresh():
            if piece.kind is Kind.ANSWER and piece.text:
                say(piece.text, end="")
                self._line_open = not piece.text.endswith("\n")
            elif self._shows_thinking:
                say(piece.text, end="", to=sys.stderr)

    async def run_command(self, name: str, argument: str = "") -> None:
        command = table.find(name)
        if command is None:
            tell(table.unknown(name))
            return
        try:
            await command.run(self, argument)
        except Refusal as refusal:
            self.notify(str(refusal))
        except LocalspecError as error:
            await self.notice(str(error), error.hint, "error")

    def notify(self, message: str, *, severity: Severity = "information") -> None:
        if self._line_open:
            say("")
            self._line_open = False
        tell(message)

    async def notice(self, what: str, hint: str = "", kind: Literal["note", "error"] = "note") -> None:
        is_error = kind == "error"
        self.notify(f"error: {what}" if is_error else what)
        if hint:
            tell(f"hint: {hint}" if is_error else hint)

    def refresh_state(self) -> None:
        ready = self.state.engine.ready
        if ready is not None and ready is not self._announced:
            tell(f"{ready.pair} is ready.")
        self._announced = ready

    def show_inspector(self, shown: bool) -> None:
        reply = self.state.conversation.reply
        tell(status.footer(reply) if reply else "There is no reply yet.")

    async def toggle_thinking(self) -> None:
        self._shows_thinking = not self._shows_thinking
        tell(f"Reasoning is {'shown' if self._shows_thinking else 'hidden'} from now on.")

    async def escape(self) -> None:
        self.editing = None

    def begin_editing(self, index: int) -> None:
        self.editing = index
        tell(f"The next message replaces: {self.state.conversation.messages[index].content}")

    def end_editing(self) -> bool:
        was_editing, self.editing = self.editing is not None, None
        return was_editing

    async def choose_version(self, index: int, version: int) -> None:
        await self._save_or_report(self.state.conversation.choose(index, version))
        say(self.state.conversation.messages[index].content)

    async def open_conversation(self, conversation: OpenConversation) -> None:
        self.state.conversation.close()
        self.state.conversation, self.editing = conversation, None
        tell(f"“{conversation.saved.title}”, {len(conversation.messages)} messages.")
        await reports.continue_with_pair(self)

    async def choose_pair(self) -> None:
        downloads = self.state.downloads
        downloads.rows = None
        downloads.refresh()
        await self._until(lambda: downloads.rows is not None)
        for row in self.state.downloads.rows or ():
            tell(f"{row.name}: {'here' if row.on_disk else 'not here'}. {row.use}")
        tell("/pair NAME loads one, /pull NAME fetches it.")

    async def choose_conversation(self) -> None:
        found = await asyncio.to_thread(listing, self.state.setup.conversations)
        for conversation in found.conversations:
            tell(f"{conversation.name}: {conversation.title}")
        tell("/load NAME opens one.")

    async def theme(self, name: str) -> None:
        tell("Lines have no colours.")

    async def choose_block(self, blocks: Sequence[str]) -> None:
        await self.copy(blocks[-1])

    async def show_help(self) -> None:
        for command in table.COMMANDS:
            tell(f"/{command.usage}: {command.help}")
        tell('""" begins and ends a message of several lines. @path attaches a file. ^c stops a reply.')

    def show_comparison(self, compared: Compared) -> None:
        tell(compared.verdict)

    async def copy(self, text: str) -> None:
        copied = await asyncio.to_thread(clipboard.copy, text)
        tell(f"{len(text):,} characters copied." if copied else "There is no clipboard here.")

    async def quit(self) -> None:
        self._left = True


def chat(setup: Setup) -> int:
    """Run the chat until the user leaves or the input ends; the exit code."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    plain = PlainChat(setup)
    handlers: dict[signal.Signals, Callable[..., None]] = {signal.SIGINT: plain.interrupt}
    if sys.platform != "win32":
        handlers |= dict.fromkeys((signal.SIGTERM, signal.SIGHUP), plain.end) | {signal.SIGALRM: plain.wake}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_REAL, WAKE_SECONDS, WAKE_SECONDS)
    try:
        code = asyncio.run(plain.run())
    finally:
        plain.state.close_engines()
        if sys.platform != "win32":
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
    if plain.ended_by is not None:
        signal.signal(plain.ended_by, signal.SIG_DFL)
        signal.raise_signal(plain.ended_by)
    return code


def read_message() -> str | None:
    """The next message; None at the end of the input."""
    line = _read_line("> ")
    if line is None or not line.lstrip().startswith(QUOTES):
        return line
    lines = [line.lstrip().removeprefix(QUOTES)]
    while not lines[-1].rstrip().endswith(QUOTES) and (line := _read_line("")) is not None:
        lines.append(line)
    return "\n".join(lines).rstrip().removesuffix(QUOTES).strip("\n")


def _read_line(prompt: str) -> str | None:
    if all(map(on_terminal, (sys.stdin, sys.stdout, sys.stderr))):
        with suppress(ImportError):  # Windows has its own
            import readline  # noqa: F401 - lets `input` edit and recall
        try:
            return input(prompt)
        except EOFError:
            tell("")
            return None
    if on_terminal(sys.stdin):
        say(prompt, end="", to=sys.stderr)
    line = sys.stdin.readline() if sys.stdin is not None else ""
    return line.rstrip("\n") if line else None


def tell(text: str) -> None:
    """Print a line of the program itself."""
    say(text, to=sys.stderr)
