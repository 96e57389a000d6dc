"""Commands of the conversation: answer again, change, compare, open another, take along."""

from localspec.chat import conversations

from ..state.conversation import NotExported, OpenConversation, export_markdown, version_before
from ..text.markdown import code_blocks
from .chat import Chat, Refusal


async def new(chat: Chat, _argument: str) -> None:
    await chat.open_conversation(chat.state.new_conversation(chat.state.conversation.journal.system))


async def retry(chat: Chat, _argument: str) -> None:
    if chat.state.conversation.last_question is None:
        raise Refusal("There is no message to answer yet.")
    chat.end_editing()
    await chat.ask_again()


async def version(chat: Chat, argument: str) -> None:
    conversation = chat.state.conversation
    reply = conversation.reply
    if reply is None or not reply.versions:
        raise Refusal("The last reply has one version; ^r makes another.")
    wanted = _index("/version", argument, len(reply.versions)) if argument else version_before(reply)
    await chat.choose_version(len(conversation.messages) - 1, wanted)


async def edit(chat: Chat, argument: str) -> None:
    """Change the last message of the user, or the one before the message that is being changed, or the N-th."""
    questions = chat.state.conversation.questions
    if not questions:
        raise Refusal("There is no message to change yet.")
    # Before the first comes the last.
    before = questions.index(chat.editing) - 1 if chat.editing in questions else -1
    chat.begin_editing(questions[_index("/edit", argument, len(questions)) if argument else before])


async def go_on(chat: Chat, _argument: str) -> None:
    reply = chat.state.conversation.reply
    if reply is None or not reply.content.strip():
        raise Refusal("There is no reply to continue.")
    chat.end_editing()
    await chat.ask_again(beginning=reply.content)


async def prefill(chat: Chat, argument: str) -> None:
    chat.state.prefill = argument
    await chat.notice(
        f"The next reply begins with: {argument}" if argument else "The next reply has no given beginning."
    )


async def system(chat: Chat, argument: str) -> None:
    journal = chat.state.conversation.journal
    if argument:
        journal.system = "" if argument == "off" else argument
    await chat.notice(f"System prompt: {journal.system}" if journal.system else "No system prompt.")


async def compare(chat: Chat, _argument: str) -> None:
    conversation = chat.state.conversation
    if conversation.last_question is None:
        raise Refusal("Ask something first: /compare runs the last message again.")
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
            OpenConversation.resumed(*conversations.resume(path), stored=setup.stored)
        )


async def export(chat: Chat, argument: str) -> None:
    conversation = chat.state.conversation.saved
    if not conversation.messages:
        raise Refusal("There is nothing to export yet.")
    try:
        path = export_markdown(conversation, argument or f"{conversation.name}.md")
    except NotExported as error:
        raise Refusal(f"{error}; {error.hint}.") from None
    await chat.notice(f"Exported to {path}.")


async def rename(chat: Chat, argument: str) -> None:
    conversation = chat.state.conversation
    if await chat.is_saved(conversation.rename(" ".join(argument.split()))):
        await chat.notice(f"This conversation is called “{conversation.saved.title}”.")


async def branch(chat: Chat, argument: str) -> None:
    """Go on in a copy of the conversation, or of its first N messages; this one stays as it is."""
    old = chat.state.conversation
    count = _index("/branch", argument, len(old.messages)) + 1 if argument else len(old.messages)
    if not count:
        raise Refusal("There is nothing to branch from yet.")
    new = chat.state.new_conversation(old.journal.system)
    for message in old.messages[:count]:
        if not await chat.is_saved(new.add(message)):
            break
    await chat.open_conversation(new)
    await chat.notice(f"This is a copy of {count} messages.", f"/load {old.journal.path.stem} goes back.")


async def copy(chat: Chat, argument: str) -> None:
    """Copy the last reply, or its last or N-th code block."""
    replies = [message.content for message in chat.state.conversation.messages if message.role == "assistant"]
    kind, _, number = argument.partition(" ")
    if not replies:
        raise Refusal("There is no reply yet.")
    if not kind:
        await chat.copy(replies[-1])
    elif kind == "code":
        if not (codes := code_blocks(replies[-1])):
            raise Refusal("There is no code block in the last reply.")
        await chat.copy(codes[_index("/copy code", number, len(codes)) if number else -1])
    else:
        raise Refusal("/copy takes nothing, code, or code N; the mouse selects any other part.")


def _index(command: str, argument: str, count: int) -> int:
    """The index that belongs to a number from 1 to `count`. Raises Refusal."""
    if not argument.isdecimal() or not 1 <= int(argument) <= count:
        raise Refusal(f"{command} takes a whole number from 1 to {count}.")
    return int(argument) - 1
