"""Text files that go along with a prompt, each under its name and between fences."""

import re
from collections.abc import Iterable
from pathlib import Path

from localspec.errors import BadSetting
from localspec.files import expanded

MOST_BYTES = 8_000_000  # more text than any context holds
_FENCES = re.compile(r"^`{3,}", re.MULTILINE)


def with_files(prompt: str, paths: Iterable[str | Path]) -> str:
    """The prompt, and after it each file. Raises BadSetting for what is no text file."""
    return "\n\n".join(part for part in [prompt, *map(attached, paths)] if part.strip())


def attached(path: str | Path) -> str:
    """A text file as Markdown: its name, and its content in a code block. Raises BadSetting."""
    file = expanded(path)
    text = _text_of(file).rstrip("\n")
    fence = max(["```", *(found + "`" for found in _FENCES.findall(text))], key=len)
    return f"{file.name}:\n\n{fence}{file.suffix[1:]}\n{text}\n{fence}"


def _text_of(file: Path) -> str:
    hint = "attach a text file"
    try:
        if file.is_file() and file.stat().st_size > MOST_BYTES:
            raise BadSetting(f"{file} is too large for any context", hint="attach the part that matters")
        content = file.read_bytes()
        if b"\0" in content:
            raise BadSetting(f"{file} is no text", hint=f"{hint}; images and documents cannot be read")
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadSetting(f"{file} is not UTF-8 text", hint=hint) from error
    except (OSError, ValueError) as error:
        raise BadSetting(f"{file} cannot be read: {getattr(error, 'strerror', error)}", hint=hint) from error
