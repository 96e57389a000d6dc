"""The system's clipboard, for terminals that refuse the sequence for it (OSC 52)."""

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

from localspec.files import program

WAIT_SECONDS: Final = 2.0


def command(platform: str = sys.platform, environ: Mapping[str, str] = os.environ) -> tuple[str, ...] | None:
    """The program that takes a text for the clipboard on its stdin; None if there is none."""
    candidates: list[tuple[str, ...]] = [("pbcopy",)] if platform == "darwin" else []
    if environ.get("WAYLAND_DISPLAY"):
        candidates.append(("wl-copy",))
    if environ.get("DISPLAY"):
        candidates += [("xclip", "-selection", "clipboard"), ("xsel", "--clipboard", "--input")]
    if platform == "win32" or environ.get("WSL_DISTRO_NAME"):
        candidates.append(("clip.exe",))
    found = ((program(name), options) for name, *options in candidates)
    return next(((path, *options) for path, options in found if path), None)


def copy(text: str) -> bool:
    """Whether a program of the system took it. Waits for that program: call it in a thread."""
    arguments = command()
    if arguments is None:
        return False
    encoding = "utf-16" if arguments[0].endswith("clip.exe") else "utf-8"
    given, nowhere = text.encode(encoding, "replace"), subprocess.DEVNULL
    try:
        subprocess.run(
            arguments, input=given, stdout=nowhere, stderr=nowhere, timeout=WAIT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return True
