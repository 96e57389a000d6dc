"""A question and its reply: put, answered, saved, cut; on the screen and in the conversation's file alike."""

from dataclasses import replace
from typing import TYPE_CHECKING

from localspec.conversations import Message
from localspec.errors import EngineDied

from .live_turn import LiveTurn
from .widgets.reply_view import ReplyView
from .widgets.transcript import UserMessage

if TYPE_CHECKING:
    from .screens.chat import ChatScreen


class Exchange:
    """The last question of a chat, and its reply while it is written."""

    def __init__(self, screen: "ChatScreen") -> None:
        self._screen = screen
        self.reply: ReplyView | None = None  # while it is written

    async def ask(self, text: str) -> None:
        """Put a question, save it, and begin the reply."""
        message = Message("user", text)
        await self._save(message)
        await self._screen.transcript.add(UserMessage(text))
        await self.begin_reply()

    async def begin_reply(self) -> None:
        """Generate a reply to the conversation as it stands."""
        screen = self._screen
        try:
            screen.app.conductor.ask(screen.dialogue.turns())
        except EngineDied as error:
            await screen.remark(str(error), error.hint, "error")
            return
        self.reply = ReplyView(unfolded=screen.thinking_unfolded)
        await screen.transcript.add(self.reply)
        screen.transcript.anchor()
        screen.refresh_state()

    async def show(self, turn: LiveTurn) -> None:
        """Draw what has come since the last time."""
        fresh = turn.take_fresh()
        if fresh and self.reply is not None:
            app = self._screen.app
            # One frame for everything that the tick brought.
            with app.batch_update():
                await self.reply.grow(fresh, app.preferences.tokens, turn.rejected)

    async def end(self, message: Message) -> None:
        """Save the reply, then show it as finished. A reply without a word leaves no trace but its question."""
        screen = self._screen
        reply, self.reply = self.reply, None
        comparing = screen.app.conductor.comparing
        screen.app.conductor.end_turn()
        screen.app.tidy_up()
        if comparing or reply is None:
            screen.refresh_state()
            return
        if message.content or message.reasoning:
            saved = await self._save(message)
            await reply.finish(message if saved else replace(message, outcome="unsaved"))
        else:
            await reply.remove()
            await self._take_back_question()
        screen.refresh_state()

    async def leave(self) -> None:
        """Save what the running reply has said so far, as stopped; the program is about to end."""
        conductor = self._screen.app.conductor
        reply, self.reply = self.reply, None  # nobody else saves it from here on
        if reply is None or conductor.turn is None or conductor.comparing:
            return
        message = conductor.turn.message("cancelled")
        if message.content or message.reasoning:
            await self._save(message)

    async def cut(self, count: int) -> None:
        """Drop the messages after the first `count`, here and in the file."""
        screen = self._screen
        screen.editing = None
        try:
            await screen.dialogue.keep(count)
        except OSError as error:
            await screen.remark(f"the conversation could not be saved: {error}", kind="error")
        await screen.transcript.keep(count)

    async def _take_back_question(self) -> None:
        """A question that got no word of reply goes back into the prompt."""
        dialogue, prompt = self._screen.dialogue, self._screen.prompt
        index = dialogue.last_question
        if index is None or index != len(dialogue.messages) - 1:
            return
        text = dialogue.messages[index].content
        await self.cut(index)
        if not prompt.text:
            prompt.replace_text(text)

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
