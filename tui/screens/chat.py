"""The chat screen: its widgets, what is typed into it, and a tick that draws what the engine reported."""

from typing import TYPE_CHECKING, ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message as TextualMessage
from textual.screen import Screen
from textual.widgets import Markdown, OptionList, TextArea

from localspec.errors import LocalspecError

from .. import commands, readings, reports
from ..dialogue import Dialogue
from ..exchange import UNANSWERED, Exchange
from ..widgets.completion import Completion
from ..widgets.inspector import Inspector
from ..widgets.lines import KeyLine, StatusLine, TitleBar
from ..widgets.meter import Meter, split
from ..widgets.prompt import Prompt
from ..widgets.reply_view import Footer, ReplyView
from ..widgets.transcript import Earlier, Remark, Transcript
from .link import LinkScreen

if TYPE_CHECKING:
    from ..app import ChatApp

TICK_SECONDS: Final = 0.1


class Tick(TextualMessage):
    """Time to look at what the engine said."""

    def can_replace(self, message: TextualMessage) -> bool:
        return isinstance(message, Tick)


class ChatScreen(Screen[None]):
    """One conversation with one pair."""

    app: "ChatApp"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012 - Textual declares it so
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(command.key, command.action, command.help, priority=command.key != "escape")
        for command in commands.COMMANDS
        if command.key
    ]

    def __init__(self, dialogue: Dialogue) -> None:
        super().__init__()
        self.dialogue = dialogue
        self.editing: int | None = None  # index of the message that is being changed
        self._draft = ""  # what was in the prompt before that
        self.thinking_unfolded = False
        self.exchange = Exchange(self)

    def compose(self) -> ComposeResult:
        yield TitleBar()
        with Horizontal(id="middle"):
            yield Transcript()
            yield Inspector()
        yield Completion()
        yield Meter()
        yield StatusLine()
        with Vertical(id="entry"):
            yield Prompt(self.app.prompt_history)
        yield KeyLine()

    async def on_mount(self) -> None:
        self.set_class(self.app.preferences.inspector, "-inspecting")
        self.prompt.focus()
        await self._show_dialogue()
        self.refresh_state()
        # A callback that awaits would be cancelled half-way when the timer stops; a message is seen through.
        self.set_interval(TICK_SECONDS, lambda: self.post_message(Tick()))

    def on_unmount(self) -> None:
        self.dialogue.close()

    @property
    def prompt(self) -> Prompt:
        return self.query_one(Prompt)

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    # -- what is drawn -------------------------------------------------------------------------------

    @on(Tick)
    async def tick(self) -> None:
        """Take in what was reported since the last tick, and draw once."""
        for report in self.app.conductor.engine.drain():
            await reports.receive(self, report)
        turn = self.app.conductor.turn
        if turn is not None:
            await self.exchange.show(turn)
            self.query_one(Inspector).show(turn)
            self._show_context(turn.context_tokens)
        for news in self.app.librarian.pump():
            await reports.tell_of_pull(self, news)
        now = readings.reading(self.app.conductor, self.app.conductor.last_turn)
        self.query_one(Meter).show(now)
        sentence = readings.status(self.app.conductor, self.app.librarian.progress)
        self.query_one(StatusLine).show(sentence, split(now))

    async def save_reply(self) -> None:
        """Keep what the running reply has said so far; the program is about to end."""
        for report in self.app.conductor.engine.drain():
            await reports.receive(self, report)
        await self.exchange.leave()

    # -- what the person does ------------------------------------------------------------------------

    @on(Prompt.Sent)
    async def _sent(self, event: Prompt.Sent) -> None:
        if command := commands.parse(event.text):
            if commands.find(command[0]):
                self.prompt.clear()
            await self.run_command(*command)
        elif self.app.conductor.busy:
            self.notify("A reply is running. Esc stops it.")
        else:
            self.prompt.clear()
            self.app.remember_prompt(event.text)
            editing = self.editing
            self.end_editing()
            await self.exchange.ask(event.text, instead_of=editing)

    async def run_command(self, name: str, argument: str = "") -> None:
        """Run a command of the table, whichever way it was asked for."""
        command = commands.find(name)
        if command is None:
            self.notify(commands.unknown(name), severity="warning")
            return
        try:
            await command.run(self, argument)
        except LocalspecError as error:
            await self.remark(str(error), error.hint, "error")
            self.refresh_state()

    def action_command(self, name: str) -> None:
        """Run a command as one of the screen's messages: a key would else come into the middle of a tick."""
        self.call_later(self.run_command, name)

    async def open_dialogue(self, dialogue: Dialogue) -> None:
        """Show another conversation."""
        self.end_editing()
        self.dialogue.close()
        self.dialogue = dialogue
        self.app.conductor.last_turn = None
        await self._show_dialogue()
        await self.take_up_with_pair()
        self.prompt.focus()
        self.refresh_state()

    def begin_editing(self, index: int) -> None:
        """Put a message into the prompt to change it; what was being typed comes back afterwards."""
        if self.editing is None:
            self._draft = self.prompt.text
        self.editing = index
        self.prompt.replace_text(self.dialogue.messages[index].content)

    def end_editing(self) -> None:
        """The message stays as it is, or has been sent."""
        if self.editing is not None:
            self.editing = None
            self.prompt.replace_text(self._draft)

    async def _show_dialogue(self) -> None:
        await self.transcript.open(self.dialogue.messages)
        if lost := self.dialogue.lost_lines:
            await self.remark(
                f"{lost} line(s) of {self.dialogue.journal.path.name} make no sense and are left out."
            )
        if self.dialogue.messages and self.dialogue.messages[-1].role == "user":
            await self.remark(*UNANSWERED)

    async def take_up_with_pair(self) -> None:
        """From here on the conversation is with the pair that is loaded; said where it was another."""
        ready, journal = self.app.conductor.ready, self.dialogue.journal
        if ready is None:
            return
        if self.dialogue.messages and journal.pair not in ("", ready.pair):
            await self.remark(
                f"So far this conversation was with {journal.pair}; from here on {ready.pair} answers."
            )
        journal.pair = ready.pair

    async def remark(self, what: str, hint: str = "", kind: str = "note") -> None:
        """Say something in the conversation that is not part of it; before the reply that runs, if one does."""
        await self.transcript.add(Remark(what, hint, kind), before=self.exchange.reply)

    def refresh_state(self) -> None:
        """Title, prompt and inspector as they are now."""
        self.query_one(TitleBar).show(readings.title(self.app.conductor, stored=self.app.setup.stored))
        self.query_one(Inspector).show(self.app.conductor.last_turn)
        self.prompt.set_class(self.editing is not None, "-editing")
        self.prompt.border_title = (
            "changing the last message · esc leaves it" if self.editing is not None else ""
        )
        self._show_context(self.app.conductor.last_turn.context_tokens if self.app.conductor.last_turn else 0)

    def _show_context(self, tokens: int) -> None:
        ready = self.app.conductor.ready
        self.prompt.border_subtitle = f"context {tokens:,} / {ready.context_length:,}" if ready else ""

    # -- completion and clicks -----------------------------------------------------------------------

    @on(TextArea.Changed, "#prompt")
    def _typed(self) -> None:
        self.prompt.completing = self.query_one(Completion).show_for(self.prompt.text)

    @on(Prompt.Completing)
    async def _completing(self, event: Prompt.Completing) -> None:
        completion = self.query_one(Completion)
        match event.key:
            case "up":
                completion.action_cursor_up()
            case "down":
                completion.action_cursor_down()
            case "enter" if not self.prompt.completing:  # what was typed since has closed the list
                self.prompt.action_send()
            case _ if self.prompt.completing:
                await self._complete(completion.chosen, run=event.key == "enter")

    @on(OptionList.OptionSelected, "Completion")
    async def _clicked_completion(self, event: OptionList.OptionSelected) -> None:
        await self._complete(event.option.id, run=True)

    async def _complete(self, name: str | None, run: bool) -> None:
        command = commands.find(name or "")
        if command is None:
            return
        if (run and not command.argument) or (run and self.prompt.text == f"/{command.name}"):
            self.prompt.clear()
            await self.run_command(command.name)
        else:
            self.prompt.replace_text(f"/{command.name} ")

    @on(Markdown.LinkClicked)
    def _show_link(self, event: Markdown.LinkClicked) -> None:
        self.prompt.focus()  # the click took it
        self.app.push_screen(LinkScreen(event.href))

    def close_completion(self) -> None:
        self.query_one(Completion).close()
        self.prompt.completing = False

    def unfold_thinking(self, unfolded: bool) -> None:
        """Show or hide the reasoning of every reply, and of those to come."""
        self.thinking_unfolded = unfolded
        for reply in self.query(ReplyView):
            reply.unfold_thinking(unfolded)

    @on(Footer.VersionAsked)
    async def _show_version(self, event: Footer.VersionAsked) -> None:
        self.prompt.focus()  # the click took it
        if not self.app.conductor.busy:
            await self.exchange.choose(self.transcript.index_of(event.reply), event.version)

    @on(Earlier.Asked)
    async def _show_earlier(self) -> None:
        await self.transcript.show_earlier(self.dialogue.messages)
