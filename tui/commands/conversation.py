"""Commands of the conversation: answer again, change, open another, take along."""

from localspec import conversations

from ..state import export as exporting
from ..state.conversation import OpenConversation, version_before
from ..text.markdown import last_code_block
from .protocol import Chat
from .settings import whole


async def stop(chat: Chat, _argument: str) -> None:
    """One key, nearest thing first: the completion list, an edit, the running reply."""
    if chat.close_completion() or chat.end_editing():
        return
    if chat.state.engine.busy:
        chat.state.engine.stop()
    else:
        chat.focus_prompt()
        chat.follow_end()


async def new(chat: Chat, _argument: str) -> None:
    await chat.open_conversation(chat.state.new_conversation(chat.state.conversation.journal.system))


async def retry(chat: Chat, _argument: str) -> None:
    if chat.state.conversation.last_question is None:
        chat.notify("There is no message to answer yet.")
        return
    chat.end_editing()
    await chat.ask_again()


async def version(chat: Chat, argument: str) -> None:
    conversation = chat.state.conversation
    reply = conversation.reply
    if reply is None or not reply.versions:
        chat.notify("The last reply has one version; ^r makes another.")
        return
    try:
        wanted = whole(1, len(reply.versions))(argument) - 1 if argument else version_before(reply)
    except ValueError as error:
        chat.notify(f"/version takes {error}.", severity="warning")
        return
    await chat.choose_version(len(conversation.messages) - 1, wanted)


async def edit(chat: Chat, _argument: str) -> None:
    index = chat.state.conversation.last_question
    if index is None:
        chat.notify("There is no message to change yet.")
        return
    chat.begin_editing(index)
    chat.focus_prompt()


async def system(chat: Chat, argument: str) -> None:
    journal = chat.state.conversation.journal
    if argument:
        journal.system = "" if argument == "off" else argument
    await chat.remark(f"System prompt: {journal.system}" if journal.system else "No system prompt.")


async def compare(chat: Chat, _argument: str) -> None:
    conversation = chat.state.conversation
    if conversation.last_question is None:
        chat.notify("Ask something first: /compare runs the last message again.")
        return
    chat.state.engine.compare(conversation.turns())
    chat.refresh_state()


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


async def copy(chat: Chat, argument: str) -> None:
    replies = [m.content for m in chat.state.conversation.messages if m.role == "assistant"]
    text = replies[-1] if replies else ""
    if argument == "code":
        text = last_code_block(text)
    if text:
        chat.copy(text)
        chat.notify(f"{len(text):,} characters copied, if your terminal allows it (OSC 52).")
    elif argument == "code":
        chat.notify("There is no code block in the last reply.")
    else:
        chat.notify("There is no reply yet.")
