"""The commands of the chat, and their one table: slash menu, key bindings, footer and help page show it."""

import asyncio
import difflib
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from localspec.chat import conversations
from localspec.display import counted
from localspec.options import REPLY

from ..state.conversation import (
    OpenConversation,
    beside,
    export_markdown,
    free_name,
    version_before,
    write_new,
)
from ..text import status
from ..text.markdown import code_blocks
from .base import Chat, Refusal, Run, pair, pull, restart


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
        raise Refusal("The last reply has one version; /retry makes another.")
    wanted = _index("/version", argument, len(reply.versions)) if argument else version_before(reply)
    await chat.choose_version(len(conversation.messages) - 1, wanted)


async def edit(chat: Chat, argument: str) -> None:
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
    if reply.outcome == "stop":
        raise Refusal("The reply is finished; /continue resumes one that was cut.")
    chat.end_editing()
    await chat.ask_again(beginning=reply.content)


async def prefill(chat: Chat, argument: str) -> None:
    chat.state.prefill = argument
    chat.notify(
        f"The next reply begins with: {argument}" if argument else "The next reply has no given beginning."
    )


async def system(chat: Chat, argument: str) -> None:
    journal = chat.state.conversation.journal
    if argument:
        journal.system = "" if argument == "off" else argument
    await chat.notice(f"System prompt: {journal.system}" if journal.system else "No system prompt.")


async def thinking(chat: Chat, _argument: str) -> None:
    ready, messages = chat.state.engine.ready, chat.state.conversation.messages
    if ready and not ready.reasons and not any(message.reasoning for message in messages):
        raise Refusal(f"{ready.target} does not reason before it answers: there is nothing to fold.")
    await chat.toggle_thinking()


async def compare(chat: Chat, argument: str) -> None:
    conversation = chat.state.conversation
    if conversation.last_question is None:
        raise Refusal("Ask something first: /compare runs the last message again.")
    temperature = _read("temperature", "temperature", argument) if argument else 0.0
    chat.state.engine.compare(conversation.turns(), temperature)
    chat.refresh_state()
    await chat.show_race()


async def share(chat: Chat, argument: str) -> None:
    """Write the last race or reply as a picture that names models, machine and program."""
    engine, conversation = chat.state.engine, chat.state.conversation
    reply, question, ready = engine.last_reply, conversation.last_question, engine.ready
    if (reply or engine.compared) is None or question is None or ready is None or engine.busy:
        raise Refusal("There is no reply of this session to share yet.")
    from localspec.measure.race import Race, svg  # draws by a module that loads slowly

    if engine.compared is not None:
        lanes, headline = Race(*(side.lane for side in engine.sides)).lanes, engine.compared.verdict
    elif reply is not None:
        lanes, headline = {"reply": reply.lane}, status.gain(engine, reply)[0]
    about = f"{ready.target} with {ready.draft or 'lookup'}; {ready.machine}"
    prompt = conversation.messages[question].content
    drawn = svg(lanes, prompt, about, headline)
    path = write_new(argument or free_name(conversation.saved, ".svg"), drawn)
    chat.notify(f"Drawn into {beside(path)}.")


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
    path = export_markdown(conversation, argument or free_name(conversation, ".md"))
    chat.notify(f"Exported to {beside(path)}.")


async def rename(chat: Chat, argument: str) -> None:
    conversation = chat.state.conversation
    if await chat.is_saved(conversation.rename(" ".join(argument.split()))):
        chat.notify(f"This conversation is called “{conversation.saved.title}”.")


async def branch(chat: Chat, argument: str) -> None:
    old = chat.state.conversation
    count = _index("/branch", argument, len(old.messages)) + 1 if argument else len(old.messages)
    if not count:
        raise Refusal("There is nothing to branch from yet.")
    new = chat.state.new_conversation(old.journal.system)
    if old.title:
        await chat.is_saved(new.rename(old.title))
    for message in old.messages[:count]:
        if not await chat.is_saved(new.add(message)):
            break
    await chat.open_conversation(new)
    await chat.notice(
        f"This is a copy of {counted(count, 'message')}.", f"/load {old.journal.path.stem} goes back."
    )


async def copy(chat: Chat, argument: str) -> None:
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


async def draft(chat: Chat, argument: str) -> None:
    wanted = _on_or_off("/draft", argument, bool(chat.state.engine.settings.get("speculate", True)))
    _set(chat, speculate=wanted)
    chat.notify(f"Drafting is {'on' if wanted else 'off'} from the next reply on.")


async def preset(chat: Chat, argument: str) -> None:
    presets, (name, _, text) = chat.state.presets, argument.partition(" ")
    if text := text.strip():
        told = await asyncio.to_thread(presets.save, name, "" if text == "off" else text)
        said = f"/preset {name} {'is forgotten' if text == 'off' else 'uses it from now on'}."
        await chat.notice(said, told) if told else chat.notify(said)
        return
    known = presets.load()
    if name in known:
        await system(chat, known[name])
    else:
        names = ", ".join(known) or "none yet"
        await chat.notice(f"Presets: {names}.", "/preset NAME uses one, /preset NAME TEXT keeps one")


async def set_value(chat: Chat, argument: str, *, field: str, unset: str = "default") -> None:
    """Set an option of replies, unset it with the word for that, or without an argument show its value."""
    label = field.replace("_", "-")
    if argument:
        _set(chat, **{field: None if argument in (unset, "default") else _read(field, label, argument)})
    value = chat.state.engine.settings.get(field)
    shown = f"{value:g}" if isinstance(value, float) else value
    chat.notify(f"{label} is {f'{REPLY[field].default} (default)' if value is None else shown}.")


def _read(field: str, label: str, text: str) -> Any:  # noqa: ANN401 - of the field
    with suppress(ValueError):
        if REPLY[field].admits(value := REPLY[field].read(text)):
            return value
    raise Refusal(f"{label} takes {REPLY[field].expected}.")


def _set(chat: Chat, **changes: Any) -> None:  # noqa: ANN401 - options of replies; None: the default
    settings = {**chat.state.engine.settings, **changes}
    chat.state.engine.settings = {name: value for name, value in settings.items() if value is not None}
    chat.refresh_state()


async def set_as_ollama(chat: Chat, argument: str) -> None:
    """`/set parameter num_predict 50` and `/set system ...` are /max-tokens and /system here."""
    name, _, value = argument.removeprefix("parameter ").strip().partition(" ")
    name = {"temperature": "temp", "num_predict": "max-tokens"}.get(name, name.replace("_", "-"))
    settable = {command.name: command for command in COMMANDS if command.area == "sampling"}
    settable |= {known.name: known for known in COMMANDS if known.name in ("system", "depth")}
    if name not in settable:
        raise Refusal(f"/set takes a value and one of {', '.join(settable)}.")
    await settable[name].run(chat, value.strip())


async def show_settings(chat: Chat, _argument: str) -> None:
    engine, prompt = chat.state.engine, chat.state.conversation.journal.system
    settings = ", ".join(f"{name} {value}" for name, value in engine.settings.items()) or "all by default"
    await chat.notice(
        f"Pair: {engine.pair_name}. Settings: {settings}.", f"System prompt: {prompt or 'none'}"
    )


async def inspector(chat: Chat, _argument: str) -> None:
    shown = not chat.state.preferences.inspector
    chat.state.prefer(inspector=shown)
    chat.show_inspector(shown)


async def tokens(chat: Chat, argument: str) -> None:
    shown = _on_or_off("/tokens", argument, chat.state.preferences.colours)
    chat.state.prefer(colours=shown)
    await chat.show_origins(shown)
    chat.notify(f"Colours for who wrote which word are {'on' if shown else 'off'}.")


def _on_or_off(command: str, argument: str, now: bool) -> bool:
    """The wanted state, without an argument the other one. Raises Refusal."""
    if argument not in ("on", "off", ""):
        raise Refusal(f"{command} takes on or off.")
    return argument == "on" or (not argument and not now)


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    area: str  # groups the help page
    help: str
    run: Run
    key: str = ""
    argument: str = ""  # how the help page names it
    footer: str = ""  # the word in the bottom line; "" keeps it out of there
    idle: bool = False  # only while no reply runs
    aliases: tuple[str, ...] = ()  # what other programs call it

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
    Command("version", "chat", "Show another version of the last reply",
            version, "f5", "[N]", idle=True),
    Command("edit", "chat", "Change your last message, or the one before", edit, "f8", "[N]", idle=True),
    Command("continue", "chat", "Continue a reply that was cut", go_on, idle=True),
    Command("prefill", "chat", "Say what the next reply begins with", prefill, argument="[text]"),
    Command("system", "chat", "Set the system prompt; without text, show it",
            system, argument="[text|off]"),
    Command("preset", "chat", "Use a system prompt by name, or keep one",
            preset, argument="[name] [text|off]"),
    Command("thinking", "chat", "Fold or unfold the reasoning of replies",
            thinking, "ctrl+t"),
    Command("pair", "models", "Choose, fetch or switch the pair",
            pair, "ctrl+o", "[name|file]", "models", idle=True, aliases=("model", "models")),
    Command("pull", "models", "Fetch the files of a pair", pull, argument="[name]"),
    Command("restart", "models", "Restart the engine with the same pair", restart),
    Command("draft", "speculation", "Turn drafting on or off", draft, "f4", "[on|off]"),
    Command("depth", "speculation", "Set how many tokens are drafted in a cycle",
            partial(set_value, field="depth"), argument="auto|N"),
    Command("compare", "speculation", "Race the last prompt with and without drafting",
            compare, "f9", "[T]", idle=True),
    Command("share", "speculation", "Draw the last race or reply as SVG", share, argument="[file]", idle=True),
    Command("stats", "speculation", "Show or hide the numbers of the last reply", inspector, "f3", footer="stats"),
    Command("tokens", "speculation", "Show or hide who wrote which word",
            tokens, "f2", "[on|off]", "colours"),
    _sampling("temp", "Set the temperature; 0 is greedy", "[T]", "temperature"),
    _sampling("top-k", "Keep the K likeliest tokens; 0 keeps all", "[K]", "top_k"),
    _sampling("top-p", "Keep the likeliest tokens that make up P", "[P]", "top_p"),
    _sampling("min-p", "Drop tokens below P times the likeliest", "[P]", "min_p"),
    _sampling("seed", "Fix the seed, or make it random again", "[N|random]", "seed", "random"),
    _sampling("max-tokens", "Limit the length of replies", "[N|off]", "max_tokens", "off"),
    Command("load", "conversations", "Open an earlier conversation",
            load, "ctrl+s", "[name]", "chats", idle=True, aliases=("resume",)),
    Command("rename", "conversations", "Give the conversation a title", rename, argument="[title]"),
    Command("branch", "conversations", "Continue in a copy of it, or of its first N messages",
            branch, argument="[N]", idle=True),
    Command("export", "conversations", "Write the conversation as Markdown",
            export, argument="[file]", idle=True, aliases=("save",)),
    Command("copy", "conversations", "Copy the last reply, or its code",
            copy, argument="[code [N]]"),
    Command("theme", "program", "Choose colours", lambda chat, name: chat.theme(name), argument="[name]"),
    Command("help", "program", "Keys, commands, and where files live",
            lambda chat, _: chat.show_help(), "f1", footer="help", aliases=("?",)),
    Command("quit", "program", "Leave; the conversation is saved", lambda chat, _: chat.quit(), "ctrl+q",
            aliases=("exit", "bye")),
)
# fmt: on
# Words of other programs; no menu lists them.
UNLISTED: Final = (
    Command("set", "sampling", "", set_as_ollama),
    Command("show", "sampling", "", show_settings),
)

BUSY: Final = "A reply is running. Esc stops it."
_TYPED: Final = re.compile(r"/(\?|[a-z][a-z-]*)(?:\s+(.*))?$", re.DOTALL)


def parse(text: str) -> tuple[str, str] | None:
    """The name and the argument when the text begins with a slash and a word; any other slash is text."""
    found = _TYPED.match(text)
    return (found[1], (found[2] or "").strip()) if found else None


def typed_path(text: str) -> str | None:
    """What is typed of the path that a command takes; None without one."""
    name, space, typed = text.removeprefix("/").partition(" ")
    command = find(name) if space and text.startswith("/") else None
    return typed.lstrip() if command and "file" in command.argument else None


def matching(start: str) -> tuple[Command, ...]:
    """Commands whose name begins with the text, then those that contain it; none for an unlisted one."""
    if any(start == command.name for command in UNLISTED):
        return ()
    first = [command for command in COMMANDS if command.begins_with(start)]
    return (*first, *(command for command in COMMANDS if start in command.name and command not in first))


def find(name: str) -> Command | None:
    """The command of that name, or the only one that begins so."""
    exact = [command for command in (*COMMANDS, *UNLISTED) if name in (command.name, *command.aliases)]
    found = exact or [command for command in COMMANDS if command.begins_with(name)]
    return found[0] if len(found) == 1 else None


async def run(chat: Chat, name: str, argument: str = "") -> bool:
    """Run the command of that name, whichever way it was asked for; whether it ran."""
    command = find(name)
    if command is None:
        chat.notify(unknown(name), severity="warning")
    elif command.idle and chat.state.engine.busy:
        chat.notify(BUSY)
    else:
        return await chat.attempt(command.run, argument)
    return False


def unknown(name: str) -> str:
    """The message for an unknown or ambiguous command."""
    near = [command.name for command in COMMANDS if command.begins_with(name)]
    near = near or difflib.get_close_matches(name, [command.name for command in COMMANDS])
    names = ", ".join(f"/{other}" for other in near)
    known = f"Near it: {names}." if near else "/help shows what there is."
    return f"There is no command /{name}. {known} A space before the slash sends it as text."
