"""`localspec chat --plain`, for screen readers and pipes: replies on stdout, the rest on stderr."""

import asyncio
import io
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Final, Literal

from localspec.conversations import conversations
from localspec.conversations.conversations import StoredMessage
from localspec.display import OutputFailed, counted, on_terminal, print_line, say, size_text
from localspec.engine.messages import Compared
from localspec.errors import BadSetting
from localspec.events import Kind

from . import status
from .commands import table
from .commands.base import Chat, Severity, receive_all
from .state import clipboard
from .state.chat import ChatState, Setup

TIMEOUT_SECONDS: Final = 2  # longest time to stop a reply
END_SECONDS: Final = 8  # longest time to save and end at a signal; Docker kills a program after 10 s
UNUSABLE: Final = ("stop", "tokens", "theme")  # /stop needs a running reply, the others need colours
QUOTES: Final = '"""'  # the marks around a message of several lines, as in `ollama run`


class PlainChat(Chat):
    """A chat that prints lines of text, and reads a message only while no reply runs."""

    def __init__(self, setup: Setup) -> None:
        self.state = ChatState(setup, print_line)
        self.ended_by: signal.Signals | None = None
        self._interrupted_at = inf  # time of the first Ctrl+C since the last message; `inf`: none came
        self._failed = self._left = self._is_reading = self._shows_thinking = self._line_open = False
        self._announced: object = None  # the last `Ready` report that was printed
        self._announced_pull = ""

    async def run(self) -> int:
        """Run until the input ends or the user leaves; return 1 if a message got no reply, else 0."""
        try:
            if on_terminal(sys.stdin):
                print_line("localspec, line by line. /help lists the commands, ^d or /quit leaves.")
            if self.state.conversation.messages:
                await self.show_conversation()
            await self._until(self._is_idle)
            while not self._left and (text := self._read()) is not None:
                await self._take(text)
                await self._until(self._is_idle)
                await self.state.saver.finish()
        finally:
            with suppress(OSError, OutputFailed):  # an error of the save must not prevent the steps below
                await self.is_saved(self.state.save_running())
            await self.state.saver.finish()
            self.state.conversation.close()
        return int(self._failed)

    def _read(self) -> str | None:
        """Return the next message, "" if Ctrl+C cleared the line, or None if the input has ended."""
        try:
            self._is_reading, self._interrupted_at = True, inf
            before = "" if self.editing is None else self.state.conversation.messages[self.editing].content
            return read_message(before) if self.ended_by is None else None
        except KeyboardInterrupt:
            if self.ended_by is None and not on_terminal(sys.stdin):
                raise
            print_line("\nThe message stays as it was." if self.end_editing() else "\n^d or /quit leaves.")
            return "" if self.ended_by is None else None
        finally:
            self._is_reading = False

    async def _until(self, done: Callable[[], bool]) -> None:
        """Print the engine's reports until `done()` is true, or a signal or Ctrl+C comes."""
        while True:
            await receive_all(self)
            await self.draw_reply()
            if pull := self.state.downloads.progress:
                tenth = f"{pull.name} {10 * pull.done_bytes // max(1, pull.total_bytes)}"
                if tenth != self._announced_pull:
                    self._announced_pull = tenth
                    print_line(f"{status.pull_status(pull)}; ^c stops it")
            interrupted = self._interrupted_at < inf and not self._is_working()
            if done() or self.ended_by is not None or interrupted:
                return
            await asyncio.sleep(0.05)

    def _is_working(self) -> bool:
        return self.state.engine.busy or self.state.downloads.progress is not None

    def _is_idle(self) -> bool:
        return not (self._is_working() or self.state.engine.loading)

    async def _take(self, text: str) -> None:
        if command := table.parse(text):
            await table.run(self, *command)
        elif text.strip():
            try:
                asked = await asyncio.to_thread(self.state.asked, text, True, self.editing)
            except BadSetting as error:
                self._failed = True
                await self.notice(str(error), error.hint, "error")
                return
            self.state.remember_prompt(text)
            editing, self.editing = self.editing, None
            self.state.images = ()
            await self.is_saved(self.state.conversation.ask(asked, instead_of=editing))
            await self.ask_again()

    def interrupt(self, *_: object) -> None:
        """Stop the reply or the download at Ctrl+C. Raises KeyboardInterrupt to clear a line or to leave."""
        if self.ended_by is not None:
            return
        again = monotonic() - self._interrupted_at > TIMEOUT_SECONDS
        if self._is_reading or again or not (self._is_working() or on_terminal(sys.stdin)):
            raise KeyboardInterrupt
        self._interrupted_at = min(monotonic(), self._interrupted_at)
        if self.state.engine.busy:
            self.state.engine.stop()
        else:
            self.state.downloads.cancel()

    def end(self, number: int, _frame: object) -> None:
        """Let `run` save and end at SIGTERM and SIGHUP. If a write blocks, end after END_SECONDS."""
        self.ended_by = signal.Signals(number)
        if sys.platform != "win32":
            signal.signal(signal.SIGALRM, lambda *_: os._exit(128 + number))
            signal.alarm(END_SECONDS)
        if self._is_reading:
            raise KeyboardInterrupt

    async def show_finished(self, message: StoredMessage) -> None:
        self.notify(f"[{status.footer(message)}]")

    async def step_back(self, outcome: str) -> None:
        self._failed = True
        if self.state.conversation.reply is None:
            await self.is_saved(self.state.conversation.take_back())
        self.notify("[no reply; your message was removed]")

    async def draw_reply(self) -> None:
        reply = self.state.engine.reply
        if reply is None or self.state.engine.comparing:
            return
        for piece in reply.take_fresh():
            if piece.kind is Kind.ANSWER and piece.text:
                say(piece.text, end="")
                self._line_open = not piece.text.endswith("\n")
            elif self._shows_thinking:
                say(piece.text, end="", to=sys.stderr)

    def notify(self, message: str, *, severity: Severity = "information") -> None:
        if self._line_open:
            say("")
            self._line_open = False
        print_line(message)

    async def notice(self, what: str, hint: str = "", kind: Literal["note", "error"] = "note") -> None:
        is_error = kind == "error"
        self.notify(f"error: {what}" if is_error else what)
        if hint:
            print_line(f"hint: {hint}" if is_error else hint)

    def refresh_state(self) -> None:
        ready = self.state.engine.ready
        if ready is not None and ready is not self._announced:
            print_line(f"{ready.pair} is ready.")
        self._announced = ready

    def show_inspector(self, shown: bool) -> None:
        reply = self.state.conversation.reply
        print_line(status.footer(reply) if reply else "There is no reply yet.")

    async def toggle_thinking(self) -> None:
        self._shows_thinking = not self._shows_thinking
        print_line(f"Reasoning is {'shown' if self._shows_thinking else 'hidden'} from now on.")

    def begin_editing(self, index: int) -> None:
        self.editing = index
        print_line(f"The next message replaces: {self.state.conversation.messages[index].shown}")
        print_line(f"{'^c' if on_terminal(sys.stdin) else '/stop'} leaves it as it was.")

    async def escape(self) -> None:
        print_line("The message stays as it was." if self.end_editing() else "No reply runs; ^c stops one.")

    async def choose_version(self, index: int, version: int) -> None:
        await self.is_saved(self.state.conversation.choose(index, version))
        say(self.state.conversation.messages[index].content)

    async def show_conversation(self) -> None:
        conversation = self.state.conversation
        print_line(f"“{conversation.saved.title}”, {counted(len(conversation.messages), 'message')}.")

    async def choose_pair(self) -> None:
        downloads = self.state.downloads
        downloads.rows = None
        downloads.refresh()
        await self._until(lambda: downloads.rows is not None)
        for row in self.state.downloads.rows or ():
            where = "here" if row.on_disk else f"{size_text(row.size_bytes)} to download"
            print_line(f"{row.name}: {where}. {row.use}")
        print_line("/pair NAME loads a pair, /pull NAME downloads one.")

    async def suggest_pull(self, name: str, question: str) -> None:
        print_line(f"{question} /pull {name} downloads it.")

    async def choose_conversation(self) -> None:
        for conversation in await asyncio.to_thread(conversations.listing, self.state.setup.folder):
            print_line(f"{conversation.name}: {conversation.title}")
        print_line("/load NAME opens a conversation.")

    async def show_help(self) -> None:
        for command in table.COMMANDS:
            if command.name not in UNUSABLE:
                print_line(f"/{command.usage}: {command.help}")
        print_line('""" begins and ends a message of several lines. @path attaches a file. ^c stops a reply.')

    async def show_comparison(self, compared: Compared | None) -> None:
        if compared is None:
            from localspec.measure.race import STOPPED  # imported here because the module loads slowly

            print_line(STOPPED)
            return
        print_line(f"plain decoding:\n{compared.plain.text.strip()}\n")
        if compared.drafted.text != compared.plain.text:
            print_line(f"with drafting:\n{compared.drafted.text.strip()}\n")
        print_line(compared.verdict)

    async def copy(self, text: str) -> None:
        copied = await asyncio.to_thread(clipboard.copy, text)
        print_line(f"{counted(len(text), 'character')} copied." if copied else "There is no clipboard here.")

    async def quit(self) -> None:
        self._left = True


def chat(setup: Setup) -> int:
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    plain = PlainChat(setup)
    handlers: dict[signal.Signals, Callable[..., None]] = {signal.SIGINT: plain.interrupt}
    if sys.platform != "win32":
        handlers |= dict.fromkeys((signal.SIGTERM, signal.SIGHUP), plain.end)
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        code = asyncio.run(plain.run())
    finally:
        plain.state.close_engines()
        for number, handler in before.items():
            signal.signal(number, handler)
    if plain.ended_by is not None:
        signal.signal(plain.ended_by, signal.SIG_DFL)
        signal.raise_signal(plain.ended_by)
    return code


def read_message(before: str = "") -> str | None:
    """Return the next message, or None if the input has ended; `before`: the text that the user edits."""
    line = _read_line("> ", before)
    if line is None or not line.lstrip().startswith(QUOTES):
        return line
    lines = [line.lstrip().removeprefix(QUOTES)]
    while not lines[-1].rstrip().endswith(QUOTES) and (line := _read_line()) is not None:
        lines.append(line)
    return "\n".join(lines).rstrip().removesuffix(QUOTES).strip("\n")


def _read_line(prompt: str = "", before: str = "") -> str | None:
    if all(map(on_terminal, (sys.stdin, sys.stdout, sys.stderr))):
        with suppress(ImportError):  # Windows lacks readline, but its console edits lines
            import readline  # with this import, `input` can edit and recall lines

            readline.set_startup_hook(lambda: readline.insert_text(before))
        try:
            return input(prompt)
        except EOFError:
            print_line("")
            return None
    if on_terminal(sys.stdin) and prompt:
        say(prompt.rstrip(), end=" ", to=sys.stderr)
    line = sys.stdin.readline() if sys.stdin is not None else ""
    return line.rstrip("\n") if line else None
