"""Files that a message mentions as @path are attached; other mentions are text."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from localspec.errors import BadSetting
from localspec.files import expanded, with_files

MOST_OFFERED: Final = 50
_MENTION: Final = re.compile(r'(?<!\S)@(?:"(?P<quoted>[^"\n]+)"|(?P<plain>\S+))')
_TYPING: Final = re.compile(r'(?:^|\s)@(?P<start>"[^"\n]*|[^\s"]*)$')
_AFTER_A_WORD: Final = ".,;:!?)]}'"
_A_FILE: Final = re.compile(  # other words with dots are code, for example @app.route
    r".*\.(c|cc|cfg|cpp|css|csv|go|h|html|ini|java|js|json|log|md|pdf|png|py|rs|rst|sh|sql|tex|toml|ts|txt|xml|ya?ml)"
)


def with_mentioned(text: str, words: bool = True) -> str:
    """The message and the files that it mentions. Raises BadSetting for a file that is missing or no text.

    A word behind @ that looks like no file may be text. Without `words` it may in several lines only, as in code.
    """
    return with_files(text, dict.fromkeys(_files(text, words or "\n" in text)))


def typed_mention(before_cursor: str) -> str | None:
    """The typed part of a mention before the cursor; None without one."""
    found = _TYPING.search(before_cursor)
    return found["start"] if found else None


def completions(start: str) -> list[str]:
    """Mentions of the files and folders whose path begins so."""
    return [_mention(path) for path in paths(start.lstrip('"'))]


def paths(start: str) -> list[str]:
    """The files and folders whose path begins so, folders first."""
    folder, _, name = start.rpartition("/")
    try:
        inside = expanded(folder or ("/" if "/" in start else ".")).iterdir()
        entries = sorted((not entry.is_dir(), entry.name + "/" * entry.is_dir()) for entry in inside)
    except (OSError, ValueError, BadSetting):
        return []
    prefix = start[: len(start) - len(name)]
    found = [entry for _, entry in entries if entry.startswith(name) and (name or not entry.startswith("."))]
    return [prefix + entry for entry in found[:MOST_OFFERED]]


def _mention(path: str) -> str:
    """An open quote stays open behind a folder, as its files are named next."""
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
                hint = "correct the path, or leave out the @" if is_file else "Enter again sends it as text"
                raise BadSetting(f"there is no file {word}", hint=hint)
