"""Unexpected errors: a sentence for errors of the system, and also a report file for our own.

Neither shows keys, passwords in addresses or prompts.
"""

import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import localspec
from localspec.errors import LocalspecError

SECRET_VARIABLES = ("HF_TOKEN", "LOCALSPEC_API_KEY")
_HIDDEN = "..."
_USERINFO = re.compile(r"(?<=//)[^/@\s]+@")  # user:password@
_PROMPTED = ("run", "bench")  # what stands in their lines without an option is a prompt, or may be one
# Options whose values reveal nothing about the user. Every other value is hidden.
_SHOWN = frozenset(
    {
        *("-m", "--pair", "--target", "--draft", "--context", "--gpu-layers", "--kv-type", "--device"),
        *("--split", "--cpu-moe", "--draft-device", "--flash-attn", "--threads", "--temperature", "--top-k"),
        *("--top-p", "--min-p", "--repeat-penalty", "--presence-penalty", "--frequency-penalty", "--seed"),
        *("--rule", "-n", "--max-tokens", "--depth", "--depths", "--runs", "--seconds", "--only", "--theme"),
        *("--host", "--port", "--trim", "--layers", "--answers", "--visits"),
    }
)


def refused_by_system(error: OSError) -> LocalspecError:
    """The sentence for an error of the system that names a file, or none."""
    what = f"{error.filename} cannot be used" if error.filename is not None else "the system refuses"
    return LocalspecError(
        f"{what}: {error.strerror or error}",
        hint="check its permissions and the room on the disk, or set LOCALSPEC_HOME",
    )


def reported(error: Exception, arguments: Sequence[str]) -> LocalspecError:
    """The sentence for any other error, after a report has been written."""
    said = " ".join(without_secrets(str(error), arguments).split())[:200]
    hint = "no report could be written: make room, or set LOCALSPEC_HOME to another folder"
    if path := _write_report(error, arguments):
        hint = f"send {path} along when you report it; it holds the command line without keys and prompts"
    return LocalspecError(
        f"localspec made a mistake: {type(error).__name__}{': ' * bool(said)}{said}", hint=hint
    )


def _write_report(error: Exception, arguments: Sequence[str]) -> Path | None:
    import tempfile
    import traceback

    from localspec.options import data_dir

    told = without_secrets("".join(traceback.format_exception(error)), arguments)
    text = f"{_about_this(arguments)}\n{told}"
    name = f"localspec-{time.strftime('%Y%m%d-%H%M%S')}-"
    for at_home in (True, False):
        try:
            folder = data_dir() / "reports" if at_home else Path(tempfile.gettempdir())
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, path = tempfile.mkstemp(prefix=name, suffix=".txt", dir=folder)
            os.close(handle)
            Path(path).write_text(text, "utf-8", "replace")
            return Path(path)
        except (OSError, LocalspecError):  # no home that can be written: the system's temporary folder
            continue
    return None


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


def without_userinfo(text: str) -> str:
    """Addresses without the name and the password before the host."""
    return _USERINFO.sub(f"{_HIDDEN}@", text)


def without_secrets(text: str, arguments: Sequence[str]) -> str:
    """A text without the hidden values of a command line, keys of the environment and passwords in addresses."""
    secrets = {*_marked(arguments), *(os.environ.get(name, "") for name in SECRET_VARIABLES)} - {""}
    for value in sorted(secrets, key=len, reverse=True):
        for spelled in {value, repr(value)[1:-1]}:
            text = re.sub(rf"(?<!\w){re.escape(spelled)}(?!\w)", lambda _: _HIDDEN, text)
    return without_userinfo(text)


def shown_line(arguments: Sequence[str]) -> Iterator[str]:
    """A command line, with dots in place of what is hidden."""
    for word, secret in zip(arguments, _marked(arguments), strict=True):
        yield f"{word[: -len(secret)]}{_HIDDEN}" if secret else without_userinfo(word)


def _marked(arguments: Sequence[str]) -> Iterator[str]:
    """The hidden end of each word; "" for none."""
    before = ""
    for index, word in enumerate(arguments):
        if word.startswith("--"):
            option, _, value = word.partition("=")
            yield "" if option in _SHOWN else value
        elif word.startswith("-") and len(word) > 1:
            yield "" if word[:2] in _SHOWN else word[2:]
        elif index == 0:
            yield word if " " in word else ""  # a prompt without a command
        elif before.startswith("-"):
            yield "" if before in _SHOWN else word
        else:
            yield word if arguments[0] in _PROMPTED else ""
        before = word
