"""The system's clipboard, for terminals that ignore the escape sequence for copying, OSC 52."""

import os
import subprocess
import sys
from typing import Final

from localspec.files import program

WAIT_SECONDS: Final = 2.0


def command() -> list[str] | None:
    """Return the command that copies its stdin to the clipboard; None on a machine without such a command."""
    candidates = (
        (sys.platform == "darwin", "pbcopy"),
        (os.environ.get("WAYLAND_DISPLAY"), "wl-copy"),
        (os.environ.get("DISPLAY"), "xclip -selection clipboard"),
        (sys.platform == "win32" or os.environ.get("WSL_DISTRO_NAME"), "clip.exe"),
        # The chat also copies by the escape sequence OSC 52, but tmux may ignore this sequence.
        (os.environ.get("TMUX"), "tmux load-buffer -w -"),
    )
    for fits, words in candidates:
        name, *options = words.split()
        if fits and (path := program(name)):
            return [path, *options]
    return None


def copy(text: str) -> bool:
    """Copy a text and wait for the copying program; return whether the program succeeded."""
    if (arguments := command()) is None:
        return False
    given = text.encode("utf-16" if arguments[0].endswith("clip.exe") else "utf-8", "replace")
    nowhere = subprocess.DEVNULL
    try:
        subprocess.run(
            arguments, input=given, stdout=nowhere, stderr=nowhere, timeout=WAIT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return True
