"""The one table of commands: slash menu, palette, key bindings, footer and help page are views of it."""

import difflib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from . import actions

if TYPE_CHECKING:
    from .screens.chat import ChatScreen


@dataclass(frozen=True, slots=True)
class Command:
    """Something the person can ask for, by name, key or palette."""

    name: str
    area: str  # groups the palette and the help page
    help: str
    run: "Callable[[ChatScreen, str], Awaitable[None]]"
    key: str = ""
    argument: str = ""  # how the help page names it
    footer: str = ""  # the word in the bottom line; "" keeps it out of there

    @property
    def usage(self) -> str:
        return f"{self.name} {self.argument}".rstrip()

    @property
    def key_label(self) -> str:
        return self.key.replace("ctrl+", "^").replace("escape", "esc")

    @property
    def action(self) -> str:
        """The Textual action that runs it."""
        return f"command('{self.name}')"


COMMANDS: Final = (
    Command("stop", "chat", "Stop the reply and keep its text", actions.stop, "escape", footer="stop"),
    Command("new", "chat", "Start a new conversation", actions.new, "ctrl+n", footer="new"),
    Command(
        "retry", "chat", "Generate another reply; this one is kept", actions.retry, "ctrl+r", footer="retry"
    ),
    Command("version", "chat", "Show another version of the last reply", actions.version, "f5", "[N]"),
    Command("edit", "chat", "Change the last message and ask again", actions.edit, "f8"),
    Command(
        "system",
        "chat",
        "Set the system prompt; without text, show it",
        actions.system,
        argument="[text|off]",
    ),
    Command("thinking", "chat", "Fold or unfold the reasoning of replies", actions.thinking, "ctrl+t"),
    Command("pair", "models", "Choose, fetch or switch the pair", actions.pair, "ctrl+o", "[name]", "models"),
    Command("pull", "models", "Fetch the files of a pair", actions.pull, argument="[name]"),
    Command("restart", "models", "Restart the engine with the same pair", actions.restart),
    Command("draft", "speculation", "Turn drafting on or off", actions.draft, "f4", "[on|off]"),
    Command(
        "depth", "speculation", "Set how many tokens are drafted in a cycle", actions.depth, argument="auto|N"
    ),
    Command("compare", "speculation", "Run the last prompt with and without drafting", actions.compare, "f9"),
    Command("stats", "speculation", "Show or hide the inspector", actions.inspector, "f3", footer="inspect"),
    Command(
        "tokens",
        "speculation",
        "Show token origins: off, subtle, strong",
        actions.tokens,
        "f2",
        "[off|subtle|strong]",
    ),
    Command("temp", "sampling", "Set the temperature; 0 is greedy", actions.temperature, argument="[T]"),
    Command("top-k", "sampling", "Keep the K likeliest tokens; 0 keeps all", actions.top_k, argument="[K]"),
    Command("top-p", "sampling", "Keep the likeliest tokens that make up P", actions.top_p, argument="[P]"),
    Command("min-p", "sampling", "Drop tokens below P times the likeliest", actions.min_p, argument="[P]"),
    Command("seed", "sampling", "Fix the seed, or make it random again", actions.seed, argument="[N|random]"),
    Command("max-tokens", "sampling", "Limit the length of replies", actions.max_tokens, argument="[N|off]"),
    Command(
        "load", "conversations", "Open an earlier conversation", actions.load, "ctrl+s", "[name]", "sessions"
    ),
    Command(
        "export", "conversations", "Write the conversation as Markdown", actions.export, argument="[file]"
    ),
    Command(
        "copy",
        "conversations",
        "Copy the last reply, or its last code block",
        actions.copy,
        argument="[code]",
    ),
    Command("theme", "program", "Choose colours", actions.theme, argument="[name]"),
    Command(
        "help", "program", "Keys, commands, and where files live", actions.help_page, "f1", footer="help"
    ),
    Command("quit", "program", "Leave; the conversation is saved", actions.leave, "ctrl+q"),
)

_TYPED: Final = re.compile(r"/([a-z][a-z-]*)(?:\s+(.*))?$", re.DOTALL)


def parse(text: str) -> tuple[str, str] | None:
    """The name and the argument when the text begins with a slash and a word; any other slash is text."""
    found = _TYPED.match(text)
    return (found[1], (found[2] or "").strip()) if found else None


def matching(start: str) -> tuple[Command, ...]:
    """Commands whose name begins so, then those that contain it."""
    first = [command for command in COMMANDS if command.name.startswith(start)]
    return (*first, *(command for command in COMMANDS if start in command.name and command not in first))


def find(name: str) -> Command | None:
    """The command of that name, or the only one that begins so."""
    exact = [command for command in COMMANDS if command.name == name]
    found = exact or [command for command in COMMANDS if command.name.startswith(name)]
    return found[0] if len(found) == 1 else None


def unknown(name: str) -> str:
    """What to say when no command has that name, or several begin so."""
    near = [command.name for command in COMMANDS if command.name.startswith(name)]
    near = near or difflib.get_close_matches(name, [command.name for command in COMMANDS])
    names = ", ".join(f"/{other}" for other in near)
    known = f"Near it: {names}." if near else "F1 shows what there is."
    return f"There is no command /{name}. {known} A space before the slash sends it as text."
