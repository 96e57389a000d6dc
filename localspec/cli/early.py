"""The engine process of `localspec run`, started before the arguments are read: it imports beside that."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localspec.engine.client import EngineProcess

_engine: "EngineProcess | None" = None


def begin(arguments: Sequence[str]) -> None:
    """Start the process if these arguments will need it."""
    global _engine
    answers = bool(arguments) and (arguments[0] == "run" or " " in arguments[0].strip())
    if answers and not {"-h", "--help"} & set(arguments):
        from localspec.engine.client import EngineProcess

        _engine = EngineProcess()
        _engine.start()


def take() -> "EngineProcess | None":
    """The process, for whoever ends it; None where none was started."""
    global _engine
    taken, _engine = _engine, None
    return taken


def end() -> None:
    """End a process that nobody took."""
    if (engine := take()) is not None:
        engine.close()
