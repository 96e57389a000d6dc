"""The command palette: the command table by area and verb."""

from functools import partial

from textual.command import DiscoveryHit, Hit, Hits, Provider

from ..commands.table import COMMANDS, Command
from .screen import ChatScreen


class CommandProvider(Provider):
    """Offers every command to the palette; one that wants an argument goes into the prompt."""

    async def discover(self) -> Hits:
        for command in self._offered():
            yield DiscoveryHit(_title(command), partial(self._choose, command), help=command.help)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for command in self._offered():
            title = f"{_title(command)} · {command.help}"
            if (score := matcher.match(title)) > 0:
                yield Hit(score, matcher.highlight(title), partial(self._choose, command), help=command.help)

    def _offered(self) -> tuple[Command, ...]:
        return COMMANDS if isinstance(self.screen, ChatScreen) else ()

    async def _choose(self, command: Command) -> None:
        screen = self.screen
        assert isinstance(screen, ChatScreen)
        if command.argument and not command.argument.startswith("["):
            screen.prompt.replace_text(f"/{command.name} ")
        else:
            screen.action_command(command.name)


def _title(command: Command) -> str:
    return f"{command.area}: {command.name}"
