"""The commands of the chat, and the table behind the slash menu, key bindings, footer and help page."""

import asyncio
import difflib
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from localspec.conversations import conversations
from localspec.options import REPLY
from localspec.prompt.images import image_of

from ..state.conversation import free_name, write_export
from .base import Chat, Refusal, Run, pair, pull, restart

_CODE: Final = re.compile(
    r"^(?P<marks>`{3,}|~{3,})[^\n]*\n(?P<code>.*?)^(?P=marks)\s*$", re.MULTILINE | re.DOTALL
)


async def new(chat: Chat, _argument: str) -> None:
    await chat.open_conversation(chat.state.new_conversation(chat.state.conversation.about.system))


async def retry(chat: Chat, _argument: str) -> None:
    if chat.state.conversation.last_question is None:
        raise Refusal("There is no message to answer yet.")
    chat.end_editing()
    await chat.ask_again()


async def version(chat: Chat, argument: str) -> None:
    conversation = chat.state.conversation
    reply = conversation.reply
    if reply is None:
        raise Refusal("There is no reply yet.")
    if not reply.versions:
        raise Refusal("The last reply has one version; /retry makes another.")
    count = len(reply.versions)
    wanted = _index("/version", argument, count) if argument else (reply.version - 1) % count
    await chat.choose_version(len(conversation.messages) - 1, wanted)


async def edit(chat: Chat, argument: str) -> None:
    questions = chat.state.conversation.questions
    if not questions:
        raise Refusal("There is no message to change yet.")
    # Without an argument, edit the question before the one in the prompt. Before the first one comes the last (-1).
    before = questions.index(chat.editing) - 1 if chat.editing in questions else -1
    chat.begin_editing(questions[_index("/edit", argument, len(questions)) if argument else before])


async def go_on(chat: Chat, _argument: str) -> None:
    reply = chat.state.conversation.reply
    if reply is None or not reply.content.strip():
        raise Refusal("There is no reply to continue.")
    if reply.outcome == "stop":
        raise Refusal("The reply was not cut off, so it cannot be continued; /retry makes another.")
    chat.end_editing()
    await chat.ask_again(beginning=reply.content)


async def system(chat: Chat, argument: str) -> None:
    conversation = chat.state.conversation
    if argument:
        conversation.about = replace(conversation.about, system="" if argument == "off" else argument)
    prompt = conversation.about.system
    await chat.notice(f"System prompt: {prompt}" if prompt else "No system prompt.")


async def image(chat: Chat, argument: str) -> None:
    if argument and argument != "off":
        chat.state.images += (await asyncio.to_thread(image_of, argument),)
    elif argument:
        chat.state.images = ()
    about = "; ".join(image.about for image in chat.state.images)
    await chat.notice(f"With the next message: {about}." if about else "/image FILE attaches an image.")


async def thinking(chat: Chat, _argument: str) -> None:
    _check_reasons(chat)
    await chat.toggle_thinking()


def _check_reasons(chat: Chat) -> None:
    ready, messages = chat.state.engine.ready, chat.state.conversation.messages
    if ready and not ready.reasons and not any(message.reasoning for message in messages):
        raise Refusal(f"{ready.target} does not reason before it answers; /pair chooses another pair.")


async def compare(chat: Chat, argument: str) -> None:
    conversation, engine = chat.state.conversation, chat.state.engine
    if conversation.last_question is None:
        raise Refusal("There is no message to compare yet: ask something first.")
    temperature = _read("temperature", "temperature", argument) if argument else 0.0
    engine.compare(conversation.turns(), temperature, conversation.stored_name)
    chat.refresh_state()
    await chat.show_race()


async def load(chat: Chat, argument: str) -> None:
    if not argument:
        await chat.choose_conversation()
        return
    folder = chat.state.setup.folder
    name = await asyncio.to_thread(conversations.find, folder, argument)
    if name != chat.state.conversation.about.name:
        await chat.open_conversation(chat.state.opened(*conversations.resume(folder, name)))


async def export(chat: Chat, argument: str) -> None:
    conversation = chat.state.conversation.saved
    if not conversation.messages:
        raise Refusal("There is nothing to export yet.")
    path = write_export(conversation, argument or free_name(conversation))
    chat.notify(f"Exported to {path}.")


async def rename(chat: Chat, argument: str) -> None:
    conversation = chat.state.conversation
    if await chat.is_saved(conversation.rename(" ".join(argument.split()))):
        chat.notify(f"This conversation is called “{conversation.saved.title}”.")


async def copy(chat: Chat, argument: str) -> None:
    replies = [message.content for message in chat.state.conversation.messages if message.role == "assistant"]
    kind, _, number = argument.partition(" ")
    if not replies:
        raise Refusal("There is no reply yet.")
    if not kind:
        await chat.copy(replies[-1])
    elif kind == "code":
        codes = [match["code"] for match in _CODE.finditer(replies[-1])]
        if not codes:
            raise Refusal("There is no code block in the last reply.")
        await chat.copy(codes[_index("/copy code", number, len(codes)) if number else -1])
    else:
        raise Refusal("This cannot be copied: use /copy, /copy code or /copy code N, or select text.")


def _index(command: str, argument: str, count: int) -> int:
    """Return the index for an argument that counts from 1 to `count`. Raises Refusal."""
    if not argument.isdecimal() or not 1 <= int(argument) <= count:
        raise Refusal(f"{command} takes a whole number from 1 to {count}.")
    return int(argument) - 1


async def draft(chat: Chat, argument: str) -> None:
    wanted = _on_or_off("/draft", argument, bool(chat.state.engine.settings.get("speculate", True)))
    _set(chat, speculate=wanted)
    chat.notify(f"Drafting is {'on' if wanted else 'off'} from the next reply on.")


async def set_value(chat: Chat, argument: str, *, field: str, unset: str = "default") -> None:
    """Set an option, or show it if the argument is empty; `unset`: the word that restores the default."""
    label = field.replace("_", "-")
    if argument:
        if field == "think":
            _check_reasons(chat)
        _set(chat, **{field: None if argument in (unset, "default") else _read(field, label, argument)})
    value = chat.state.engine.settings.get(field)
    shown = f"{value:g}" if isinstance(value, float) else value
    shown = ("off", "on")[value] if isinstance(value, bool) else shown
    chat.notify(f"{label} is {f'{REPLY[field].default} (default)' if value is None else shown}.")


def _read(field: str, label: str, text: str) -> Any:  # noqa: ANN401 - the value of a field
    with suppress(ValueError, KeyError):
        if REPLY[field].admits(value := REPLY[field].read(text)):
            return value
    raise Refusal(f"{label} takes {REPLY[field].expected}.")


def _set(chat: Chat, **changes: Any) -> None:  # noqa: ANN401 - None removes a setting
    settings = {**chat.state.engine.settings, **changes}
    chat.state.engine.settings = {name: value for name, value in settings.items() if value is not None}
    chat.refresh_state()


async def inspector(chat: Chat, _argument: str) -> None:
    shown = not chat.state.preferences.inspector
    chat.state.prefer(inspector=shown)
    chat.show_inspector(shown)


async def tokens(chat: Chat, argument: str) -> None:
    shown = _on_or_off("/tokens", argument, chat.state.preferences.colours)
    await chat.show_origins(shown)
    chat.state.prefer(colours=shown)


def _on_or_off(command: str, argument: str, now: bool) -> bool:
    """Return the value of `argument`, which is on or off; for "", return the opposite of `now`. Raises Refusal."""
    if argument not in ("on", "off", ""):
        raise Refusal(f"{command} takes on or off.")
    return argument == "on" or (not argument and not now)


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    area: str  # the heading on the help page under which the command is
    help: str
    run: Run
    key: str = ""
    argument: str = ""  # the argument as on the help page, for example [N]
    footer: str = ""  # the command's label in the bottom line; "": the bottom line omits the command
    idle: bool = False  # whether the command is refused while a reply runs
    aliases: tuple[str, ...] = ()  # the command's names in other programs

    def begins_with(self, start: str) -> bool:
        return any(name.startswith(start) for name in (self.name, *self.aliases))

    @property
    def usage(self) -> str:
        return f"{self.name} {self.argument}".rstrip()

    @property
    def key_label(self) -> str:
        return self.key.replace("ctrl+", "^").replace("escape", "esc")

    @property
    def action(self) -> str:
        return f"command('{self.name}')"


def _sampling(name: str, what: str, argument: str, field: str, unset: str = "default") -> Command:
    return Command(name, "sampling", what, partial(set_value, field=field, unset=unset), argument=argument)


# fmt: off
COMMANDS: Final = (
    Command("stop", "chat", "Stop the reply and keep its text", lambda chat, _: chat.escape(), "escape", footer="stop"),
    Command("new", "chat", "Start a new conversation", new, "ctrl+n", footer="new", idle=True,
            aliases=("clear", "reset")),
    Command("retry", "chat", "Generate another reply; this one is kept",
            retry, "ctrl+r", footer="retry", idle=True),
    Command("version", "chat", "Show another version of the last reply", version, "f5", "[N]", idle=True),
    Command("edit", "chat", "Change your last message, or the one before", edit, "f8", "[N]", idle=True),
    Command("continue", "chat", "Continue a reply that was cut", go_on, idle=True),
    Command("image", "chat", "Attach an image to the next message", image, argument="FILE|off"),
    Command("system", "chat", "Set the system prompt; without text, show it", system, argument="[text|off]"),
    Command("think", "chat", "Let the model think, at most N tokens, or not",
            partial(set_value, field="think"), argument="on|off|N"),
    Command("thinking", "chat", "Fold or unfold the reasoning of replies", thinking, "ctrl+t"),
    Command("pair", "models", "Choose, download or switch the pair",
            pair, "ctrl+o", "[name|file]", "models", idle=True, aliases=("model", "models")),
    Command("pull", "models", "Download the files of a pair", pull, argument="[name]"),
    Command("restart", "models", "Restart the engine with the same pair", restart),
    Command("draft", "speculation", "Turn drafting on or off", draft, "f4", "[on|off]"),
    Command("depth", "speculation", "Set the draft depth",
            partial(set_value, field="depth"), argument="auto|N"),
    Command("compare", "speculation", "Race the last prompt with and without drafting",
            compare, "f9", "[T]", idle=True),
    Command("stats", "speculation", "Show or hide the reply's numbers, from now on", inspector, "f3", footer="stats"),
    Command("tokens", "speculation", "Show or hide who wrote what, from now on", tokens, "f2", "[on|off]", "colours"),
    _sampling("temp", "Set the temperature; 0 is greedy", "[T]", "temperature"),
    _sampling("top-k", "Keep the K likeliest tokens; 0 keeps all", "[K]", "top_k"),
    _sampling("top-p", "Keep the likeliest tokens that make up P", "[P]", "top_p"),
    _sampling("min-p", "Drop tokens below P times the likeliest", "[P]", "min_p"),
    _sampling("seed", "Fix the seed, or make it random again", "[N|random]", "seed", "random"),
    _sampling("max-tokens", "Limit the length of replies", "[N|off]", "max_tokens", "off"),
    Command("load", "conversations", "Open an earlier conversation",
            load, "ctrl+s", "[name]", "chats", idle=True, aliases=("resume",)),
    Command("rename", "conversations", "Give the conversation a title", rename, argument="[title]"),
    Command("export", "conversations", "Write the conversation as Markdown",
            export, argument="[file]", idle=True, aliases=("save",)),
    Command("copy", "conversations", "Copy the last reply, or its code", copy, argument="[code [N]]"),
    Command("theme", "program", "Set the colour theme, or list the themes",
            lambda chat, name: chat.theme(name), argument="[name]"),
    Command("help", "program", "Show keys, commands and folders",
            lambda chat, _: chat.show_help(), "f1", footer="help", aliases=("?",)),
    Command("quit", "program", "Leave; the conversation is saved", lambda chat, _: chat.quit(), "ctrl+q",
            aliases=("exit", "bye")),
)
# fmt: on
BUSY: Final = "A reply is running. Esc stops it."
_TYPED: Final = re.compile(r"/(\?|[a-z][a-z-]*)(?:\s+(.*))?$", re.DOTALL)


def parse(text: str) -> tuple[str, str] | None:
    """Return the command's name and argument in a text like "/depth 4"; None for any other text."""
    found = _TYPED.match(text)
    return (found[1], (found[2] or "").strip()) if found else None


def matching(start: str) -> tuple[Command, ...]:
    """Return the commands whose name begins with `start`, then those whose name contains it."""
    first = [command for command in COMMANDS if command.begins_with(start)]
    return (*first, *(command for command in COMMANDS if start in command.name and command not in first))


def find(name: str) -> Command | None:
    exact = [command for command in COMMANDS if name in (command.name, *command.aliases)]
    found = exact or [command for command in COMMANDS if command.begins_with(name)]
    return found[0] if len(found) == 1 else None


async def run(chat: Chat, name: str, argument: str = "") -> bool:
    command = find(name)
    if command is None:
        chat.notify(unknown(name), severity="warning")
    elif command.idle and chat.state.engine.busy:
        chat.notify(BUSY)
    else:
        return await chat.attempt(command.run, argument)
    return False


def unknown(name: str) -> str:
    near = [each.name for each in COMMANDS if each.begins_with(name) or name.startswith(each.name)]
    near = near or difflib.get_close_matches(name, [command.name for command in COMMANDS])
    names = ", ".join(f"/{other}" for other in near)
    known = f"Nearest: {names}." if near else "/help lists the commands."
    return f"There is no command /{name}. {known} A space before the slash sends it as text."
