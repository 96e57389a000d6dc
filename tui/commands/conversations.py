"""Commands of the conversation: answer again, change, compare, open another, take along."""

from localspec import conversations

from ..state.conversation import NotExported, OpenConversation, export_markdown, version_before
from ..text.markdown import blocks_of, code_blocks
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


async def edit(chat: Chat, argument: str) -> None:
    """The last message of the person, or the one before that which is being changed, or the N-th."""
    questions = chat.state.conversation.questions
    if not questions:
        chat.notify("There is no message to change yet.")
        return
    try:
        index = (
            questions[whole(1, len(questions))(argument) - 1]
            if argument
            else _before(chat.editing, questions)
        )
    except ValueError as error:
        chat.notify(f"/edit takes {error}.", severity="warning")
        return
    chat.begin_editing(index)
    chat.focus_prompt()


def _before(editing: int | None, questions: list[int]) -> int:
    """The question before the one that is being changed; before the first comes the last."""
    return questions[questions.index(editing) - 1] if editing in questions else questions[-1]


async def go_on(chat: Chat, _argument: str) -> None:
    reply = chat.state.conversation.reply
    if reply is None or not reply.content.strip():
        chat.notify("There is no reply to continue.")
        return
    chat.end_editing()
    await chat.ask_again(beginning=reply.content)


async def prefill(chat: Chat, argument: str) -> None:
    chat.state.prefill = argument
    told = f"The next reply begins with: {argument}" if argument else "The next reply begins as it likes."
    await chat.remark(told)


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
        path = export_markdown(conversation, argument or f"{conversation.name}.md")
    except NotExported as error:
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
