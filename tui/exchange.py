"""A question and its reply: put, answered, saved, put again; on the screen and in the conversation's file alike."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from localspec.conversations import Message
from localspec.errors import EngineDied
from localspec.events import Reply

from .live_turn import LiveTurn
from .widgets.reply_view import ReplyView
from .widgets.transcript import UserMessage, view_of

if TYPE_CHECKING:
    from .screens.chat import ChatScreen

EXPLAINED: Final = ("cancelled", "failed", "died")  # how replies end for a reason that the person knows
UNANSWERED: Final = ("The last message has no reply.", "^r asks for one.")


class Exchange:
    """The last question of a chat, and its reply while it is written."""

    def __init__(self, screen: "ChatScreen") -> None:
        self._screen = screen
        self.reply: ReplyView | None = None  # while it is written
        self._replaced: tuple[Message, ...] = ()  # by it, and by its question if that was changed

    async def ask(self, text: str, instead_of: int | None = None) -> None:
        """Put a question, save it, and begin the reply; `instead_of` is the index of one that it replaces."""
        self._replaced = () if instead_of is None else await self._cut(instead_of)
        await self._save(Message("user", text))
        await self._screen.transcript.add(UserMessage(text))
        await self._begin_reply()

    async def ask_again(self, index: int) -> None:
        """Replace the reply to the question at that index."""
        self._replaced = await self._cut(index + 1)
        await self._begin_reply()

    async def show(self, turn: LiveTurn) -> None:
        """Draw what has come since the last time."""
        fresh = turn.take_fresh()
        if fresh and self.reply is not None:
            app = self._screen.app
            # One frame for everything that the tick brought.
            with app.batch_update():
                await self.reply.grow(fresh, app.preferences.tokens, turn.rejected)

    async def end(self, outcome: str, reply: Reply | None = None) -> None:
        """What runs is over, with a Reply unless the engine failed: save it, then show it as finished."""
        screen, conductor = self._screen, self._screen.app.conductor
        turn, comparing = conductor.turn, conductor.comparing
        if turn is None:
            return
        await self.show(turn)
        if reply is not None:
            turn.final = reply.stats
        view, self.reply = self.reply, None
        conductor.end_turn()
        screen.app.tidy_up()
        if view is not None and not comparing:
            await self._settle(view, turn.message(outcome, reply))
        screen.refresh_state()

    async def leave(self) -> None:
        """Save what the running reply has said so far, as stopped; the program is about to end."""
        conductor = self._screen.app.conductor
        view, self.reply = self.reply, None  # nobody else saves it from here on
        if view is None or conductor.turn is None or conductor.comparing:
            return
        message = conductor.turn.message("cancelled")
        if _has_words(message):
            await self._save(message)
        elif self._replaces_a_reply:
            for earlier in self._replaced:
                await self._save(earlier)

    async def _begin_reply(self) -> None:
        """Generate a reply to the conversation as it stands."""
        screen = self._screen
        try:
            screen.app.conductor.ask(screen.dialogue.turns())
        except EngineDied as error:
            await self._step_back("died")
            await screen.remark(str(error), error.hint, "error")
            screen.refresh_state()
            return
        self.reply = ReplyView(unfolded=screen.thinking_unfolded)
        await screen.transcript.add(self.reply)
        screen.transcript.anchor()
        screen.refresh_state()

    async def _settle(self, view: ReplyView, message: Message) -> None:
        if _has_words(message):
            saved = await self._save(message)
            await view.finish(message if saved else replace(message, outcome="unsaved"))
        else:
            await view.remove()
            await self._step_back(message.outcome)

    async def _step_back(self, outcome: str) -> None:
        """No word came: all is again as it was before the question, unless another text is in the prompt by now."""
        screen = self._screen
        told = outcome in EXPLAINED
        if self._replaces_a_reply:
            await self._restore(self._replaced)
            if not told:
                await screen.remark("The reply ended without a word.", "The earlier one is back.")
        elif screen.prompt.text.strip():
            await screen.remark(*UNANSWERED)
        else:
            await self._take_back_question()
            if not told:
                await screen.remark("The reply ended without a word.", "The message is back in the prompt.")

    async def _take_back_question(self) -> None:
        """The question goes into the prompt; one that it had replaced comes back, and is being changed as before."""
        screen = self._screen
        index = len(screen.dialogue.messages) - 1
        (question,) = await self._cut(index)
        if self._replaced:
            await self._restore(self._replaced)
            screen.editing = index
        screen.prompt.replace_text(question.content)

    @property
    def _replaces_a_reply(self) -> bool:
        """Whether the question is an old one that had a reply."""
        return bool(self._replaced) and self._replaced[0].role == "assistant"

    async def _restore(self, messages: Iterable[Message]) -> None:
        for message in messages:
            await self._save(message)
            await self._screen.transcript.add(view_of(message))

    async def _cut(self, count: int) -> tuple[Message, ...]:
        """Drop the messages after the first `count`, here and in the file; returns them."""
        screen = self._screen
        screen.editing = None
        dropped = tuple(screen.dialogue.messages[count:])
        try:
            await screen.dialogue.keep(count)
        except OSError as error:
            await screen.remark(f"the conversation could not be saved: {error}", kind="error")
        await screen.transcript.keep(count)
        return dropped

    async def _save(self, message: Message) -> bool:
        """Write a message to the conversation's file; tells when that fails."""
        try:
            await self._screen.dialogue.add(message)
        except OSError as error:
            await self._screen.remark(
                f"the conversation could not be saved: {error}", "free some space, or /export it", "error"
            )
            return False
        return True


def _has_words(message: Message) -> bool:
    return bool(message.content.strip() or message.reasoning.strip())
