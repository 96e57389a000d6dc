"""Start the engine process. This module imports little, because it runs before all heavy imports."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from localspec.machine.children import environment_of_child

if TYPE_CHECKING:
    import subprocess

# -P: Python imports nothing from the working directory.
COMMAND = (sys.executable, "-P", "-m", "localspec.engine.server")

_early: "subprocess.Popen[bytes] | None" = None


def spawn(command: Sequence[str] = COMMAND) -> "subprocess.Popen[bytes]":
    import subprocess  # imported late, because most commands need no engine

    # A process in a group of its own gets no Ctrl-C or hang-up of the terminal. It ends when stdin closes.
    own_group: dict[str, Any] = {"start_new_session": True}
    if sys.platform == "win32":
        own_group = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW}
    pipe = subprocess.PIPE
    environment = environment_of_child(PYTHONUNBUFFERED="1")
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, **own_group)


def start_early(arguments: Sequence[str]) -> None:
    """Start the engine process if this command needs it, so that both processes import at the same time."""
    global _early
    answers = bool(arguments) and (arguments[0] == "run" or " " in arguments[0].strip())
    if answers and not {"-h", "--help"} & set(arguments):
        with suppress(OSError):  # ignore the error, because the next start reports it
            _early = spawn()


def take_early() -> "subprocess.Popen[bytes] | None":
    global _early
    taken, _early = _early, None
    return taken
