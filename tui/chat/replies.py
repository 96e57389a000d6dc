"""Questions and their replies: asked, drawn, saved, and taken back; on the screen and in the conversation's file."""

from collections.abc import Awaitable
from dataclasses import replace
from typing import Final

from textual.message import Message as TextualMessage

from localspec.conversations import StoredMessage
from localspec.errors import EngineDied
from localspec.events import Reply

from ..commands.protocol import Chat
from ..widgets.prompt import PromptInput
from ..widgets.reply import ReplyView
from ..widgets.transcript import Transcript, UserMessage, view_of

EXPLAINED: Final = ("cancelled", "failed", "died")  # how replies end for a reason that the person knows
UNANSWERED: Final = ("The last message has no reply.", "^r asks for one.")


class Replies:
    """The last question of the chat, and its reply while it is written."""

    class Ended(TextualMessage):
        """No reply runs any more."""

    def __init__(self, chat: Chat, transcript: Transcript, prompt: PromptInput) -> None:
        self._chat = chat
        self._transcript = transcript
        self._prompt = prompt
        self.view: ReplyView | None = None  # of the reply that is written

    async def ask(self, text: str, instead_of: int | None = None) -> None:
        """Put a question and begin the reply; `instead_of` is the index of one that it replaces."""
        await self._is_saved(self._chat.state.conversation.ask(text, instead_of))
        if instead_of is not None:
            await self._transcript.keep(instead_of)
        await self._transcript.add(UserMessage(text))
        await self._begin()

    async def ask_again(self, beginning: str = "") -> None:
        """Generate another reply to the last question, or from `beginning` on; an earlier one stays as a version."""
        conversation = self._chat.state.conversation
        await self._transcript.keep(len(conversation.messages) - (conversation.reply is not None))
        await self._begin(beginning)

    async def choose_version(self, index: int, version: int) -> None:
        """Go back to another version of the reply at that index."""
        conversation = self._chat.state.conversation
        await self._is_saved(conversation.choose(index, version))
        await self._transcript.replace_message(index, view_of(conversation.messages[index]))

    async def draw(self) -> None:
        """Draw what has come since the last time."""
        reply = self._chat.state.engine.reply
        fresh = reply.take_fresh() if reply is not None else []
        if reply is not None and self.view is not None and fresh:
            # One frame for everything that the tick brought.
            with self._transcript.app.batch_update():
                await self.view.grow(fresh, self._chat.state.preferences.tokens, reply.rejected)

    async def end(self, outcome: str, final: Reply | None = None) -> None:
        """What runs is over, with a Reply unless the engine failed: save it, then show it as finished."""
        engine = self._chat.state.engine
        reply, comparing = engine.reply, engine.comparing
        if reply is None:
            return
        await self.draw()
        view, self.view = self.view, None
        engine.end_reply(final)
        self._transcript.app.post_message(self.Ended())
        if view is not None and not comparing:
            await self._finish(view, reply.message(outcome, final), reply.beginning)
        self._chat.refresh_state()

    async def save_running(self) -> None:
        """Save what the running reply has said so far, as stopped; the program is about to end."""
        self.view = None
        await self._is_saved(self._chat.state.save_running())

    async def _begin(self, beginning: str = "") -> None:
        """Generate a reply to the conversation as it stands."""
        chat = self._chat
        try:
            chat.state.begin_reply(beginning)
        except EngineDied as error:
            await self._step_back("died")
            await chat.notice(str(error), error.hint, "error")
            chat.refresh_state()
            return
        self.view = ReplyView(unfolded=self._transcript.thinking_unfolded)
        await self._transcript.add(self.view)
        self._transcript.anchor()
        chat.refresh_state()

    async def _finish(self, view: ReplyView, message: StoredMessage, beginning: str) -> None:
        if message.has_words_after(beginning):
            conversation = self._chat.state.conversation
            saved = await self._is_saved(conversation.add(message))
            held = conversation.messages[-1]
            await view.finish(held if saved else replace(held, outcome="unsaved"))
            if len(held.versions) == 2:
                self._chat.notify("The earlier reply is kept: f5 shows it.")
        else:
            await view.remove()
            await self._step_back(message.outcome)

    async def _step_back(self, outcome: str) -> None:
        """No word came: all is again as it was before the question, unless another text is in the prompt by now."""
        chat, earlier = self._chat, self._chat.state.conversation.reply
        told = outcome in EXPLAINED
        if earlier is not None:
            await self._transcript.add(view_of(earlier))
            if not told:
                await chat.notice("The reply ended without a word.", "The earlier one is back.")
        elif not self._prompt.text.strip():
            await self._take_back_question()
            if not told:
                await chat.notice("The reply ended without a word.", "The message is back in the prompt.")
        elif self._chat.state.conversation.is_changed:
            await self._take_back()
            await chat.notice(
                "The changed message has no reply; the old one is back.", "Up brings the change."
            )
        else:
            await chat.notice(*UNANSWERED)

    async def _take_back_question(self) -> None:
        """The question goes into the prompt; one that it had replaced comes back, and is being changed as before."""
        changed = self._chat.state.conversation.is_changed
        index, question = await self._take_back()
        if changed:
            self._chat.begin_editing(index)
        self._prompt.replace_text(question.content)

    async def _take_back(self) -> tuple[int, StoredMessage]:
        """Drop the last question, which is returned with its index, and bring back what it had replaced."""
        conversation = self._chat.state.conversation
        index, question = len(conversation.messages) - 1, conversation.messages[-1]
        await self._is_saved(conversation.take_back())
        await self._transcript.keep(index)
        for message in conversation.messages[index:]:
            await self._transcript.add(view_of(message))
        return index, question

    async def _is_saved(self, saving: Awaitable[None]) -> bool:
        """Whether the conversation's file took it; tells when it did not, and when it has all again."""
        conversation = self._chat.state.conversation
        was_behind = conversation.is_behind
        try:
            await saving
        except OSError as error:
            await self._chat.notice(
                f"the conversation could not be saved: {error}", "free some space, or /export it", "error"
            )
            return False
        if was_behind and not conversation.is_behind:
            await self._chat.notice("The whole conversation is saved again.")
        return True
