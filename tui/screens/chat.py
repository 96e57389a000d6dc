"""The chat: where everything comes together. Reports of the engine go in, widgets show what they mean."""

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message as TextualMessage
from textual.screen import Screen
from textual.widgets import OptionList, TextArea

from localspec.conversations import BrokenConversation, Message
from localspec.engine.messages import (
    Compared,
    Died,
    Failure,
    ProposalText,
    Pulled,
    Ready,
    Report,
    Stage,
    Stopped,
)
from localspec.errors import EngineDied
from localspec.events import Cycle, Finished, Notice, Piece, Prefill, Reply, Started

from .. import commands, readings
from ..dialogue import Dialogue
from ..live_turn import LiveTurn
from ..widgets.completion import Completion
from ..widgets.inspector import Inspector
from ..widgets.lines import KeyLine, StatusLine, TitleBar
from ..widgets.meter import Meter, split
from ..widgets.prompt import Prompt
from ..widgets.reply_view import ReplyView
from ..widgets.transcript import Earlier, Remark, Transcript, UserMessage

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
        self.thinking_unfolded = False
        self._reply: ReplyView | None = None

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

    @property
    def prompt(self) -> Prompt:
        return self.query_one(Prompt)

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    # -- what comes from the engine -----------------------------------------------------------------

    @on(Tick)
    async def tick(self) -> None:
        """Take in what was reported since the last tick, and draw once."""
        for report in self.app.conductor.engine.drain():
            await self.receive(report)
        turn = self.app.conductor.turn
        if turn is not None:
            await self._draw(turn)
        for news in self.app.librarian.pump():
            await self._tell_of_pull(news)
        now = readings.reading(self.app.conductor, self.app.conductor.last_turn)
        self.query_one(Meter).show(now)
        sentence = readings.status(self.app.conductor, self.app.librarian.progress)
        self.query_one(StatusLine).show(sentence, split(now))

    async def receive(self, report: Report) -> None:
        match report:
            case Started() | Prefill() | Cycle() | Piece() | ProposalText():
                self.app.conductor.absorb(report)
            case Stage():
                self.app.conductor.stage = report.text
            case Ready():
                await self._take_ready(report)
            case Finished():
                await self._take_reply(report.reply)
            case Compared():
                self._take_comparison(report)
            case Stopped():
                self.app.conductor.end_turn()
                self.notify("The comparison was stopped.")
            case Failure():
                await self._take_failure(report)
            case Died():
                await self._take_death(report)
            case Notice():
                await self.remark(report.text)
            case _:
                pass  # the hello; pairs and pulls come from the librarian's process

    async def _draw(self, turn: LiveTurn) -> None:
        fresh = turn.take_fresh()
        if fresh and self._reply is not None:
            # One frame for everything that the tick brought.
            with self.app.batch_update():
                await self._reply.grow(fresh, self.app.preferences.tokens, turn.rejected)
        self.query_one(Inspector).show(turn)
        self._show_context(turn.context_tokens)

    async def _take_ready(self, ready: Ready) -> None:
        self.app.conductor.took(ready)
        self.dialogue.journal.pair = ready.pair
        self.refresh_state()

    async def _take_reply(self, reply: Reply) -> None:
        turn = self.app.conductor.turn
        if turn is None or self.app.conductor.comparing:
            return
        await self._draw(turn)
        turn.final = reply.stats
        await self._end(turn.message(reply.finish_reason, reply))

    async def _take_failure(self, failure: Failure) -> None:
        if self.app.conductor.loading:
            self.app.conductor.took(failure)
            await self._tell_of_failed_load(failure)
        elif self.app.conductor.turn is not None:
            await self.remark(failure.what, failure.hint, "error")
            await self._end(self.app.conductor.turn.message("failed"))
        self.refresh_state()

    async def _tell_of_failed_load(self, failure: Failure) -> None:
        missing = failure.error == "PairNotOnDisk"
        here = "\nhere: /pull fetches it, ^o lists all pairs" if missing else ""
        await self.remark(failure.what, failure.hint + here, "error")
        if missing and self.app.setup.pull and self.app.librarian.progress is None:
            self.app.librarian.pull(self.app.conductor.pair_name)

    async def _take_death(self, death: Died) -> None:
        """What was written stays and is saved; the next message or /restart brings the engine back."""
        turn = self.app.conductor.turn
        self.app.conductor.took(death)
        hint = f"{death.hint}\nnothing is lost: /restart starts it again, and so does the next message"
        if turn is not None:
            await self._draw(turn)
            await self._end(turn.message("died"))
        await self.remark(death.what, hint.strip(), "error")
        self.refresh_state()

    def _take_comparison(self, compared: Compared) -> None:
        from .compare import CompareScreen

        self.app.conductor.end_comparison(compared)
        self.refresh_state()
        self.app.push_screen(CompareScreen(compared))

    async def _tell_of_pull(self, news: Pulled | Failure) -> None:
        match news:
            case Pulled(complete=True):
                await self.remark(f"{news.name} is on disk.", f"/pair {news.name} loads it.")
                await self._load_if_awaited(news.name)
            case Pulled():
                await self.remark(
                    f"Stopped fetching {news.name}.", "What came is kept; pulling again goes on from there."
                )
            case Failure():
                await self.remark(news.what, news.hint, "error")

    async def _load_if_awaited(self, name: str) -> None:
        """A pair that was asked for and was not here is loaded once it is."""
        conductor = self.app.conductor
        if conductor.pair_name == name and not conductor.ready and not conductor.loading:
            await self.run_command("pair", name)

    async def _end(self, message: Message) -> None:
        """Save the reply, then show it as finished. A reply without a word leaves no trace but its question."""
        reply, self._reply = self._reply, None
        comparing = self.app.conductor.comparing
        self.app.conductor.end_turn()
        self.app.tidy_up()
        if comparing or reply is None:
            self.refresh_state()
            return
        if message.content or message.reasoning:
            saved = await self.save(message)
            await reply.finish(message if saved else replace(message, outcome="unsaved"))
        else:
            await reply.remove()
            await self.take_back_question()
        self.refresh_state()

    async def save_reply(self) -> None:
        """Save what the running reply has said so far, as stopped; the program is about to end."""
        conductor = self.app.conductor
        for report in conductor.engine.drain():
            await self.receive(report)
        reply, self._reply = self._reply, None  # nobody else saves it from here on
        if reply is None or conductor.turn is None or conductor.comparing:
            return
        message = conductor.turn.message("cancelled")
        if message.content or message.reasoning:
            await self.save(message)

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
            if self.editing is not None:
                await self.cut(self.editing)
            await self.ask(event.text)

    async def run_command(self, name: str, argument: str = "") -> None:
        """Run a command of the table, whichever way it was asked for."""
        command = commands.find(name)
        if command is None:
            self.notify(commands.unknown(name), severity="warning")
            return
        try:
            await command.run(self, argument)
        except (EngineDied, BrokenConversation) as error:
            await self.remark(str(error), error.hint, "error")

    async def action_command(self, name: str) -> None:
        await self.run_command(name)

    async def ask(self, text: str) -> None:
        """Put a question, save it, and begin the reply."""
        message = Message("user", text)
        await self.save(message)
        await self.transcript.add(UserMessage(text))
        await self.begin_reply()

    async def begin_reply(self) -> None:
        """Generate a reply to the conversation as it stands."""
        try:
            self.app.conductor.ask(self.dialogue.turns())
        except EngineDied as error:
            await self.remark(str(error), error.hint, "error")
            return
        self._reply = ReplyView(unfolded=self.thinking_unfolded)
        await self.transcript.add(self._reply)
        self.transcript.anchor()
        self.refresh_state()

    async def save(self, message: Message) -> bool:
        """Write a message to the conversation's file; tells when that fails."""
        try:
            await self.dialogue.add(message)
        except OSError as error:
            await self.remark(
                f"the conversation could not be saved: {error}", "free some space, or /export it", "error"
            )
            return False
        return True

    async def cut(self, count: int) -> None:
        """Drop the messages after the first `count`, here and in the file."""
        self.editing = None
        try:
            await self.dialogue.keep(count)
        except OSError as error:
            await self.remark(f"the conversation could not be saved: {error}", kind="error")
        await self.transcript.keep(count)

    async def take_back_question(self) -> None:
        """A question that got no word of reply goes back into the prompt."""
        index = self.dialogue.last_question
        if index is None or index != len(self.dialogue.messages) - 1:
            return
        text = self.dialogue.messages[index].content
        await self.cut(index)
        if not self.prompt.text:
            self.prompt.replace_text(text)

    async def open_dialogue(self, dialogue: Dialogue) -> None:
        """Show another conversation."""
        self.dialogue = dialogue
        self.editing = None
        self.app.conductor.last_turn = None
        await self._show_dialogue()
        self.prompt.focus()
        self.refresh_state()

    async def _show_dialogue(self) -> None:
        await self.transcript.open(self.dialogue.messages)
        if self.dialogue.messages and self.dialogue.messages[-1].role == "user":
            await self.remark("The last message has no reply.", "^r asks for one.")

    async def remark(self, what: str, hint: str = "", kind: str = "note") -> None:
        """Say something in the conversation that is not part of it; before the reply that runs, if one does."""
        await self.transcript.add(Remark(what, hint, kind), before=self._reply)

    def refresh_state(self) -> None:
        """Title, prompt and inspector as they are now."""
        self.query_one(TitleBar).show(readings.title(self.app.conductor))
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

    def close_completion(self) -> None:
        self.query_one(Completion).close()
        self.prompt.completing = False

    def unfold_thinking(self, unfolded: bool) -> None:
        """Show or hide the reasoning of every reply, and of those to come."""
        self.thinking_unfolded = unfolded
        for reply in self.query(ReplyView):
            reply.unfold_thinking(unfolded)

    @on(Earlier.Asked)
    async def _show_earlier(self) -> None:
        await self.transcript.show_earlier(self.dialogue.messages)
