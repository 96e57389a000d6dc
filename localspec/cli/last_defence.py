"""What no command foresaw: a sentence for what the system refuses, a sentence and a report file for our mistakes."""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import localspec
from localspec.cli.masks import shown_line, without_secrets
from localspec.errors import LocalspecError


def refused_by_system(error: OSError) -> LocalspecError:
    """The sentence for an error of the system that names a file, or none."""
    what = f"{error.filename} cannot be used" if error.filename is not None else "the system refuses"
    return LocalspecError(
        f"{what}: {error.strerror or error}", hint="check the path, its permissions and the room on the disk"
    )


def reported(error: Exception, arguments: Sequence[str]) -> LocalspecError:
    """The sentence for any other error, after a report has been written."""
    path = _write_report(error, arguments)
    said = " ".join(without_secrets(str(error), arguments).split())[:200]
    return LocalspecError(
        f"localspec made a mistake: {type(error).__name__}{': ' * bool(said)}{said}",
        hint=f"send {path} along when you report it; it holds the command line without keys and prompts"
        if path
        else "no report could be written: make room, or set LOCALSPEC_HOME to another folder",
    )


def _write_report(error: Exception, arguments: Sequence[str]) -> Path | None:
    import tempfile
    import traceback

    told = without_secrets("".join(traceback.format_exception(error)), arguments)
    text = f"{_about_this(arguments)}\n{told}"
    name = f"localspec-{time.strftime('%Y%m%d-%H%M%S')}-"
    for folder in (_reports, lambda: None):
        try:
            handle, path = tempfile.mkstemp(prefix=name, suffix=".txt", dir=folder())
            os.close(handle)
            Path(path).write_text(text, "utf-8", "replace")
            return Path(path)
        except (OSError, LocalspecError):  # no home that can be written: the system's temporary folder
            continue
    return None


def _reports() -> Path:
    from localspec.settings import data_dir

    folder = data_dir() / "reports"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _about_this(arguments: Sequence[str]) -> str:
    import platform
    import shlex
    from importlib.metadata import PackageNotFoundError, version

    try:
        binding = version("llama-cpp-python")
    except PackageNotFoundError:
        binding = "not installed"
    return (
        f"localspec {localspec.__version__}, llama-cpp-python {binding}, Python {sys.version.split()[0]}, "
        f"{platform.platform()}\nlocalspec {shlex.join(shown_line(arguments))}\n"
    )
