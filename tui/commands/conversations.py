"""Commands about conversations as a whole: open, rename, branch, take along."""

from localspec import conversations

from ..state import export as exporting
from ..state.conversation import OpenConversation
from ..text.markdown import blocks_of, code_blocks
from .protocol import Chat
from .settings import whole


async def load(chat: Chat, argument: str) -> None:
    if not argument:
        await chat.choose_conversation()
        return
    setup = chat.state.setup
    path = conversations.find(setup.conversations, argument).path
    if path != chat.state.conversation.journal.path:
        await chat.open_conversation(
            OpenConversation.going_on(*conversations.resume(path), stored=setup.stored)
        )


async def export(chat: Chat, argument: str) -> None:
    conversation = chat.state.conversation.saved
    if not conversation.messages:
        chat.notify("There is nothing to export yet.")
        return
    try:
        path = exporting.export(conversation, argument or f"{conversation.name}.md")
    except exporting.NotExported as error:
        chat.notify(f"{error}; {error.hint}.", severity="error")
    else:
        await chat.remark(f"Exported to {path}.")


async def rename(chat: Chat, argument: str) -> None:
    conversation = chat.state.conversation
    try:
        await conversation.rename(" ".join(argument.split()))
    except OSError as error:
        await chat.remark(f"the title could not be saved: {error}", "free some space", "error")
    else:
        await chat.remark(f"This conversation is called “{conversation.saved.title}”.")


async def branch(chat: Chat, argument: str) -> None:
    """Go on in a copy of the conversation, or of its first N messages; this one stays as it is."""
    old = chat.state.conversation
    try:
        count = whole(1, len(old.messages))(argument) if argument else len(old.messages)
    except ValueError as error:
        chat.notify(f"/branch takes {error}.", severity="warning")
        return
    if not count:
        chat.notify("There is nothing to branch from yet.")
        return
    new = chat.state.new_conversation(old.journal.system)
    try:
        for message in old.messages[:count]:
            await new.add(message)
    except OSError as error:
        await chat.remark(f"the branch could not be saved: {error}", "free some space", "error")
    await chat.open_conversation(new)
    await chat.remark(f"This is a copy of {count} messages.", f"/load {old.journal.path.stem} goes back.")


async def copy(chat: Chat, argument: str) -> None:
    """The last reply, its last or N-th code block, or a block that the person chooses."""
    replies = [message.content for message in chat.state.conversation.messages if message.role == "assistant"]
    kind, _, number = argument.partition(" ")
    if not replies:
        chat.notify("There is no reply yet.")
    elif not kind:
        await chat.copy(replies[-1])
    elif kind == "code":
        await _copy_code(chat, code_blocks(replies[-1]), number)
    elif kind == "block":
        await chat.choose_block(blocks_of(replies[-1]))
    else:
        chat.notify("/copy takes nothing, code, code N, or block.", severity="warning")


async def _copy_code(chat: Chat, codes: list[str], number: str) -> None:
    if not codes:
        chat.notify("There is no code block in the last reply.")
        return
    try:
        await chat.copy(codes[whole(1, len(codes))(number) - 1 if number else -1])
    except ValueError as error:
        chat.notify(f"/copy code takes {error}.", severity="warning")
