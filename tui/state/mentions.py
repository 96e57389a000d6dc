"""Attach the files that a message mentions as @path. Other words with @ stay text."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from localspec.conversations.conversations import StoredMessage
from localspec.errors import BadSetting
from localspec.files import expanded, with_files
from localspec.prompt.images import PLACE, Image, image_of
from localspec.prompt.messages import with_images

_MENTION: Final = re.compile(r'(?<!\S)@(?:"(?P<quoted>[^"\n]+)"|(?P<plain>\S+))')
_TYPING: Final = re.compile(r'(?:^|\s)@(?P<start>"[^"\n]*|[^\s"]*)$')
IMAGE: Final = re.compile(r".*\.(png|jpe?g|gif|bmp|ppm|pgm|webp)", re.IGNORECASE)
_LONGEST_PATH: Final = 4096  # characters; a longer text cannot be a path
_AFTER_A_WORD: Final = ".,;:!?)]}'"
_A_FILE: Final = re.compile(  # a file name has one of these endings, because @app.route is code
    r".*\.(c|cc|cfg|cpp|css|csv|go|h|html|ini|java|jpe?g|js|json|log|md|pdf|png|py|rs|rst|sh|sql|tex|toml|ts|txt|xml|ya?ml)"
)


def with_mentioned(text: str, words: bool = True, images: Sequence[Image] = ()) -> StoredMessage:
    """Return a message with the mentioned files and images. Raises BadSetting for a missing or binary file.

    `images`: images that have a place in the text, or that come before it. `words`: whether an @word without the ending
    of a file stays plain text. In a message of several lines it always stays.
    """
    files = dict.fromkeys(_files(text, words or "\n" in text))
    text, given, found = with_images(text, images).content, iter(images), list[Image]()

    def placed(match: re.Match[str]) -> str:
        path = next(_files(match[0], words=True), None) if match[0] != PLACE else None
        if match[0] != PLACE and (path is None or not IMAGE.fullmatch(path.name)):
            return match[0]
        found.append(image_of(path) if path else next(given))
        return PLACE

    if images or any(IMAGE.fullmatch(path.name) for path in files):
        text = re.sub(
            f"{PLACE}|{_MENTION.pattern}", placed, text if images else text.replace(PLACE, "\ufffd")
        )
    texts = [path for path in files if not IMAGE.fullmatch(path.name)]
    return StoredMessage("user", with_files(text, texts), images=tuple(found))


def pasted(text: str) -> str | None:
    """Return the mention of an image whose path was pasted or dropped; None for another text."""
    if len(text) > _LONGEST_PATH:
        return None
    path = unquote(text.strip().strip("'\"").removeprefix("file://").replace("\\ ", " "))
    try:
        return _mention(path) + " " if IMAGE.fullmatch(path) and expanded(path).is_file() else None
    except (OSError, ValueError, BadSetting):
        return None


def typed_mention(before_cursor: str) -> str | None:
    """Return the path of an @path that ends at the cursor; None if there is none."""
    found = _TYPING.search(before_cursor, max(0, len(before_cursor) - _LONGEST_PATH))
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
    """Return the mention of a path, in quotes if it has a space. A folder's quote stays open for more of the path."""
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
