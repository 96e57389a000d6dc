"""Takes out of texts what is nobody else's business: keys, passwords in addresses, what was asked."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence

SECRET_VARIABLES = ("HF_TOKEN", "LOCALSPEC_API_KEY")
_HIDDEN = "..."
_USERINFO = re.compile(r"(?<=//)[^/@\s]+@")  # user:password@
_PROMPTED = ("run", "compare")  # what stands in their lines without an option is a prompt, or may be one
# Options whose values say what was done and nothing about the user. Every other value is hidden.
_SHOWN = frozenset(
    {
        *("-m", "--pair", "--target", "--draft", "--context", "--gpu-layers", "--kv-type", "--device"),
        *("--split", "--cpu-moe", "--draft-device", "--flash-attn", "--threads", "--temperature", "--top-k"),
        *("--top-p", "--min-p", "--repeat-penalty", "--presence-penalty", "--frequency-penalty", "--seed"),
        *("--rule", "-n", "--max-tokens", "--depth", "--depths", "--runs", "--seconds", "--only", "--theme"),
        *("--host", "--port", "--trim", "--layers", "--answers", "--visits"),
    }
)


def without_userinfo(text: str) -> str:
    """Addresses without the name and the password before the host."""
    return _USERINFO.sub(f"{_HIDDEN}@", text)


def without_secrets(text: str, arguments: Sequence[str]) -> str:
    """A text without the hidden values of a command line, keys of the environment and passwords in addresses."""
    for value in sorted({*_hidden(arguments), *_keys()}, key=len, reverse=True):
        for spelled in {value, repr(value)[1:-1]}:
            text = re.sub(rf"(?<!\w){re.escape(spelled)}(?!\w)", lambda _: _HIDDEN, text)
    return without_userinfo(text)


def shown_line(arguments: Sequence[str]) -> Iterator[str]:
    """A command line, with dots in place of what is hidden."""
    hidden = list(_marked(arguments))
    for word, secret in zip(arguments, hidden, strict=True):
        if secret:
            yield f"{word[: -len(secret)]}{_HIDDEN}"
        else:
            yield without_userinfo(word)


def _hidden(arguments: Sequence[str]) -> Iterable[str]:
    return filter(None, _marked(arguments))


def _keys() -> Iterable[str]:
    return filter(None, map(os.environ.get, SECRET_VARIABLES))


def _marked(arguments: Sequence[str]) -> Iterator[str]:
    """Of each word the end that is hidden, "" for nothing."""
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
