"""What the commands do: one function each, given the chat screen and whatever followed the name."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from localspec import conversations
from localspec.errors import NotOnDisk

from . import exporting, reports
from .code_blocks import last_code_block
from .dialogue import Dialogue
from .preferences import TokenStyle
from .widgets.reply_view import version_before

if TYPE_CHECKING:
    from .screens.chat import ChatScreen


async def stop(screen: "ChatScreen", _argument: str) -> None:
    """One key, nearest thing first: the completion list, an edit, the running reply."""
    if screen.prompt.completing:
        screen.close_completion()
    elif screen.editing is not None:
        screen.end_editing()
        screen.refresh_state()
    elif screen.app.conductor.busy:
        screen.app.conductor.stop()
    else:
        screen.prompt.focus()
        screen.transcript.anchor()


async def new(screen: "ChatScreen", _argument: str) -> None:
    if not _busy(screen):
        await screen.open_dialogue(screen.app.new_dialogue(screen.dialogue.journal.system))


async def retry(screen: "ChatScreen", _argument: str) -> None:
    if _busy(screen):
        return
    if screen.dialogue.last_question is None:
        screen.notify("There is no message to answer yet.")
        return
    screen.end_editing()
    await screen.exchange.ask_again()


async def version(screen: "ChatScreen", argument: str) -> None:
    reply = screen.dialogue.reply
    if _busy(screen):
        return
    if reply is None or not reply.versions:
        screen.notify("The last reply has one version; ^r makes another.")
        return
    try:
        wanted = _whole(1, len(reply.versions))(argument) - 1 if argument else version_before(reply)
    except ValueError as error:
        screen.notify(f"/version takes {error}.", severity="warning")
        return
    await screen.exchange.choose(len(screen.dialogue.messages) - 1, wanted)


async def edit(screen: "ChatScreen", _argument: str) -> None:
    index = screen.dialogue.last_question
    if _busy(screen):
        return
    if index is None:
        screen.notify("There is no message to change yet.")
        return
    screen.begin_editing(index)
    screen.prompt.focus()
    screen.refresh_state()


async def system(screen: "ChatScreen", argument: str) -> None:
    journal = screen.dialogue.journal
    if argument:
        journal.system = "" if argument == "off" else argument
    await screen.remark(f"System prompt: {journal.system}" if journal.system else "No system prompt.")


async def thinking(screen: "ChatScreen", _argument: str) -> None:
    screen.unfold_thinking(not screen.thinking_unfolded)


async def pair(screen: "ChatScreen", argument: str) -> None:
    if _busy(screen):
        return
    if argument:
        await _load_pair(screen, argument)
        return
    from .screens.pairs import PairsScreen

    screen.app.librarian.refresh()

    async def chosen(name: str | None) -> None:
        if name is not None:
            await screen.run_command("pair", name)

    await screen.app.push_screen(PairsScreen(screen.app.librarian), chosen)


async def _load_pair(screen: "ChatScreen", name: str) -> None:
    """Load a pair that is here; the one that is loaded goes only once that is known."""
    conductor = screen.app.conductor
    try:
        await asyncio.to_thread(screen.app.setup.find_pair, name)
    except NotOnDisk as error:
        await reports.tell_of_missing(screen, name, str(error), error.hint)
        return
    conductor.load(replace(conductor.load_request, pair=name, target=None, draft=None))
    screen.refresh_state()


async def pull(screen: "ChatScreen", argument: str) -> None:
    librarian, name = (
        screen.app.librarian,
        argument or screen.app.conductor.wanted or screen.app.conductor.pair_name,
    )
    if not name:
        screen.notify("Which pair? ^o lists them.", severity="warning")
    elif librarian.progress is not None:
        screen.notify(f"{librarian.progress.name} is being fetched; one pair at a time.")
    else:
        librarian.pull(name)


async def restart(screen: "ChatScreen", _argument: str) -> None:
    await screen.exchange.end("died")
    screen.app.conductor.reload()
    screen.refresh_state()


async def draft(screen: "ChatScreen", argument: str) -> None:
    now = screen.app.conductor.settings.speculate
    wanted = {"on": True, "off": False, "": not now}.get(argument)
    if wanted is None:
        screen.notify("/draft takes on or off.", severity="warning")
        return
    _set(screen, speculate=wanted)
    await screen.remark(f"Drafting is {'on' if wanted else 'off'} from the next reply on.")


async def depth(screen: "ChatScreen", argument: str) -> None:
    if argument == "auto":
        _set(screen, depth="auto")
        await screen.remark("depth is auto.")
    else:
        await _set_number(screen, "depth", argument, _whole(0, 32))


async def temperature(screen: "ChatScreen", argument: str) -> None:
    await _set_number(screen, "temperature", argument, _number(0, 10))


async def top_k(screen: "ChatScreen", argument: str) -> None:
    await _set_number(screen, "top_k", argument, _whole(0, 10**6))


async def top_p(screen: "ChatScreen", argument: str) -> None:
    await _set_number(screen, "top_p", argument, _number(0, 1))


async def min_p(screen: "ChatScreen", argument: str) -> None:
    await _set_number(screen, "min_p", argument, _number(0, 1))


async def seed(screen: "ChatScreen", argument: str) -> None:
    await _set_number(screen, "seed", argument, _whole(0, 2**64 - 1), none="random")


async def max_tokens(screen: "ChatScreen", argument: str) -> None:
    await _set_number(screen, "max_tokens", argument, _whole(1, 10**6), none="off")


async def compare(screen: "ChatScreen", _argument: str) -> None:
    if _busy(screen):
        return
    if screen.dialogue.last_question is None:
        screen.notify("Ask something first: /compare runs the last message again.")
        return
    screen.app.conductor.compare(screen.dialogue.turns())
    screen.refresh_state()


async def inspector(screen: "ChatScreen", _argument: str) -> None:
    shown = not screen.app.preferences.inspector
    screen.app.prefer(inspector=shown)
    screen.set_class(shown, "-inspecting")
    screen.call_after_refresh(screen.refresh_state)


async def tokens(screen: "ChatScreen", argument: str) -> None:
    styles = list(TokenStyle)
    following = styles[(styles.index(screen.app.preferences.tokens) + 1) % len(styles)]
    if argument and argument not in styles:
        screen.notify(f"/tokens takes {', '.join(styles)}.", severity="warning")
        return
    chosen = TokenStyle(argument) if argument else following
    screen.app.prefer(tokens=chosen)
    screen.notify(f"Token origins in the live text: {chosen}.")


async def load(screen: "ChatScreen", argument: str) -> None:
    if _busy(screen):
        return
    if argument:
        await open_conversation(screen, conversations.find(screen.app.conversations, argument))
        return
    from .screens.sessions import SessionsScreen

    async def chosen(conversation: conversations.Conversation | None) -> None:
        if conversation is not None:
            await screen.run_command("load", conversation.name)

    await screen.app.push_screen(
        SessionsScreen(
            screen.app.conversations, screen.dialogue.journal.path, screen.app.prompt_history.forget
        ),
        chosen,
    )


async def open_conversation(screen: "ChatScreen", conversation: conversations.Conversation) -> None:
    """Go on with a conversation, on the pair that is loaded."""
    if conversation.path == screen.dialogue.journal.path:
        return
    await screen.open_dialogue(Dialogue.resume(conversation.path, stored=screen.app.setup.stored))


async def export(screen: "ChatScreen", argument: str) -> None:
    dialogue = screen.dialogue
    if _busy(screen):
        return
    if not dialogue.messages:
        screen.notify("There is nothing to export yet.")
        return
    journal = dialogue.journal
    whole = conversations.Conversation(
        journal.path, 0.0, journal.pair, journal.system, tuple(dialogue.messages)
    )
    try:
        path = exporting.export(whole, argument or f"{whole.name}.md")
    except exporting.NotExported as error:
        screen.notify(f"{error}; {error.hint}.", severity="error")
    else:
        await screen.remark(f"Exported to {path}.")


async def copy(screen: "ChatScreen", argument: str) -> None:
    reply = next((m.content for m in reversed(screen.dialogue.messages) if m.role == "assistant"), "")
    text = last_code_block(reply) if argument == "code" else reply
    if not text:
        screen.notify(
            "There is no code block in the last reply." if argument == "code" else "There is no reply yet."
        )
        return
    screen.app.copy_to_clipboard(text)
    screen.notify(f"{len(text):,} characters copied, if your terminal allows it (OSC 52).")


async def theme(screen: "ChatScreen", argument: str) -> None:
    app = screen.app
    if argument in app.available_themes:
        app.theme = argument
        app.prefer(theme=argument)
    elif argument:
        screen.notify(f"There is no theme {argument}.", severity="warning")
    else:
        from .screens.themes import ThemesScreen

        before = app.theme

        def chosen(name: str | None) -> None:
            app.theme = name or before
            app.prefer(theme=app.theme)

        await app.push_screen(ThemesScreen(), chosen)


async def help_page(screen: "ChatScreen", _argument: str) -> None:
    from .screens.help import HelpScreen

    await screen.app.push_screen(HelpScreen(screen.app.setup.folder))


async def leave(screen: "ChatScreen", _argument: str) -> None:
    await screen.app.action_quit()


def _busy(screen: "ChatScreen") -> bool:
    if screen.app.conductor.busy:
        screen.notify("A reply is running. Esc stops it.")
    return screen.app.conductor.busy


def _set(screen: "ChatScreen", **changes: Any) -> None:  # noqa: ANN401 - fields of ReplySettings
    screen.app.conductor.settings = replace(screen.app.conductor.settings, **changes)
    screen.refresh_state()


async def _set_number(
    screen: "ChatScreen", field: str, argument: str, parse: Callable[[str], float], none: str = "default"
) -> None:
    """Set a number, unset it with the word for that, or without an argument say what it is."""
    label = field.replace("_", "-")
    if argument:
        try:
            _set(screen, **{field: None if argument in (none, "default") else parse(argument)})
        except ValueError as error:
            screen.notify(f"{label}: {error}.", severity="warning")
            return
    value = getattr(screen.app.conductor.settings, field)
    await screen.remark(
        f"{label} is {none if value is None else f'{value:g}' if isinstance(value, float) else value}."
    )


def _whole(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise ValueError(f"a whole number from {least} to {most}")
        return int(text)

    return parse


def _number(least: float, most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise ValueError(f"a number from {least} to {most}")
        return value

    return parse
