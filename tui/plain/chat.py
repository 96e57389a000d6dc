"""`localspec chat --plain`: questions and replies, and what else happens, as lines."""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Final, Literal

from localspec.conversations import StoredMessage, listing
from localspec.engine.messages import Compared, PairRow, Ready
from localspec.errors import BadSetting, EngineDied, LocalspecError
from localspec.events import Kind, Reply

from ..commands import reports, table
from ..commands.protocol import Severity
from ..state import clipboard, mentions
from ..state.chat import ChatState, Setup
from ..state.conversation import OpenConversation
from ..text import status
from . import lines

LOOK_SECONDS: Final = 0.05


class PlainChat:
    """A conversation with a pair; satisfies `commands.protocol.Chat`."""

    def __init__(self, setup: Setup) -> None:
        self.state = ChatState(setup, lines.note)
        self.editing: int | None = None
        self.failed = False  # a message had no reply
        self._left = False
        self._shows_thinking = False
        self._line_open = False  # the reply has not ended its line
        self._replaced: tuple[StoredMessage, ...] = ()  # by a changed question
        self._replied = asyncio.Event()
        self._told_of: Ready | None = None
        self._hanging_up: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """Until the input ends or the person leaves; the exit code is 1 when a message had no reply."""
        self._heed_signals()
        listening = asyncio.create_task(self._listen())
        await self._greet()
        try:
            while not self._left and (text := await asyncio.to_thread(lines.read_message)) is not None:
                await self._take(text)
        finally:
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening
            await self.state.saver.finish()
            self.state.conversation.close()
        return int(self.failed)

    async def _greet(self) -> None:
        if sys.stdin.isatty():
            lines.note("localspec, line by line. /help lists the commands, ^d or /quit leaves.")
        if messages := self.state.conversation.messages:
            lines.note(f"Going on with “{self.state.conversation.saved.title}”, {len(messages)} messages.")

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

    async def _listen(self) -> None:
        while True:
            for report in self.state.engine.client.drain():
                await reports.receive(self, report)
            for news in self.state.downloads.take_news():
                await reports.receive_news(self, news)
            self._say_fresh()
            await asyncio.sleep(LOOK_SECONDS)

    # -- questions and replies -----------------------------------------------------------------------

    async def _ask(self, text: str) -> None:
        conversation, editing = self.state.conversation, self.editing
        self.editing = None
        if editing is not None:
            self._replaced = tuple(conversation.messages[editing:])
            await self._saved_or_told(conversation.keep(editing))
        await self._saved_or_told(conversation.add(StoredMessage("user", text)))
        await self._reply()

    async def ask_again(self, beginning: str = "") -> None:
        await self._reply(beginning)

    async def _reply(self, beginning: str = "") -> None:
        beginning, self.state.prefill = beginning or self.state.prefill, ""
        self._replied.clear()
        try:
            self.state.engine.ask(self.state.conversation.turns(), beginning)
        except EngineDied as error:
            await self._step_back()
            await self.remark(str(error), error.hint, "error")
            return
        await self._replied.wait()

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
        self._replied.set()

    async def _keep(self, message: StoredMessage, beginning: str) -> None:
        self._end_line()
        if message.content.removeprefix(beginning).strip() or message.reasoning.strip():
            await self._saved_or_told(self.state.conversation.add(message))
            self._replaced = ()
            lines.note(f"[{status.footer(message)}]")
        else:
            await self._step_back()
            lines.note("[no reply; the message is taken back]")

    async def _step_back(self) -> None:
        """No word came: the conversation is as it was before the question."""
        self.failed = True
        conversation = self.state.conversation
        if conversation.reply is None and conversation.messages:
            await self._saved_or_told(conversation.keep(len(conversation.messages) - 1))
        for message in self._replaced:
            await self._saved_or_told(conversation.add(message))
        self._replaced = ()

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
                lines.say(piece.text)
                self._line_open = not piece.text.endswith("\n")
            elif self._shows_thinking:
                sys.stderr.write(piece.text)

    def _end_line(self) -> None:
        if self._line_open:
            lines.say("\n")
            self._line_open = False

    def _heed_signals(self) -> None:
        """Ctrl+C stops the reply, or tells how to leave; what was said is kept when the terminal goes away."""
        signal.signal(signal.SIGINT, lambda *_: self._interrupt())
        if sys.platform != "win32":
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGTERM, self._hang_up, signal.SIGTERM)
            loop.add_signal_handler(signal.SIGHUP, self._hang_up, signal.SIGHUP)

    def _interrupt(self) -> None:
        if self.state.engine.busy:
            self.state.engine.stop()
        else:
            lines.note("\n^d or /quit leaves.")

    def _hang_up(self, number: signal.Signals) -> None:
        self._hanging_up = asyncio.create_task(self._save_and_end(number))

    async def _save_and_end(self, number: signal.Signals) -> None:
        await self.end_reply("cancelled")
        await self.state.saver.finish()
        self.state.close_engines()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    # -- what the commands ask for -------------------------------------------------------------------

    async def run_command(self, name: str, argument: str = "") -> None:
        command = table.find(name)
        if command is None:
            lines.note(table.unknown(name))
            return
        try:
            await command.run(self, argument)
            while self.state.engine.comparing:
                await asyncio.sleep(LOOK_SECONDS)
        except LocalspecError as error:
            await self.remark(str(error), error.hint, "error")

    def notify(self, message: str, *, severity: Severity = "information") -> None:
        self._end_line()
        lines.note(message)

    async def remark(self, what: str, hint: str = "", kind: Literal["note", "error"] = "note") -> None:
        self._end_line()
        lines.note(f"error: {what}" if kind == "error" else what)
        if hint:
            lines.note(f"hint: {hint}" if kind == "error" else hint)

    def refresh_state(self) -> None:
        ready = self.state.engine.ready
        if ready is not None and ready is not self._told_of:
            lines.note(f"{ready.pair} is ready.")
        self._told_of = ready

    def show_inspector(self, shown: bool) -> None:
        reply = self.state.conversation.reply
        lines.note(status.footer(reply) if reply else "There is no reply yet.")

    async def toggle_thinking(self) -> None:
        self._shows_thinking = not self._shows_thinking
        lines.note(f"Reasoning is {'shown' if self._shows_thinking else 'hidden'} from now on.")

    def follow_end(self) -> None:
        pass

    def focus_prompt(self) -> None:
        pass

    def close_completion(self) -> bool:
        return False

    def begin_editing(self, index: int) -> None:
        self.editing = index
        lines.note(f"What comes next replaces: {self.state.conversation.messages[index].content}")

    def end_editing(self) -> bool:
        was_editing, self.editing = self.editing is not None, None
        return was_editing

    async def choose_version(self, index: int, version: int) -> None:
        await self._saved_or_told(self.state.conversation.choose(index, version))
        lines.say(self.state.conversation.messages[index].content + "\n")

    async def open_conversation(self, conversation: OpenConversation) -> None:
        self.state.conversation.close()
        self.state.conversation, self.editing = conversation, None
        lines.note(f"“{conversation.saved.title}”, {len(conversation.messages)} messages.")
        await reports.go_on_with_pair(self)

    async def choose_pair(self) -> None:
        downloads = self.state.downloads
        downloads.rows = None
        downloads.refresh()
        for row in await self._rows():
            lines.note(f"{row.name}: {'here' if row.on_disk else 'not here'}. {row.use}")
        lines.note("/pair NAME loads one, /pull NAME fetches it.")

    async def _rows(self) -> tuple[PairRow, ...]:
        while (rows := self.state.downloads.rows) is None:
            await asyncio.sleep(LOOK_SECONDS)
        return rows

    async def choose_conversation(self) -> None:
        found = await asyncio.to_thread(listing, self.state.setup.conversations)
        for conversation in found.conversations:
            lines.note(f"{conversation.name}: {conversation.title}")
        lines.note("/load NAME opens one.")

    async def choose_theme(self) -> None:
        lines.note("Lines have no colours.")

    async def choose_block(self, blocks: Sequence[str]) -> None:
        await self.copy(blocks[-1])

    async def show_help(self) -> None:
        for command in table.COMMANDS:
            lines.note(f"/{command.usage}: {command.help}")
        lines.note(
            '""" begins and ends a message of several lines. @path sends a file along. ^c stops a reply.'
        )

    def show_comparison(self, compared: Compared) -> None:
        lines.note(compared.verdict)

    def set_theme(self, name: str) -> bool:
        return False

    async def copy(self, text: str) -> None:
        taken = await asyncio.to_thread(clipboard.copy, text)
        lines.note(f"{len(text):,} characters copied." if taken else "There is no clipboard here.")

    async def quit(self) -> None:
        self._left = True


def chat(setup: Setup) -> int:
    """Run the chat until the person leaves or the input ends; the exit code."""

    async def run() -> int:
        plain = PlainChat(setup)
        try:
            return await plain.run()
        finally:
            plain.state.close_engines()

    return asyncio.run(run())
