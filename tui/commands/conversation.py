"""Commands of the conversation: answer again, go on, change, compare."""

from ..state.conversation import version_before
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
