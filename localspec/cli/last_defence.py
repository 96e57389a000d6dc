"""Unexpected errors: a sentence for errors of the system, and also a report file for our own."""

import os
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import localspec
from localspec.errors import LocalspecError
from localspec.options import data_dir


def refused_by_system(error: OSError) -> LocalspecError:
    """The sentence for an error of the system that names a file, or none."""
    what = f"{error.filename} cannot be used" if error.filename is not None else "the system refuses"
    return LocalspecError(
        f"{what}: {error.strerror or error}",
        hint="check its permissions and the room on the disk, or set LOCALSPEC_HOME",
    )


def reported(error: Exception, arguments: Sequence[str]) -> LocalspecError:
    """The sentence for any other error, after a report has been written."""
    said = " ".join(str(error).split())[:200]
    try:
        hint = (
            f"send {_write_report(error, arguments)} along when you report it; it has no prompts and no keys"
        )
    except (OSError, LocalspecError):
        hint = "no report could be written: make room, or set LOCALSPEC_HOME to another folder"
    return LocalspecError(
        f"localspec made a mistake: {type(error).__name__}{': ' * bool(said)}{said}", hint=hint
    )


def _write_report(error: Exception, arguments: Sequence[str]) -> Path:
    folder = data_dir() / "reports"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = f"localspec-{time.strftime('%Y%m%d-%H%M%S')}-"
    handle, path = tempfile.mkstemp(prefix=name, suffix=".txt", dir=folder)  # its owner's only
    os.close(handle)
    lines = [_versions(), " ".join(["localspec", *_named(arguments)]), *_stacks(error)]
    Path(path).write_text("\n".join(lines), "utf-8", "replace")
    return Path(path)


def _versions() -> str:
    try:
        binding = version("llama-cpp-python")
    except PackageNotFoundError:
        binding = "not installed"
    return (
        f"localspec {localspec.__version__}, llama-cpp-python {binding}, Python {sys.version.split()[0]}, "
        f"{platform.platform()}"
    )


def _named(arguments: Sequence[str]) -> Iterator[str]:
    """The command and the names of its options: a value may be a prompt or a key."""
    for index, word in enumerate(arguments):
        if word.startswith("-"):
            yield word.partition("=")[0] if word.startswith("--") else word[:2]
        elif index == 0 and word.isalpha():
            yield word


def _stacks(error: BaseException | None) -> Iterator[str]:
    """The lines of code of an error and of those before it, without their messages, which may hold a prompt."""
    while error is not None:
        yield f"{type(error).__name__}, raised in\n{''.join(traceback.format_tb(error.__traceback__))}"
        error = error.__cause__ or error.__context__
