"""The list of commands, in the order of `localspec --help`; each is a module here."""

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

NAMES = (
    "run",
    "chat",
    "serve",
    "pull",
    "pairs",
    "info",
    "list",
    "rm",
    "prune",
    "outdated",
    "forget",
    "bench",
    "compare",
    "verify",
    "tune",
    "fit",
    "doctor",
    "config",
    "completion",
    "help",
)


def modules(name: str) -> Iterator[ModuleType]:
    """The module of the command of that name alone, as importing all of them takes time; else all."""
    for known in (name,) if name in NAMES else NAMES:
        yield import_module(f"{__name__}.{known}")
