"""A question and its reply: put, answered, saved, put again; on the screen and in the conversation's file alike."""

from collections.abc import Awaitable
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
        self._replaced: tuple[Message, ...] = ()  # by a changed question: the old one and its reply

    async def ask(self, text: str, instead_of: int | None = None) -> None:
        """Put a question, save it, and begin the reply; `instead_of` is the index of one that it replaces."""
        self._replaced = () if instead_of is None else await self._cut(instead_of)
        await self._is_saved(self._screen.dialogue.add(Message("user", text)))
        await self._screen.transcript.add(UserMessage(text))
        await self._begin_reply()

    async def ask_again(self) -> None:
        """Generate another reply to the last question; an earlier one stays as a version of it."""
        self._replaced = ()
        dialogue = self._screen.dialogue
        await self._screen.transcript.keep(len(dialogue.messages) - (dialogue.reply is not None))
        await self._begin_reply()

    async def choose(self, index: int, version: int) -> None:
        """Go back to another version of the reply at that index."""
        dialogue = self._screen.dialogue
        await self._is_saved(dialogue.choose(index, version))
        await self._screen.transcript.exchange(index, view_of(dialogue.messages[index]))

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
            await self._is_saved(self._screen.dialogue.add(message))

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
            dialogue = self._screen.dialogue
            saved = await self._is_saved(dialogue.add(message))
            held = dialogue.messages[-1]
            await view.finish(held if saved else replace(held, outcome="unsaved"))
            if len(held.versions) == 2:
                self._screen.notify("The earlier reply is kept: f5 shows it.")
        else:
            await view.remove()
            await self._step_back(message.outcome)

    async def _step_back(self, outcome: str) -> None:
        """No word came: all is again as it was before the question, unless another text is in the prompt by now."""
        screen, earlier = self._screen, self._screen.dialogue.reply
        told = outcome in EXPLAINED
        if earlier is not None:
            await screen.transcript.add(view_of(earlier))
            if not told:
                await screen.remark("The reply ended without a word.", "The earlier one is back.")
        elif not screen.prompt.text.strip():
            await self._take_back_question()
            if not told:
                await screen.remark("The reply ended without a word.", "The message is back in the prompt.")
        elif self._replaced:
            await self._take_back_change()
            await screen.remark(
                "The changed message has no reply; the old one is back.", "Up brings the change."
            )
        else:
            await screen.remark(*UNANSWERED)

    async def _take_back_question(self) -> None:
        """The question goes into the prompt; one that it had replaced comes back, and is being changed as before."""
        screen, changed = self._screen, bool(self._replaced)
        question = await self._take_back_change()
        if changed:
            screen.begin_editing(len(screen.dialogue.messages) - len(self._replaced))
        screen.prompt.replace_text(question.content)

    async def _take_back_change(self) -> Message:
        """Drop the last question, which is returned, and bring back what it had replaced."""
        (question,) = await self._cut(len(self._screen.dialogue.messages) - 1)
        for message in self._replaced:
            await self._is_saved(self._screen.dialogue.add(message))
            await self._screen.transcript.add(view_of(message))
        return question

    async def _cut(self, count: int) -> tuple[Message, ...]:
        """Drop the messages after the first `count`, here and in the file; returns them."""
        dialogue = self._screen.dialogue
        dropped = tuple(dialogue.messages[count:])
        await self._is_saved(dialogue.keep(count))
        await self._screen.transcript.keep(count)
        return dropped

    async def _is_saved(self, saving: Awaitable[None]) -> bool:
        """Whether the conversation's file took it; tells when it did not."""
        try:
            await saving
        except OSError as error:
            await self._screen.remark(
                f"the conversation could not be saved: {error}", "free some space, or /export it", "error"
            )
            return False
        return True


def _has_words(message: Message) -> bool:
    return bool(message.content.strip() or message.reasoning.strip())
