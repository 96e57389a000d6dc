"""`localspec chat --plain`: a conversation as lines, without Textual; for screen readers, pipes and bare terminals.

Replies go to stdout, everything else to stderr.
"""

import asyncio
import io
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from math import inf
from time import monotonic, sleep
from typing import Final, Literal, TextIO

from localspec.conversations import StoredMessage, listing
from localspec.engine.messages import Compared, Ready
from localspec.errors import BadSetting, EngineDied, LocalspecError
from localspec.events import Kind, Reply
from localspec.terminal_text import for_terminal

from .commands import engine as reports
from .commands import table
from .commands.protocol import Severity
from .state import clipboard, mentions
from .state.chat import ChatState, Setup
from .state.conversation import OpenConversation
from .text import status

LOOK_SECONDS: Final = 0.05
PATIENCE_SECONDS: Final = 2.0  # with what was asked to stop
PROMPT: Final = "> "
QUOTES: Final = '"""'  # around a message of several lines, as in `ollama run`


def read_message() -> str | None:
    """What the person says next; None at the end of the input."""
    line = _read_line(PROMPT)
    if line is None or not line.lstrip().startswith(QUOTES):
        return line
    lines = [line.lstrip().removeprefix(QUOTES)]
    while not lines[-1].rstrip().endswith(QUOTES):
        if (line := _read_line("")) is None:
            break
        lines.append(line)
    return "\n".join(lines).rstrip().removesuffix(QUOTES).strip("\n")


def say(text: str) -> None:
    """A part of a reply."""
    _write(for_terminal(text) if sys.stdout is not None and sys.stdout.isatty() else text, sys.stdout)


def note(text: str, end: str = "\n") -> None:
    """A line of the program itself."""
    _write(for_terminal(text) + end, sys.stderr)


def _write(text: str, stream: TextIO | None) -> None:
    if stream is not None:  # the shell may have closed it
        stream.write(text)
        stream.flush()


def _read_line(prompt: str) -> str | None:
    streams = (sys.stdin, sys.stdout, sys.stderr)
    if all(stream is not None and stream.isatty() for stream in streams):
        with suppress(ImportError):  # Windows has its own
            import readline  # noqa: F401 - lets `input` edit and recall
        try:
            return input(prompt)
        except EOFError:
            note("")
            return None
    if sys.stdin is not None and sys.stdin.isatty():
        note(prompt, end="")
    line = sys.stdin.readline() if sys.stdin is not None else ""
    return line.rstrip("\n") if line else None


class PlainChat:
    """A conversation with a pair; satisfies `commands.protocol.Chat`. Nothing runs while a message is typed."""

    def __init__(self, setup: Setup) -> None:
        self.state = ChatState(setup, note)
        self.editing: int | None = None
        self.failed = False  # a message had no reply
        self.ended_by: signal.Signals | None = None
        self._left = False
        self._is_reading = False
        self._interrupted_at = inf  # by Ctrl+C, since the last message
        self._shows_thinking = False
        self._line_open = False  # the reply has not ended its line
        self._told_of: Ready | None = None
        self._told_of_pull = ""

    async def run(self) -> int:
        """Until the input ends or the person leaves; the exit code is 1 when a message had no reply."""
        try:
            self._greet()
            await self._until(self._is_idle)
            while not self._left and (text := self._read()) is not None:
                await self._take(text)
                await self._until(self._is_idle)
                await self.state.saver.finish()
        finally:
            await self._save()
        return int(self.failed)

    def _greet(self) -> None:
        if _is_typed():
            note("localspec, line by line. /help lists the commands, ^d or /quit leaves.")
        if messages := self.state.conversation.messages:
            note(f"Going on with “{self.state.conversation.saved.title}”, {len(messages)} messages.")

    def _read(self) -> str | None:
        """What the person says next; "" for a line that Ctrl+C has cleared, None at the end."""
        self._is_reading, self._interrupted_at = True, inf
        try:
            return read_message() if self.ended_by is None else None
        except KeyboardInterrupt:
            if self.ended_by is None and not _is_typed():
                raise
            note("\n^d or /quit leaves.")
            return "" if self.ended_by is None else None
        finally:
            self._is_reading = False

    async def _until(self, done: Callable[[], bool]) -> None:
        """Take in and say what is reported, until something is done or the person does not wait for it."""
        while True:
            for report in self.state.engine.client.drain():
                await reports.receive(self, report)
            for news in self.state.downloads.take_news():
                await reports.receive_news(self, news)
            self._say_fresh()
            self._say_progress()
            working = self.state.engine.busy or self.state.downloads.progress
            if done() or self.ended_by is not None or (self._interrupted_at < inf and not working):
                return
            await asyncio.sleep(LOOK_SECONDS)

    def _is_idle(self) -> bool:
        engine = self.state.engine
        return not (engine.busy or engine.loading or self.state.downloads.progress)

    async def _save(self) -> None:
        """Keep what the running reply has said. What failed may be the output, so this prints little."""
        try:
            await self.state.save_running()
        except OSError as error:
            with suppress(OSError):
                note(f"error: the conversation could not be saved: {error}")
        await self.state.saver.finish()
        self.state.conversation.close()

    async def _take(self, text: str) -> None:
        if command := table.parse(text):
            await self.run_command(*command)
        elif text.strip():
            try:
                asked = await asyncio.to_thread(mentions.with_mentioned, text)
            except BadSetting as error:
                self.failed = True
                await self.remark(str(error), error.hint, "error")
                return
            self.state.remember_prompt(text)
            await self._ask(asked)

    # -- questions and replies -----------------------------------------------------------------------

    async def _ask(self, text: str) -> None:
        conversation, editing, question = self.state.conversation, self.editing, StoredMessage("user", text)
        self.editing = None
        if editing is None:
            await self._saved_or_told(conversation.add(question))
        else:
            conversation.change(editing, question)
        await self.ask_again()

    async def ask_again(self, beginning: str = "") -> None:
        beginning, self.state.prefill = beginning or self.state.prefill, ""
        try:
            self.state.engine.ask(self.state.conversation.turns(), beginning)
        except EngineDied as error:
            await self._step_back()
            await self.remark(str(error), error.hint, "error")

    async def end_reply(self, outcome: str, final: Reply | None = None) -> None:
        engine = self.state.engine
        reply, comparing = engine.reply, engine.comparing
        if reply is None:
            return
        self._say_fresh()
        if final is not None:
            reply.final = final.stats
        engine.end_reply()
        if not comparing:
            await self._keep(reply.message(outcome, final), reply.beginning)

    async def _keep(self, message: StoredMessage, beginning: str) -> None:
        self._end_line()
        if message.has_words_after(beginning):
            await self._saved_or_told(self.state.conversation.add(message))
            note(f"[{status.footer(message)}]")
        else:
            await self._step_back()
            note("[no reply; the message is taken back]")

    async def _step_back(self) -> None:
        """No word came: the conversation is as it was before the question."""
        self.failed = True
        conversation = self.state.conversation
        if conversation.reply is None and conversation.messages:
            await self._saved_or_told(conversation.take_back())

    async def _saved_or_told(self, saving: Awaitable[None]) -> None:
        try:
            await saving
        except OSError as error:
            await self.remark(f"the conversation could not be saved: {error}", "free some space", "error")

    def _say_fresh(self) -> None:
        reply = self.state.engine.reply
        if reply is None or self.state.engine.comparing:
            return
        for piece in reply.take_fresh():
            if piece.kind is Kind.ANSWER and piece.text:
                say(piece.text)
                self._line_open = not piece.text.endswith("\n")
            elif self._shows_thinking:
                note(piece.text, end="")

    def _end_line(self) -> None:
        if self._line_open:
            say("\n")
            self._line_open = False

    def _say_progress(self) -> None:
        """A line for every tenth of a pull."""
        if (pull := self.state.downloads.progress) is not None:
            tenth = f"{pull.name} {10 * pull.done_bytes // max(1, pull.total_bytes)}"
            if tenth != self._told_of_pull:
                self._told_of_pull = tenth
                note(f"{status.pull_status(pull)}; ^c stops it")

    def interrupt(self, *_: object) -> None:
        """Ctrl+C: stop the reply or the pull, come back from a wait, clear a line. Raises KeyboardInterrupt."""
        if self.ended_by is not None and not self._is_reading:
            return
        now = monotonic()
        engine, downloads = self.state.engine, self.state.downloads
        working = engine.busy or downloads.progress
        if self._is_reading or now - self._interrupted_at > PATIENCE_SECONDS or not (working or _is_typed()):
            raise KeyboardInterrupt
        self._interrupted_at = min(now, self._interrupted_at)
        if engine.busy:
            engine.stop()
        else:
            downloads.cancel()

    def end_on_signals(self, numbers: socket.socket) -> None:
        """Runs in a thread: end the program at a signal, in order where that does not take long."""
        while number := numbers.recv(1):
            if (signal_number := signal.Signals(number[0])) is signal.SIGINT:
                continue
            self.ended_by = signal_number
            deadline = monotonic() + PATIENCE_SECONDS
            while monotonic() < deadline:
                if self._is_reading:  # again and again: one that comes just before the read wakes nobody
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                sleep(LOOK_SECONDS)
            os._exit(128 + signal_number)

    # -- what the commands ask for -------------------------------------------------------------------

    async def run_command(self, name: str, argument: str = "") -> None:
        command = table.find(name)
        if command is None:
            note(table.unknown(name))
            return
        try:
            await command.run(self, argument)
        except LocalspecError as error:
            await self.remark(str(error), error.hint, "error")

    def notify(self, message: str, *, severity: Severity = "information") -> None:
        self._end_line()
        note(message)

    async def remark(self, what: str, hint: str = "", kind: Literal["note", "error"] = "note") -> None:
        self._end_line()
        note(f"error: {what}" if kind == "error" else what)
        if hint:
            note(f"hint: {hint}" if kind == "error" else hint)

    def refresh_state(self) -> None:
        ready = self.state.engine.ready
        if ready is not None and ready is not self._told_of:
            note(f"{ready.pair} is ready.")
        self._told_of = ready

    def show_inspector(self, shown: bool) -> None:
        reply = self.state.conversation.reply
        note(status.footer(reply) if reply else "There is no reply yet.")

    async def toggle_thinking(self) -> None:
        self._shows_thinking = not self._shows_thinking
        note(f"Reasoning is {'shown' if self._shows_thinking else 'hidden'} from now on.")

    def follow_end(self) -> None:
        pass

    def focus_prompt(self) -> None:
        pass

    def close_completion(self) -> bool:
        return False

    def begin_editing(self, index: int) -> None:
        self.editing = index
        note(f"What comes next replaces: {self.state.conversation.messages[index].content}")

    def end_editing(self) -> bool:
        was_editing, self.editing = self.editing is not None, None
        return was_editing

    async def choose_version(self, index: int, version: int) -> None:
        await self._saved_or_told(self.state.conversation.choose(index, version))
        say(self.state.conversation.messages[index].content + "\n")

    async def open_conversation(self, conversation: OpenConversation) -> None:
        self.state.conversation.close()
        self.state.conversation, self.editing = conversation, None
        note(f"“{conversation.saved.title}”, {len(conversation.messages)} messages.")
        await reports.go_on_with_pair(self)

    async def choose_pair(self) -> None:
        downloads = self.state.downloads
        downloads.rows = None
        downloads.refresh()
        await self._until(lambda: downloads.rows is not None)
        for row in self.state.downloads.rows or ():
            note(f"{row.name}: {'here' if row.on_disk else 'not here'}. {row.use}")
        note("/pair NAME loads one, /pull NAME fetches it.")

    async def choose_conversation(self) -> None:
        found = await asyncio.to_thread(listing, self.state.setup.conversations)
        for conversation in found.conversations:
            note(f"{conversation.name}: {conversation.title}")
        note("/load NAME opens one.")

    async def choose_theme(self) -> None:
        note("Lines have no colours.")

    async def choose_block(self, blocks: Sequence[str]) -> None:
        await self.copy(blocks[-1])

    async def show_help(self) -> None:
        for command in table.COMMANDS:
            note(f"/{command.usage}: {command.help}")
        note('""" begins and ends a message of several  @path sends a file along. ^c stops a reply.')

    def show_comparison(self, compared: Compared) -> None:
        note(compared.verdict)

    def set_theme(self, name: str) -> bool:
        return False

    async def copy(self, text: str) -> None:
        taken = await asyncio.to_thread(clipboard.copy, text)
        note(f"{len(text):,} characters copied." if taken else "There is no clipboard here.")

    async def quit(self) -> None:
        self._left = True


def _is_typed() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def chat(setup: Setup) -> int:
    """Run the chat until the person leaves or the input ends; the exit code."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    plain = PlainChat(setup)
    with ExitStack() as undoing:
        undoing.callback(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, plain.interrupt))
        if sys.platform != "win32":
            undoing.enter_context(_ending_on_signals(plain))
        try:
            code = asyncio.run(plain.run())
        finally:
            plain.state.close_engines()
    if plain.ended_by is not None:
        signal.signal(plain.ended_by, signal.SIG_DFL)
        signal.raise_signal(plain.ended_by)
    return code


@contextmanager
def _ending_on_signals(plain: PlainChat) -> Iterator[None]:
    """While the terminal may go away, or the program be asked to end."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, lambda *_: None) for number in numbers]  # the thread heeds them
    written_before = signal.set_wakeup_fd(theirs.fileno())
    threading.Thread(target=plain.end_on_signals, args=(ours,), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(written_before)
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        theirs.close()
