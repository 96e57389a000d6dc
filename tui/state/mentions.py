"""Attach the files that a message mentions as @path. Other mentions stay text."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from localspec.errors import BadSetting
from localspec.files import expanded, with_files

_MENTION: Final = re.compile(r'(?<!\S)@(?:"(?P<quoted>[^"\n]+)"|(?P<plain>\S+))')
_TYPING: Final = re.compile(r'(?:^|\s)@(?P<start>"[^"\n]*|[^\s"]*)$')
_AFTER_A_WORD: Final = ".,;:!?)]}'"
_A_FILE: Final = re.compile(  # only these endings make a word a file name, because @app.route is code
    r".*\.(c|cc|cfg|cpp|css|csv|go|h|html|ini|java|js|json|log|md|pdf|png|py|rs|rst|sh|sql|tex|toml|ts|txt|xml|ya?ml)"
)


def with_mentioned(text: str, words: bool = True) -> str:
    """Attach the mentioned files to a message. Raises BadSetting for a missing or binary file.

    `words`: whether an @word without a file ending stays plain text. In a message of several lines it always does.
    """
    return with_files(text, dict.fromkeys(_files(text, words or "\n" in text)))


def typed_mention(before_cursor: str) -> str | None:
    """Return the path of an @path that ends at the cursor; None if there is none."""
    found = _TYPING.search(before_cursor)
    return found["start"] if found else None


def completions(start: str) -> list[str]:
    """Return mentions of the files and folders whose path begins with `start`, folders first."""
    start = start.lstrip('"')
    folder, _, name = start.rpartition("/")
    try:
        inside = expanded(folder or ("/" if "/" in start else ".")).iterdir()
        entries = sorted((not entry.is_dir(), entry.name + "/" * entry.is_dir()) for entry in inside)
    except (OSError, ValueError, BadSetting):
        return []
    prefix = start[: len(start) - len(name)]
    found = [entry for _, entry in entries if entry.startswith(name) and (name or not entry.startswith("."))]
    return [_mention(prefix + entry) for entry in found[:50]]


def _mention(path: str) -> str:
    """Return the mention of a path, in quotes if the path has a space. A folder has no closing quote yet."""
    if " " not in path:
        return f"@{path}"
    return f'@"{path}' + ("" if path.endswith("/") else '"')


def _files(text: str, words: bool) -> Iterator[Path]:
    for match in _MENTION.finditer(text):
        plain = match["plain"] or ""
        for word in [match["quoted"]] if match["quoted"] else [plain, plain.rstrip(_AFTER_A_WORD)]:
            try:
                path = expanded(word)
                if path.is_file():
                    yield path
                    break
            except (OSError, ValueError, BadSetting):
                continue
        else:
            is_file = _A_FILE.fullmatch(word)
            if is_file or not words:
                hint = "correct the path, or leave out the @" if is_file else "press Enter to send it as text"
                raise BadSetting(f"there is no file {word}", hint=hint)
