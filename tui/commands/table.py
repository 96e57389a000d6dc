"""The one table of commands: slash menu, palette, key bindings, footer and help page are views of it."""

import difflib
import re
from dataclasses import dataclass
from functools import partial
from typing import Final

from . import conversations, engine, settings
from .chat import Chat, Run
from .settings import set_value


@dataclass(frozen=True, slots=True)
class Command:
    """A command, by name, key or palette."""

    name: str
    area: str  # groups the palette and the help page
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
    Command("new", "chat", "Start a new conversation", conversations.new, "ctrl+n", footer="new", idle=True,
            aliases=("clear", "reset")),
    Command("retry", "chat", "Generate another reply; this one is kept",
            conversations.retry, "ctrl+r", footer="retry", idle=True),
    Command("version", "chat", "Show another version of the last reply",
            conversations.version, "f5", "[N]", idle=True),
    Command("edit", "chat", "Change your last message, or the one before", conversations.edit, "f8", "[N]", idle=True),
    Command("continue", "chat", "Continue a reply that was cut", conversations.go_on, idle=True),
    Command("prefill", "chat", "Say what the next reply begins with", conversations.prefill, argument="[text]"),
    Command("system", "chat", "Set the system prompt; without text, show it",
            conversations.system, argument="[text|off]"),
    Command("preset", "chat", "Use a system prompt by name, or keep one",
            settings.preset, argument="[name] [text|off]"),
    Command("thinking", "chat", "Fold or unfold the reasoning of replies",
            lambda chat, _: chat.toggle_thinking(), "ctrl+t"),
    Command("pair", "models", "Choose, fetch or switch the pair",
            engine.pair, "ctrl+o", "[name]", "models", idle=True, aliases=("model", "models")),
    Command("pull", "models", "Fetch the files of a pair", engine.pull, argument="[name]"),
    Command("restart", "models", "Restart the engine with the same pair", engine.restart),
    Command("draft", "speculation", "Turn drafting on or off", settings.draft, "f4", "[on|off]"),
    Command("depth", "speculation", "Set how many tokens are drafted in a cycle",
            partial(set_value, field="depth"), argument="auto|N"),
    Command("compare", "speculation", "Run the last prompt with and without drafting",
            conversations.compare, "f9", idle=True),
    Command("stats", "speculation", "Show or hide the inspector", settings.inspector, "f3", footer="inspect"),
    Command("tokens", "speculation", "Show token origins: off, subtle, strong",
            settings.tokens, "f2", "[off|subtle|strong]"),
    _sampling("temp", "Set the temperature; 0 is greedy", "[T]", "temperature"),
    _sampling("top-k", "Keep the K likeliest tokens; 0 keeps all", "[K]", "top_k"),
    _sampling("top-p", "Keep the likeliest tokens that make up P", "[P]", "top_p"),
    _sampling("min-p", "Drop tokens below P times the likeliest", "[P]", "min_p"),
    _sampling("seed", "Fix the seed, or make it random again", "[N|random]", "seed", "random"),
    _sampling("max-tokens", "Limit the length of replies", "[N|off]", "max_tokens", "off"),
    Command("load", "conversations", "Open an earlier conversation",
            conversations.load, "ctrl+s", "[name]", "sessions", idle=True),
    Command("rename", "conversations", "Give the conversation a title", conversations.rename, argument="[title]"),
    Command("branch", "conversations", "Go on in a copy of it, or of its first N messages",
            conversations.branch, argument="[N]", idle=True),
    Command("export", "conversations", "Write the conversation as Markdown",
            conversations.export, argument="[file]", idle=True, aliases=("save",)),
    Command("copy", "conversations", "Copy the last reply, or its code",
            conversations.copy, argument="[code [N]]"),
    Command("theme", "program", "Choose colours", lambda chat, name: chat.theme(name), argument="[name]"),
    Command("help", "program", "Keys, commands, and where files live",
            lambda chat, _: chat.show_help(), "f1", footer="help"),
    Command("quit", "program", "Leave; the conversation is saved", lambda chat, _: chat.quit(), "ctrl+q",
            aliases=("exit", "bye")),
)
# fmt: on

BUSY: Final = "A reply is running. Esc stops it."
_TYPED: Final = re.compile(r"/([a-z][a-z-]*)(?:\s+(.*))?$", re.DOTALL)


def parse(text: str) -> tuple[str, str] | None:
    """The name and the argument when the text begins with a slash and a word; any other slash is text."""
    found = _TYPED.match(text)
    return (found[1], (found[2] or "").strip()) if found else None


def matching(start: str) -> tuple[Command, ...]:
    """Commands whose name begins with the text, then those that contain it."""
    first = [command for command in COMMANDS if command.begins_with(start)]
    return (*first, *(command for command in COMMANDS if start in command.name and command not in first))


def find(name: str) -> Command | None:
    """The command of that name, or the only one that begins so."""
    exact = [command for command in COMMANDS if name in (command.name, *command.aliases)]
    found = exact or [command for command in COMMANDS if command.begins_with(name)]
    return found[0] if len(found) == 1 else None


async def run(chat: Chat, name: str, argument: str = "") -> None:
    """Run the command of that name, whichever way it was asked for."""
    command = find(name)
    if command is None:
        chat.notify(unknown(name), severity="warning")
    elif command.idle and chat.state.engine.busy:
        chat.notify(BUSY)
    else:
        await chat.attempt(command.run, argument)


def unknown(name: str) -> str:
    """The message for an unknown or ambiguous command."""
    near = [command.name for command in COMMANDS if command.begins_with(name)]
    near = near or difflib.get_close_matches(name, [command.name for command in COMMANDS])
    names = ", ".join(f"/{other}" for other in near)
    known = f"Near it: {names}." if near else "F1 shows what there is."
    return f"There is no command /{name}. {known} A space before the slash sends it as text."
