"""Starts the engine process before anything else is imported: this file imports little."""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

COMMAND = (sys.executable, "-P", "-m", "localspec.engine")  # -P: never import from the working directory

_early: "subprocess.Popen[bytes] | None" = None


def spawn(command: Sequence[str] = COMMAND) -> "subprocess.Popen[bytes]":
    """The process with its three pipes. Raises OSError."""
    # Its own group: Ctrl+C and the terminal's hang-up go to the client, and the engine ends when its stdin does.
    own_group: dict[str, Any] = {"start_new_session": True}
    if sys.platform == "win32":
        own_group = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW}
    pipe = subprocess.PIPE
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, **own_group)


def start_early(arguments: Sequence[str]) -> None:
    """Start the process if a command line will need it: it imports while the line is read."""
    global _early
    answers = bool(arguments) and (arguments[0] == "run" or " " in arguments[0].strip())
    if answers and not {"-h", "--help"} & set(arguments):
        with suppress(OSError):  # whoever needs the process tries again, and says so
            _early = spawn()


def take_early() -> "subprocess.Popen[bytes] | None":
    """The engine process that was started early; None without one."""
    global _early
    taken, _early = _early, None
    return taken
