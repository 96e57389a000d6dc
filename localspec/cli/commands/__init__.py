"""The list of commands, in the order of `localspec --help`; each but `help` is a module here."""

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

NAMES = (
    *("run", "chat", "serve", "pull", "pairs", "info", "list", "rm", "bench", "verify", "tune", "fit"),
    *("doctor", "config", "completion"),
)
SUCCESSORS = {
    "compare": "bench PROMPT",
    "forget": "rm --replies",
    "outdated": "list --outdated",
    "prune": "rm --unused",
}


def modules(name: str) -> Iterator[ModuleType]:
    """The module of the command of that name alone, as importing all of them takes time; else all."""
    for known in (name,) if name in NAMES else NAMES:
        yield import_module(f"{__name__}.{known}")
