"""The chat screen: its widgets, its input, and a tick that draws the engine's reports."""

import asyncio
from functools import partial
from time import monotonic
from typing import Any, ClassVar, Final, Literal

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message as TextualMessage
from textual.screen import ModalScreen, Screen
from textual.widgets import Markdown, OptionList, TextArea

from localspec.conversations.conversations import StoredMessage
from localspec.display import counted, for_terminal
from localspec.engine.messages import Compared
from localspec.errors import BadSetting

from . import status
from .commands import table
from .commands.base import Chat, receive_all
from .state import clipboard
from .state.chat import ChatState
from .widgets.lines import Inspector, Line, key_line, meter_line, title_line, welcome
from .widgets.prompt import Completion, PromptInput
from .widgets.reply import LEGEND, ReplyView
from .widgets.transcript import NoticeLine, Transcript, UserMessage, view_of

EXPLAINED: Final = ("cancelled", "failed", "died")  # outcomes whose reason the user knows already
UNANSWERED: Final = ("The last message has no reply.", "/retry asks for one.", "unanswered")
INSPECTED_COLUMNS: Final = 100  # smallest width at which the inspector fits beside the conversation
TYPING_SECONDS: Final = 0.5  # time between two drawings while the user types, because drawing delays keys


class Tick(TextualMessage):
    def can_replace(self, message: TextualMessage) -> bool:
        return isinstance(message, Tick)


class ChatScreen(Screen[None], Chat):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(command.key, command.action, command.help, priority=command.key != "escape")
        for command in table.COMMANDS
        if command.key
    ]

    def __init__(self, state: ChatState) -> None:
        super().__init__()
        self.state = state
        self.completion = Completion()
        run_command = partial(table.run, self)
        self.prompt = PromptInput(state.prompt_history, self.completion, run_command, self._sent)
        self.transcript = Transcript()
        self._reply_view: ReplyView | None = None  # the view of the running reply
        self._unsent = ""  # the text of the prompt before the user began to edit a message
        self._has_asked = False  # whether a message was sent in the open conversation
        self._refused = ""  # a message refused for an unknown @name; it is accepted if it is sent again
        self._typed_at = self._drawn_at = 0.0
        self._notice, self._remarked_at = Content(""), 0.0

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
            self.state.prefer(inspector=False)  # a narrow screen has no room for the inspector
        self.set_class(self.state.preferences.inspector, "-inspecting")
        self.prompt.focus()
        await self.show_conversation()
        self.refresh_state()
        # The timer only posts a message: if it called `tick` itself, stopping the timer could interrupt `tick`.
        self.set_interval(0.1, lambda: self.post_message(Tick()))

    @on(Tick)
    async def tick(self) -> None:
        await receive_all(self)
        now = monotonic()
        is_due = self.state.engine.reply is None or now - self._drawn_at >= 0.2
        if is_due and now - self._typed_at >= TYPING_SECONDS:
            await self._draw()

    async def _draw(self) -> None:
        self._drawn_at = monotonic()
        with self.app.batch_update():
            if self.state.engine.reply is not None:
                await self.draw_reply()
                self.query_one(Inspector).show(self.state.engine.reply)
                self._show_context()
            self._show_lines()

    def _show_lines(self) -> None:
        engine = self.state.engine
        can_answer = engine.ready is not None or engine.loading
        is_new = not (self._has_asked or self.state.conversation.messages)
        self.set_class(can_answer and is_new, "-empty")
        for line in self.query(Line):
            line.show()

    def _status(self, width: int) -> Content:
        is_outdated = self._notice.plain == table.BUSY and not self.state.engine.busy
        if self._notice and not is_outdated and monotonic() - self._remarked_at < 8.0:
            return self._notice
        view, reply = self._reply_view or self.transcript.last_reply, self.state.engine.last_reply
        sentence = status.status(self.state.engine, self.state.downloads.progress)
        is_coloured = (
            view is not None and view.shows_origins and reply is not None and reply.tally.sums.drafted
        )
        line, legend = Content(for_terminal(sentence)), LEGEND if is_coloured else Content("")
        gap = width - line.cell_length - legend.cell_length
        return line + " " * gap + legend if gap >= 2 else line

    def show_notice(self, notice: Content) -> None:
        self._notice, self._remarked_at = notice, monotonic()
        self._show_lines()

    async def notice(self, what: str, hint: str = "", kind: str = "note") -> None:
        """Show a notice in the conversation, above the running reply if one runs."""
        if self.app.screen is not self:  # a dialog hides the notices of the conversation
            self.notify(what, severity="error" if kind == "error" else "information")
        before = self._reply_view if self.state.engine.busy else None
        await self.transcript.add(NoticeLine(what, hint, kind), before)

    def refresh_state(self) -> None:
        self._show_lines()
        self.query_one(Inspector).show(self.state.engine.last_reply)
        self.prompt.set_class(self.editing is not None, "-editing")
        # The cursor does not blink while a reply runs, because each blink redraws the screen.
        self.prompt.cursor_blink = not (self.state.engine.busy or self.app.animation_level == "none")
        self.prompt.border_title = ""
        if self.editing is not None:
            questions = self.state.conversation.questions
            number = questions.index(self.editing) + 1
            self.prompt.border_title = f"changing message {number} of {len(questions)} · esc cancels"
        self._show_context()

    def _show_context(self) -> None:
        ready, reply = self.state.engine.ready, self.state.engine.last_reply
        used = f"{reply.context_tokens if reply else 0:,} / "
        if reply is None and self.state.conversation.messages:
            used = ""  # the token count of an opened conversation is unknown until its next reply
        self.prompt.border_subtitle = f"context {used}{ready.context_length:,}" if ready else ""

    async def show_conversation(self) -> None:
        conversation, self._has_asked = self.state.conversation, False
        await self.transcript.open(conversation.messages)
        if conversation.messages and conversation.messages[-1].role == "user":
            await self.notice(*UNANSWERED)

    async def _sent(self, message: str) -> None:
        if command := table.parse(message):
            self.prompt.clear()
            if not await table.run(self, *command) and not self.prompt.text:
                self.prompt.replace_text(message)
                self.prompt.select_all()  # the next key then replaces the failed command
        elif self.state.engine.busy:
            self.notify(table.BUSY)
        else:
            try:
                words = message == self._refused
                asked = await asyncio.to_thread(self.state.asked, message, words, self.editing)
            except BadSetting as error:
                self._refused = message
                self.notify(f"{error}; {error.hint}.", severity="warning")
                return
            self.prompt.clear()
            self.state.remember_prompt(message)
            editing = self.editing
            self.end_editing()
            self.state.images = ()
            await self.is_saved(self.state.conversation.ask(asked, editing))
            if editing is not None:
                await self.transcript.keep(editing)
            await self.transcript.add(UserMessage(asked.shown))
            await self.ask_again()

    def action_command(self, name: str) -> None:
        """Run a command after the current message, because no command may run in the middle of a `tick`."""
        self.call_later(table.run, self, name)

    async def ask_again(self, beginning: str = "") -> None:
        conversation, self._notice, self._has_asked = self.state.conversation, Content(""), True
        await self.transcript.keep(len(conversation.messages) - (conversation.reply is not None))
        await self.transcript.query(".-unanswered").remove()
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
            await self._reply_view.grow(fresh, self.state.preferences.colours, reply.rejected)

    async def show_finished(self, message: StoredMessage) -> None:
        view, self._reply_view = self._reply_view, None
        assert view is not None
        await view.finish(message)

    async def step_back(self, outcome: str) -> None:
        """Remove a reply without text, and put its question back into the prompt if the prompt is empty."""
        if self._reply_view is not None:
            await self._reply_view.remove()
            self._reply_view = None
        conversation, back = self.state.conversation, "The message is back in the prompt."
        self.state.engine.show(conversation.reply)
        if conversation.reply is not None:
            await self.transcript.add(view_of(conversation.reply))
            back = "The earlier reply is back."
        elif not self.prompt.text.strip():
            changed = conversation.is_changed
            index, question = await self._take_back()
            if changed:
                self.begin_editing(index)
            self.prompt.replace_text(question.content)
            self.state.images = question.images
        elif conversation.is_changed:
            await self._take_back()
            what = "The changed message has no reply, so the old message is back."
            await self.notice(what, "The Up key brings the changed text back.")
            return
        else:
            await self.notice(*UNANSWERED)
            return
        if outcome not in EXPLAINED:
            await self.notice("The reply ended without a word.", back)

    async def _take_back(self) -> tuple[int, StoredMessage]:
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

    # -- dialogs: each method imports its dialog when called, because the modules load slowly

    async def choose_pair(self) -> None:
        from .lists import PairsDialog

        self.state.downloads.refresh()
        await self._choose("pair", PairsDialog(self.state.downloads))

    async def choose_conversation(self) -> None:
        from .lists import ConversationsDialog

        await self._choose("load", ConversationsDialog(self.state))

    async def theme(self, name: str) -> None:
        if name in self.app.available_themes:
            self.app.theme = name
            self.state.prefer(theme=name)
        else:
            known = ", ".join(sorted(self.app.available_themes))
            await self.notice(f"Themes: {known}.", "/theme NAME uses one.")

    async def suggest_pull(self, name: str, question: str) -> None:
        if self.prompt.text:  # open no dialog, because it would take the keys of a user who is typing
            return
        from .dialogs import ConfirmDialog

        await self._choose("pull", ConfirmDialog(question), name)

    async def _choose(self, command: str, dialog: ModalScreen[Any], argument: str = "") -> None:
        async def run(answer: Any) -> None:  # noqa: ANN401 - the result of a dialog
            if answer:
                await table.run(self, command, argument or answer)

        await self.app.push_screen(dialog, run)

    async def show_help(self) -> None:
        from .dialogs import HelpDialog, page_folder

        await self.app.push_screen(HelpDialog(page_folder(self.state.setup.folder)))

    async def show_race(self) -> None:
        from .dialogs import RaceDialog

        await self.app.push_screen(RaceDialog(self.state.engine))

    async def show_comparison(self, compared: Compared | None) -> None:
        if compared is not None and self.app.screen is self:  # the user has left the dialog of the race
            await self.notice(compared.verdict)

    def action_scroll_conversation(self, direction: Literal[-1, 1]) -> None:
        """Scroll the inspector or the conversation by a page."""
        inspector, conversation = self.query_one(Inspector), self.transcript
        is_next = (
            inspector.scroll_y > 0 if direction < 0 else conversation.scroll_y >= conversation.max_scroll_y
        )
        is_inspected = inspector.display and (is_next or not conversation.region)
        view = inspector if is_inspected else conversation
        view.scroll_relative(y=direction * max(1, view.size.height - 2), animate=False, immediate=True)

    @on(TextArea.Changed, "#prompt")
    def _typed(self) -> None:
        self._typed_at = monotonic()
        self.prompt.suggest_completions()
        if self.editing is None:
            typed, open_one = self.prompt.certain, self.state.conversation
            self.state.engine.read_ahead(typed, open_one.turns(typed), open_one.stored_name)
        if self._typed_at - self._drawn_at >= TYPING_SECONDS:
            self.call_after_refresh(self._draw)  # draw now, because a tick does not draw while the user types

    @on(OptionList.OptionSelected, "Completion")
    async def _clicked_completion(self, event: OptionList.OptionSelected) -> None:
        await self.prompt.complete_with(str(event.option.id), run=True)

    @on(Markdown.LinkClicked)
    def _show_link(self, event: Markdown.LinkClicked) -> None:
        self.prompt.focus()  # the click took the focus from the prompt
        self.notify(event.href)
