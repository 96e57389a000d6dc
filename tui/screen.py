"""The chat screen: its widgets, its input, and a tick that draws the engine's reports."""

import asyncio
import os
from functools import partial
from time import monotonic
from typing import ClassVar, Final, Literal

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message as TextualMessage
from textual.screen import ModalScreen, Screen
from textual.widgets import Markdown, OptionList, TextArea

from localspec.chat.conversations import StoredMessage
from localspec.display import counted, for_terminal
from localspec.engine.messages import Compared
from localspec.errors import BadSetting

from .commands import table
from .commands.base import Chat, Refusal, receive_all
from .state import clipboard, mentions
from .state.chat import ChatState
from .text import status
from .widgets.lines import (
    SUGGESTIONS,
    Inspector,
    Line,
    key_line,
    meter_line,
    status_line,
    title_line,
    welcome,
)
from .widgets.prompt import Completion, PromptInput
from .widgets.reply import LEGEND, ReplyView
from .widgets.transcript import NoticeLine, Transcript, UserMessage, scroll_page, view_of

EXPLAINED: Final = ("cancelled", "failed", "died")  # the user knows why the reply ended
UNANSWERED: Final = ("The last message has no reply.", "/retry asks for one.")
TICK_SECONDS: Final = 0.1
INSPECTED_COLUMNS: Final = 100  # from here on the inspector stands beside the conversation
REMARK_SECONDS: Final = 8.0  # in the status line
TYPING_SECONDS: Final = 0.5  # between two drawings of a reply while the user types, as a key waits for each


class Tick(TextualMessage):
    """Time to read the reports of the engine."""

    def can_replace(self, message: TextualMessage) -> bool:
        return isinstance(message, Tick)


class ChatScreen(Screen[None], Chat):
    """One conversation with one pair."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(command.key, command.action, command.help, priority=command.key != "escape")
        for command in table.COMMANDS
        if command.key
    ]

    def __init__(self, state: ChatState) -> None:
        super().__init__()
        self.state = state
        self.completion = Completion()
        self.prompt = PromptInput(state.prompt_history, self.completion, self._completing, self._sent)
        self.transcript = Transcript()
        self._reply_view: ReplyView | None = None  # of the reply that runs
        self._unsent = ""  # what was in the prompt before that
        self._refused = ""  # the message that mentions no file; sent again, it is text
        self._typed_at = self._drawn_at = 0.0  # the last key, and the last drawing of a reply
        self._remark, self._remarked_at = Content(""), 0.0

    def compose(self) -> ComposeResult:
        yield Line("title", partial(title_line, self.state.engine, self.state.setup.stored))
        with Horizontal(id="middle"):
            with Vertical(id="conversation"):
                yield Line("welcome", partial(welcome, self.state.engine))
                yield self.transcript
            yield Inspector()
        yield self.completion
        yield Line("meter", partial(meter_line, self.state.engine))
        yield Line("status", self._status)
        with Vertical(id="entry"):
            yield self.prompt
        yield Line("keys", key_line)

    async def on_mount(self) -> None:
        if self.state.preferences.inspector and self.app.size.width < INSPECTED_COLUMNS:
            self.state.prefer(inspector=False)  # alone on the screen, it would hide the conversation
        self.set_class(self.state.preferences.inspector, "-inspecting")
        self.prompt.focus()
        await self.show_conversation()
        self.refresh_state()
        # A callback that awaits would be cancelled half-way when the timer stops; a message is seen through.
        self.set_interval(TICK_SECONDS, lambda: self.post_message(Tick()))

    @on(Tick)
    async def tick(self) -> None:
        """Handle the reports since the last tick, and draw once."""
        await receive_all(self)
        if monotonic() - self._typed_at >= TYPING_SECONDS:
            await self._draw()

    async def _draw(self) -> None:
        self._drawn_at = monotonic()
        if self.state.engine.reply is not None:
            await self.draw_reply()
            self.query_one(Inspector).show(self.state.engine.reply)
            self._show_context()
        self._show_lines()

    def _show_lines(self) -> None:
        engine = self.state.engine
        can_answer = engine.ready is not None or engine.loading
        self.set_class(can_answer and not self.state.conversation.messages, "-empty")
        for line in self.query(Line):
            line.show()

    def _status(self, width: int) -> Content:
        if self._remark and monotonic() - self._remarked_at < REMARK_SECONDS:
            return self._remark
        view, reply = self._reply_view or self.transcript.last_reply, self.state.engine.last_reply
        sentence = status.status(self.state.engine, self.state.downloads.progress)
        if self.editing is not None and self.has_class("-short"):
            sentence = self._editing_title  # the prompt has no border to say it
        if not sentence and reply is not None and self.has_class("-short"):
            sentence = status.gain(self.state.engine, reply)[0]  # no meter says it
        is_coloured = view is not None and view.shows_origins and reply is not None and reply.tally.drafted
        legend = LEGEND if is_coloured else Content("")
        return status_line(Content(for_terminal(sentence)), legend, width)

    def show_remark(self, remark: Content) -> None:
        """Show it in the status line for a while, in place of the one before."""
        self._remark, self._remarked_at = remark, monotonic()
        self._show_lines()

    async def notice(self, what: str, hint: str = "", kind: str = "note") -> None:
        """Show a notice in the conversation, above a running reply."""
        if self.app.screen is not self:  # a dialog hides the conversation
            self.notify(what, severity="error" if kind == "error" else "information")
        await self.transcript.add(
            NoticeLine(what, hint, kind), before=self._reply_view if self.state.engine.busy else None
        )

    def refresh_state(self) -> None:
        self._show_lines()
        self.query_one(Inspector).show(self.state.engine.last_reply)
        self.prompt.set_class(self.editing is not None, "-editing")
        self.prompt.border_title = self._editing_title
        self._show_context()

    @property
    def _editing_title(self) -> str:
        if self.editing is None:
            return ""
        questions = self.state.conversation.questions
        return f"changing message {questions.index(self.editing) + 1} of {len(questions)} · esc leaves it"

    def _show_context(self) -> None:
        ready, reply = self.state.engine.ready, self.state.engine.last_reply
        used = f"{reply.context_tokens if reply else 0:,} / "
        if reply is None and self.state.conversation.messages:
            used = ""  # nobody has counted the tokens of these messages
        self.prompt.border_subtitle = f"context {used}{ready.context_length:,}" if ready else ""

    async def show_conversation(self) -> None:
        conversation = self.state.conversation
        await self.transcript.open(conversation.messages)
        if lost := conversation.lost_lines:
            name = conversation.journal.path.name
            await self.notice(f"{name} is damaged: {counted(lost, 'line')} left out.")
        if conversation.messages and conversation.messages[-1].role == "user":
            await self.notice(*UNANSWERED)

    async def _sent(self, message: str) -> None:
        if command := table.parse(message):
            self.prompt.clear()
            if not await table.run(self, *command) and not self.prompt.text:
                self.prompt.replace_text(message)
                self.prompt.select_all()  # the next key corrects it or replaces it
        elif self.state.engine.busy:
            self.notify(table.BUSY)
        else:
            try:
                text = await asyncio.to_thread(mentions.with_mentioned, message, message == self._refused)
            except BadSetting as error:
                self._refused = message
                self.notify(f"{error}; {error.hint}.", severity="warning")
                return
            self.prompt.clear()
            self.state.remember_prompt(message)
            editing = self.editing
            self.end_editing()
            await self.is_saved(self.state.conversation.ask(text, editing))
            if editing is not None:
                await self.transcript.keep(editing)
            await self.transcript.add(UserMessage(text))
            await self.ask_again()

    def action_command(self, name: str) -> None:
        """Run a command as one of the screen's messages: a key would else come into the middle of a tick."""
        self.call_later(table.run, self, name)

    async def ask_again(self, beginning: str = "") -> None:
        conversation, self._remark = self.state.conversation, Content("")
        await self.transcript.keep(len(conversation.messages) - (conversation.reply is not None))
        await super().ask_again(beginning)
        if self.state.engine.busy:
            if (before := self.transcript.last_reply) is not None:
                await before.show_origins(False)
            self._reply_view = ReplyView(unfolded=self.transcript.thinking_unfolded)
            await self.transcript.add(self._reply_view)
            self.transcript.anchor()
        self.refresh_state()

    async def choose_version(self, index: int, version: int) -> None:
        conversation = self.state.conversation
        await self.is_saved(conversation.choose(index, version))
        self.state.engine.show(conversation.reply)
        self.refresh_state()
        await self.transcript.replace_message(index, view_of(conversation.messages[index]))

    async def draw_reply(self) -> None:
        reply = self.state.engine.reply
        fresh = reply.take_fresh() if reply is not None else []
        if reply is not None and self._reply_view is not None and fresh:
            # One frame for everything that the tick brought.
            with self.app.batch_update():
                await self._reply_view.grow(fresh, self.state.preferences.colours, reply.rejected)

    async def show_finished(self, message: StoredMessage) -> None:
        view, self._reply_view = self._reply_view, None
        assert view is not None
        await view.finish(message)
        if len(message.versions) == 2:
            self.notify("The earlier reply is kept: f5 shows it.")

    async def step_back(self, outcome: str) -> None:
        """Restore the earlier messages, unless the prompt holds another text by now."""
        if self._reply_view is not None:
            await self._reply_view.remove()
            self._reply_view = None
        conversation, back = self.state.conversation, "The message is back in the prompt."
        self.state.engine.show(conversation.reply)
        if conversation.reply is not None:
            await self.transcript.add(view_of(conversation.reply))
            back = "The earlier one is back."
        elif not self.prompt.text.strip():
            changed = conversation.is_changed
            index, question = await self._take_back()
            if changed:
                self.begin_editing(index)
            self.prompt.replace_text(question.content)
        elif conversation.is_changed:
            await self._take_back()
            what = "The changed message has no reply; the old one is back."
            await self.notice(what, "Up brings the change.")
            return
        else:
            await self.notice(*UNANSWERED)
            return
        if outcome not in EXPLAINED:
            await self.notice("The reply ended without a word.", back)

    async def _take_back(self) -> tuple[int, StoredMessage]:
        """Drop the last question and restore the messages that it replaced; returns it with its index."""
        conversation = self.state.conversation
        index, question = len(conversation.messages) - 1, conversation.messages[-1]
        await self.is_saved(conversation.take_back())
        await self.transcript.keep(index)
        for message in conversation.messages[index:]:
            await self.transcript.add(view_of(message))
        return index, question

    def begin_editing(self, index: int) -> None:
        if self.editing is None:
            self._unsent = self.prompt.text
        self.editing = index
        self.prompt.replace_text(self.state.conversation.messages[index].content)
        self.prompt.focus()
        self.refresh_state()

    def end_editing(self) -> bool:
        if was_editing := super().end_editing():
            self.prompt.replace_text(self._unsent)
            self.refresh_state()
        return was_editing

    async def escape(self) -> None:
        if self.completion.is_open:
            self.completion.remove_class("-open")
        elif self.end_editing():
            pass
        elif self.state.engine.busy:
            self.state.engine.stop()
        elif self.has_class("-inspecting"):
            await table.run(self, "stats")
        else:
            self.prompt.focus()
            self.transcript.anchor()

    async def toggle_thinking(self) -> None:
        self.transcript.toggle_thinking()

    async def show_origins(self, shown: bool) -> None:
        if (view := self.transcript.last_reply) is not None:
            await view.show_origins(shown)

    def show_inspector(self, shown: bool) -> None:
        self.set_class(shown, "-inspecting")
        self.call_after_refresh(self.refresh_state)

    async def copy(self, text: str) -> None:
        self.app.copy_to_clipboard(text)
        taken = await asyncio.to_thread(clipboard.copy, text)
        unsure = "" if taken else ", if your terminal allows it (OSC 52)"
        self.notify(f"{counted(len(text), 'character')} copied{unsure}.")

    async def quit(self) -> None:
        await self.app.action_quit()

    # -- dialogs; those that load slowly are imported when they are opened ---------------------------

    async def choose_pair(self) -> None:
        from .lists import PairsDialog

        self.state.downloads.refresh()
        await self._choose("pair", PairsDialog(self.state.downloads))

    async def choose_conversation(self) -> None:
        from .lists import ConversationsDialog

        await self._choose("load", ConversationsDialog(self.state))

    async def theme(self, name: str) -> None:
        from .dialogs import ThemeDialog

        if name in self.app.available_themes:
            self.app.theme = name
            self.state.prefer(theme=name)
        elif name:
            raise Refusal(f"There is no theme {name}.")
        else:
            await self._choose("theme", ThemeDialog(), otherwise=self.app.theme)

    async def offer_pull(self, name: str, question: str) -> None:
        if self.prompt.text:  # the keys of a person who types are no answers
            return
        from .dialogs import ConfirmDialog

        async def run(agreed: bool | None) -> None:
            if agreed:
                await table.run(self, "pull", name)

        await self.app.push_screen(ConfirmDialog(question), run)

    async def _choose(self, command: str, dialog: ModalScreen[str], otherwise: str = "") -> None:
        async def run(answer: str | None) -> None:
            if argument := answer or otherwise:
                await table.run(self, command, argument)

        await self.app.push_screen(dialog, run)

    async def show_help(self) -> None:
        from .dialogs import HelpDialog, page_folder

        await self.app.push_screen(HelpDialog(page_folder(self.state.setup.folder)))

    async def show_race(self) -> None:
        from .dialogs import RaceDialog

        await self.app.push_screen(RaceDialog(self.state.engine, partial(table.run, self, "share")))

    async def show_comparison(self, compared: Compared) -> None:
        if self.app.screen is self:  # the race was left
            await self.notice(compared.verdict)

    def action_suggest(self, number: int) -> None:
        self.prompt.replace_text(SUGGESTIONS[number])
        self.prompt.focus()

    def action_scroll_conversation(self, by: Literal["page", "message"], direction: Literal[-1, 1]) -> None:
        """The inspector scrolls before the conversation goes up, and after it has gone down."""
        inspector, conversation = self.query_one(Inspector), self.transcript
        is_next = (
            inspector.scroll_y > 0 if direction < 0 else conversation.scroll_y >= conversation.max_scroll_y
        )
        if by == "page" and inspector.display and (is_next or not conversation.region):
            scroll_page(inspector, direction)
        else:
            conversation.scroll_from_prompt(by, direction)

    @on(TextArea.Changed, "#prompt")
    def _typed(self) -> None:
        self._typed_at = monotonic()
        self.completion.show_for(self.prompt.text, self.prompt.before_cursor)
        if self._typed_at - self._drawn_at >= TYPING_SECONDS:
            self.call_after_refresh(self._draw)  # right behind a key: the next one comes later

    async def _completing(self, key: str) -> None:
        self._typed()  # keys may overtake what TextArea tells
        match key:
            case "up":
                self.completion.action_cursor_up()
            case "down":
                self.completion.action_cursor_down()
            case "enter" if not self.completion.is_open:  # what was typed since has closed the list
                self.prompt.send()
            case "tab" if not self.completion.is_open:
                self._complete_path()
            case _ if self.completion.is_open:
                await self._complete(self.completion.chosen, run=key == "enter")

    def _complete_path(self) -> None:
        """Complete the path that a command takes as far as only one way leads, else list the ways."""
        if (typed := table.typed_path(self.prompt.before_cursor)) is not None:
            found = mentions.paths(typed)
            common = os.path.commonprefix(found)  # noqa: RUF071 - names part within a word
            if len(common) > len(typed):
                self.prompt.complete(typed, common)
            else:
                self.completion.offer_paths(found)

    @on(OptionList.OptionSelected, "Completion")
    async def _clicked_completion(self, event: OptionList.OptionSelected) -> None:
        await self._complete(str(event.option.id), run=True)

    async def _complete(self, name: str, run: bool) -> None:
        before, command = self.prompt.before_cursor, table.find(name)
        if (typed := table.typed_path(before)) is not None:
            self.prompt.complete(typed, name)
        elif name.startswith("@") and run and before.endswith(name):  # it stands there whole
            self.prompt.send()
        elif name.startswith("@"):
            self.prompt.complete(before[before.rindex("@") :], name + " " * (name[-1] != "/"))
            self._typed()  # a key may come before TextArea tells
        elif command and run and (not command.argument or self.prompt.text[1:] in (name, *command.aliases)):
            self.prompt.clear()
            await table.run(self, name)
        else:
            self.prompt.replace_text(f"/{name} ")

    @on(Markdown.LinkClicked)
    def _show_link(self, event: Markdown.LinkClicked) -> None:
        from .dialogs import LinkDialog

        self.prompt.focus()  # the click took it
        self.app.push_screen(LinkDialog(event.href))
