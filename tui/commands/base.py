"""The base of both chats, the commands about pairs, and the reactions to the engine's reports."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, Literal

from localspec import events
from localspec.chat.conversations import StoredMessage
from localspec.display import size_text
from localspec.engine import messages
from localspec.errors import BadSetting, EngineDied, LocalspecError, NotOnDisk
from localspec.events import Reply
from localspec.models.registry import DEMO

from ..state.chat import ChatState
from ..state.conversation import OpenConversation

ASKED_BYTES: Final = 1e9  # a download from here on is asked about
Severity = Literal["information", "warning", "error"]


class Refusal(Exception):
    """Why a command does nothing."""


class Chat:
    """A conversation with a pair; a subclass shows it."""

    state: ChatState
    editing: int | None = None  # index of the message that is being changed

    # In the corner for a moment, or in the conversation without being part of it.
    def notify(self, message: str, *, severity: Severity = "information") -> None: ...
    async def notice(self, what: str, hint: str = "", kind: Literal["note", "error"] = "note") -> None: ...

    def refresh_state(self) -> None: ...  # title, prompt and inspector, as the state is now
    def show_inspector(self, shown: bool) -> None: ...
    async def toggle_thinking(self) -> None: ...  # the reasoning of every reply, and of those to come
    async def show_origins(self, shown: bool) -> None: ...  # who wrote the words of the last reply

    def begin_editing(self, index: int) -> None: ...  # that message goes into the prompt
    async def choose_version(self, index: int, version: int) -> None: ...  # of the reply at that index

    async def show_conversation(self) -> None: ...
    async def draw_reply(self) -> None: ...  # the new text of the running reply
    async def show_finished(self, message: StoredMessage) -> None: ...  # the reply that ran
    async def step_back(self, outcome: str) -> None: ...  # no text came: restore the earlier messages

    # Dialogs; an answer runs the command that asked, with it as the argument.
    async def choose_pair(self) -> None: ...
    async def choose_conversation(self) -> None: ...
    async def theme(self, name: str) -> None: ...  # without a name, let the user choose one
    async def offer_pull(self, name: str, question: str) -> None: ...  # a second /pull of that pair is a yes
    async def show_help(self) -> None: ...
    async def show_race(self) -> None: ...  # of the comparison that runs
    async def show_comparison(self, compared: messages.Compared) -> None: ...
    async def copy(self, text: str) -> None: ...  # into the clipboard, and tells of it
    async def quit(self) -> None: ...

    def end_editing(self) -> bool:
        """Whether a message was being changed."""
        was_editing, self.editing = self.editing is not None, None
        return was_editing

    async def escape(self) -> None:
        """Leave what is nearest: the completion list, an edit, the view."""
        self.end_editing()

    async def attempt(self, command: "Run", argument: str = "") -> bool:
        """Run a command, or show its error; whether it ran."""
        try:
            await command(self, argument)
        except Refusal as refusal:
            self.notify(str(refusal), severity="warning")
        except BadSetting as error:
            self.notify(f"{error}; {error.hint}.", severity="warning")
        except LocalspecError as error:
            await self.notice(str(error), error.hint, "error")
            self.refresh_state()
        else:
            return True
        return False

    async def ask_again(self, beginning: str = "") -> None:
        """Generate a reply to the last question, or from `beginning` on; an earlier one stays as a version."""
        beginning, self.state.prefill = beginning or self.state.prefill, ""
        try:
            self.state.engine.ask(self.state.conversation.turns(), beginning)
        except EngineDied as error:
            await self.step_back("died")
            await self.notice(str(error), error.hint, "error")

    async def end_reply(self, outcome: str, final: Reply | None = None) -> None:
        """The reply is over, with a Reply unless the engine failed: save it, then show it as finished."""
        conversation, reply = self.state.conversation, self.state.engine.reply
        is_message = reply is not None and not self.state.engine.comparing
        await self.draw_reply()
        self.state.engine.end_reply(final)
        if reply is None or not is_message:
            return
        message = reply.message(outcome, final)
        if message.numbers and self.state.engine.pair_name == DEMO:  # the speed of a toy says nothing
            message = replace(message, numbers=replace(message.numbers, speedup=None))
        if message.has_words_after(reply.beginning):
            keeps_course = conversation.drops_replies and conversation.stored
            saved = await self.is_saved(conversation.add(message))
            held = conversation.messages[-1]
            await self.show_finished(held if saved else replace(held, outcome="unsaved"))
            if keeps_course and saved:
                self.notify("The earlier course is kept: /load lists it.")
        else:
            await self.step_back(outcome)
        self.refresh_state()

    async def is_saved(self, saving: Awaitable[None]) -> bool:
        """Whether the file has the change; a notice reports a failure, and the first success after one."""
        conversation = self.state.conversation
        was_behind = conversation.is_behind
        try:
            await saving
        except OSError as error:
            what = f"the conversation could not be saved: {error}"
            await self.notice(what, "free some space, or /export it", "error")
            return False
        if was_behind and not conversation.is_behind:
            await self.notice("The whole conversation is saved again.")
        return True

    async def open_conversation(self, conversation: OpenConversation) -> None:
        self.end_editing()
        self.state.conversation.journal.close()
        self.state.conversation = conversation
        self.state.engine.last_reply = self.state.engine.compared = None
        await self.show_conversation()
        await self.continue_with_pair()
        self.refresh_state()

    async def continue_with_pair(self) -> None:
        """The loaded pair continues the conversation; a notice says so where another one began it."""
        ready, conversation = self.state.engine.ready, self.state.conversation
        if ready is None:
            return
        journal = conversation.journal
        before, files = journal.pair, journal.files
        journal.pair, journal.files = ready.pair, self.state.engine.files
        if conversation.messages and before not in ("", ready.pair):
            what = f"So far this conversation was with {before}; from here on {ready.pair} answers."
            await self.notice(what, f"/pair {files[0]} loads the earlier one." if files else "")


Run = Callable[[Chat, str], Awaitable[None]]  # a command; it is given whatever followed the name


async def pair(chat: Chat, argument: str) -> None:
    """Load a pair that is on disk, or a GGUF file by its path; the loaded one is unloaded only then."""
    if not argument:
        await chat.choose_pair()
        return
    engine = chat.state.engine
    try:
        await asyncio.to_thread(chat.state.downloads.find, argument)
    except NotOnDisk as error:
        await offer_pull(chat, argument, str(error))
        return
    engine.load(replace(engine.load_request, pair=argument, target=None, draft=None))
    chat.refresh_state()


async def pull(chat: Chat, argument: str) -> None:
    engine, downloads = chat.state.engine, chat.state.downloads
    name = argument or engine.wanted or engine.pair_name
    if not name:
        raise Refusal("Which pair? /pair lists them.")
    if downloads.progress is not None:
        raise Refusal(f"{downloads.progress.name} is being fetched; one pair at a time.")
    size = await asyncio.to_thread(downloads.size, name)
    if size < ASKED_BYTES or name == downloads.asked:
        downloads.asked = ""
        downloads.pull(name)
    else:
        downloads.asked = name
        await chat.offer_pull(name, f"Fetch {name}? {size_text(size)} come from the network.")


async def restart(chat: Chat, _argument: str) -> None:
    await chat.end_reply("died")
    chat.state.engine.reload()
    chat.refresh_state()


async def offer_pull(chat: Chat, name: str, what: str) -> None:
    """Say that a pair is not on disk and how large it is, and fetch it if the user wants that."""
    chat.state.engine.wanted = chat.state.downloads.asked = name
    await chat.notice(f"{what}.", "/pull fetches it, /pair lists all pairs.")
    if chat.state.setup.pull:
        await chat.attempt(pull)
    elif chat.state.downloads.progress is None:
        await chat.offer_pull(name, f"{what}. Fetch it now?")


async def receive_all(chat: Chat) -> None:
    """Handle what the engine, and the threads of the downloads, have reported since the last call."""
    for report in chat.state.engine.client.drain():
        await receive(chat, report)
    for name, failure in chat.state.downloads.take_ended():
        await receive_end(chat, name, failure)


async def receive(chat: Chat, report: messages.Report) -> None:
    engine = chat.state.engine
    match report:
        case events.Notice():
            await chat.notice(report.text)
        case events.Finished():
            if engine.comparing:  # then it is one of two, and no message
                engine.absorb(report)
            else:
                await chat.end_reply(report.reply.finish_reason, report.reply)
        case messages.LoadStage():
            engine.stage = report.text
        case messages.Ready():
            engine.took(report)
            await chat.continue_with_pair()
            chat.refresh_state()
        case messages.Compared():
            engine.end_reply()
            engine.compared = report
            engine.plain_speed = report.plain.stats.tokens_per_second or engine.plain_speed
            chat.refresh_state()
            await chat.show_comparison(report)
        case messages.Stopped():
            engine.end_reply()
            chat.notify("The comparison was stopped.")
        case messages.Failure():
            await _take_failure(chat, report)
        case messages.Died():
            await _take_death(chat, report)
        case events.Started() | events.Prefill() | events.Cycle() | events.Piece() | messages.ProposalText():
            engine.absorb(report)
        case _:
            pass  # the hello


async def receive_end(chat: Chat, name: str, failure: messages.Failure | None) -> None:
    """Tell how a pull ended, and load the pair if the user waits for it."""
    if failure is None:
        await chat.notice(f"{name} is on disk.", f"/pair {name} loads it.")
        if chat.state.engine.wanted == name and not chat.state.engine.busy:
            await chat.attempt(pair, name)
    elif failure.error == "PullCancelled":
        what = f"Stopped fetching {name}."
        await chat.notice(what, "The part on disk is kept; the next pull resumes there.")
    else:
        await chat.notice(failure.what, failure.hint, "error")


async def _take_failure(chat: Chat, failure: messages.Failure) -> None:
    engine = chat.state.engine
    if engine.loading and not failure.serial:  # one with a serial is of a question for the pair before
        failed = engine.pair_name
        engine.took(failure)
        if failure.error == "PairNotOnDisk":
            await offer_pull(chat, failed, failure.what)
        else:
            await chat.notice(failure.what, failure.hint, "error")
        if engine.can_go_back:
            await chat.notice(f"Back to {engine.pair_name}.")
            await chat.attempt(restart)
    elif engine.busy:
        await chat.end_reply("failed")
        await chat.notice(failure.what, failure.hint, "error")
    chat.refresh_state()


async def _take_death(chat: Chat, death: messages.Died) -> None:
    """Save the text so far; the next message or /restart starts the engine again."""
    chat.state.engine.took(death)
    hint = f"{death.hint}\nnothing is lost: /restart starts it again, and so does the next message"
    await chat.end_reply("died")
    await chat.notice(death.what, hint.strip(), "error")
    chat.refresh_state()
