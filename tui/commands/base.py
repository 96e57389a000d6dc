"""The base class of the screen's chat and the plain chat, commands about pairs, and the engine's reports."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, Literal

from localspec import events
from localspec.conversations.conversations import StoredMessage
from localspec.display import size_text
from localspec.engine import messages
from localspec.errors import BadSetting, EngineDied, LocalspecError, NotOnDisk
from localspec.events import Reply
from localspec.models.registry import DEMO

from ..state.chat import ChatState
from ..state.conversation import OpenConversation

ASKED_BYTES: Final = 1e9  # a download of at least this size starts only if the user agrees
Severity = Literal["information", "warning", "error"]


class Refusal(Exception): ...


class Chat:
    state: ChatState
    editing: int | None = None  # index of the message that the user edits in the prompt

    # `notify` shows a line for some seconds; `notice` adds a line between the messages.
    def notify(self, message: str, *, severity: Severity = "information") -> None: ...
    async def notice(self, what: str, hint: str = "", kind: Literal["note", "error"] = "note") -> None: ...

    def refresh_state(self) -> None: ...  # redraws title, prompt and inspector
    def show_inspector(self, shown: bool) -> None: ...
    async def toggle_thinking(self) -> None: ...  # folds or unfolds the reasoning of all replies

    async def show_origins(self, shown: bool) -> None:
        """Colour the last reply's tokens by their origin."""
        raise Refusal("The plain chat has no colours: /tokens works only on the screen.")

    async def theme(self, name: str) -> None:
        raise Refusal("The plain chat has no colours: /theme works only on the screen.")

    def begin_editing(self, index: int) -> None: ...  # puts the text of the message into the prompt
    async def choose_version(self, index: int, version: int) -> None: ...
    async def show_conversation(self) -> None: ...
    async def draw_reply(self) -> None: ...  # shows the new text of the running reply
    async def show_finished(self, message: StoredMessage) -> None: ...
    async def step_back(self, outcome: str) -> None: ...  # removes a reply that ended without text

    # Dialogs. A choice runs a command with the choice as its argument, for example /pair NAME.
    async def choose_pair(self) -> None: ...
    async def choose_conversation(self) -> None: ...
    async def suggest_pull(self, name: str, question: str) -> None: ...  # /pull again means yes, too
    async def show_help(self) -> None: ...
    async def show_race(self) -> None: ...
    async def show_comparison(self, compared: messages.Compared | None) -> None: ...  # None: no verdict
    async def copy(self, text: str) -> None: ...
    async def escape(self) -> None: ...  # ends the editing of a message, or stops the reply
    async def quit(self) -> None: ...

    def end_editing(self) -> bool:
        """End the editing of a message; return whether the user was editing one."""
        was_editing, self.editing = self.editing is not None, None
        return was_editing

    async def attempt(self, command: "Run", argument: str = "") -> bool:
        """Run a command and show its error, if it fails; return whether it succeeded."""
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
        """Request a reply to the last question; `beginning`: the text that the reply continues."""
        conversation = self.state.conversation
        try:
            self.state.engine.ask(conversation.turns(), beginning, conversation.stored_name)
        except EngineDied as error:
            await self.step_back("died")
            await self.notice(str(error), error.hint, "error")

    async def end_reply(self, outcome: str, final: Reply | None = None) -> None:
        """Save the running reply and show it as finished; `final` is None if the engine failed."""
        conversation, reply = self.state.conversation, self.state.engine.reply
        is_message = reply is not None and not self.state.engine.comparing
        await self.draw_reply()
        self.state.engine.end_reply(final)
        if reply is None or not is_message:
            return
        message = reply.message(outcome, final)
        if message.stats and self.state.engine.pair_name == DEMO:  # the demo's speed-up misleads
            message = replace(message, stats=replace(message.stats, plain_seconds=0.0))
        if message.has_words_after(reply.beginning):
            keeps_course = conversation.drops_replies and conversation.stored
            saved = await self.is_saved(conversation.add(message))
            added = conversation.messages[-1]
            await self.show_finished(added if saved else replace(added, outcome="unsaved"))
            if keeps_course and saved:
                self.notify("The conversation before the change is kept: /load lists it.")
        else:
            await self.step_back(outcome)
        self.refresh_state()

    async def is_saved(self, saving: Awaitable[None]) -> bool:
        """Await `saving` and return whether it succeeded. A notice reports a failure."""
        conversation = self.state.conversation
        was_behind = conversation.is_behind
        try:
            await saving
        except OSError as error:
            what = f"the conversation could not be saved: {error}"
            await self.notice(what, "free some space, or /export the conversation", "error")
            return False
        if was_behind and not conversation.is_behind:
            await self.notice("The whole conversation is saved again.")
        return True

    async def open_conversation(self, conversation: OpenConversation) -> None:
        self.end_editing()
        self.state.conversation.close()
        self.state.conversation = conversation
        self.state.engine.last_reply = self.state.engine.compared = None
        await self.show_conversation()
        await self.continue_with_pair()
        self.refresh_state()

    async def continue_with_pair(self) -> None:
        """Continue the conversation with the loaded pair, and report if the conversation had another pair."""
        ready, conversation = self.state.engine.ready, self.state.conversation
        if ready is None:
            return
        before, files = conversation.about.pair, conversation.about.files
        is_other = (
            files != self.state.engine.files if files and self.state.engine.files else before != ready.pair
        )
        conversation.about = replace(conversation.about, pair=ready.pair, files=self.state.engine.files)
        if conversation.messages and before and is_other:
            what = f"So far this conversation was with {before}; from here on {ready.pair} answers."
            name = before if len(files) > 1 else "".join(files)
            await self.notice(what, f"/pair {name} loads the earlier one." if files else "")


Run = Callable[[Chat, str], Awaitable[None]]  # the function of a command; the string is the argument


async def pair(chat: Chat, argument: str) -> None:
    if not argument:
        await chat.choose_pair()
        return
    engine = chat.state.engine
    try:
        found = await asyncio.to_thread(chat.state.downloads.find, argument)
    except NotOnDisk as error:
        await suggest_pull(chat, argument, str(error))
        return
    engine.load(replace(engine.load_request, pair=found))
    chat.refresh_state()


async def pull(chat: Chat, argument: str) -> None:
    engine, downloads = chat.state.engine, chat.state.downloads
    name = argument or engine.wanted
    if not name:
        raise Refusal("No pair is named: give its name, as /pull NAME. /pair lists all pairs.")
    if downloads.progress is not None:
        raise Refusal(f"{downloads.progress.name} is being downloaded; wait until it is here.")
    size = await asyncio.to_thread(downloads.size, name)
    if size < ASKED_BYTES or name == downloads.asked:
        downloads.asked = ""
        downloads.pull(name)
    else:
        downloads.asked = name
        await chat.suggest_pull(name, f"Download {name}, {size_text(size)}?")


async def restart(chat: Chat, _argument: str) -> None:
    await chat.end_reply("died")
    chat.state.engine.reload()
    chat.refresh_state()


async def suggest_pull(chat: Chat, name: str, what: str) -> None:
    """Report that a pair is not on disk, and offer to fetch it."""
    chat.state.engine.wanted = chat.state.downloads.asked = name
    await chat.notice(f"{what}.", "/pull downloads it, /pair lists all pairs.")
    if chat.state.setup.pull:
        await chat.attempt(pull)
    elif chat.state.downloads.progress is None:
        await chat.suggest_pull(name, f"{what}. Download it now?")


async def receive_all(chat: Chat) -> None:
    """Handle the reports that the engine and the downloads sent since the last call."""
    for report in chat.state.engine.client.drain():
        await receive(chat, report)
    for name, failure in chat.state.downloads.take_ended():
        if failure is None:
            await chat.notice(f"{name} is on disk.", f"/pair {name} loads it.")
            if chat.state.engine.wanted == name and not chat.state.engine.busy:
                await chat.attempt(pair, name)
        elif failure.error == "PullCancelled":
            await chat.notice(f"The download of {name} was stopped; /pull {name} resumes it.")
        else:
            await chat.notice(failure.what, failure.hint, "error")


async def receive(chat: Chat, report: messages.Report) -> None:
    engine = chat.state.engine
    match report:
        case events.Notice():
            await chat.notice(report.text)
        case events.Finished():
            if engine.comparing:  # replies of a race are no messages of the conversation
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
            chat.refresh_state()
            await chat.show_comparison(report)
        case messages.ComparisonStopped():
            engine.end_reply()
            await chat.show_comparison(None)
        case messages.Failure():
            await _take_failure(chat, report)
        case messages.Died():
            engine.took(report)
            await chat.end_reply("died")
            hint = "nothing is lost: your next message starts the engine again, and so does /restart"
            await chat.notice(report.what, f"{report.hint}\n{hint}".strip(), "error")
            chat.refresh_state()
        case events.Started() | events.Prefill() | events.Cycle() | events.Piece() | messages.ProposalText():
            engine.absorb(report)
        case _:
            pass  # `Hello` needs no reaction


async def _take_failure(chat: Chat, failure: messages.Failure) -> None:
    engine = chat.state.engine
    if engine.loading and not failure.serial:  # the failure of a load has no serial
        failed = engine.pair_name
        engine.took(failure)
        if failure.error == "PairNotOnDisk":
            await suggest_pull(chat, failed, failure.what)
        else:
            await chat.notice(failure.what, failure.hint, "error")
        if engine.can_go_back:
            await chat.attempt(restart)
    elif engine.busy:
        await chat.end_reply("failed")
        await chat.notice(failure.what, failure.hint, "error")
    chat.refresh_state()
