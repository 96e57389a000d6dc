"""Writes a conversation as Markdown into a file of its own."""

import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from localspec.conversations import Conversation
from localspec.errors import LocalspecError


class NotExported(LocalspecError):
    """A conversation that could not be written where it was wanted."""


def export(conversation: Conversation, name: str) -> Path:
    """Write a conversation into a file that is not there yet; its whole path. Raises NotExported."""
    try:
        path = Path(name).expanduser().absolute()
        document = to_markdown(conversation).encode()
        _write_new(path, document)
    except FileExistsError:
        raise NotExported(f"{name} exists already", hint="give another name") from None
    except (OSError, RuntimeError, ValueError) as error:
        # RuntimeError: the home folder of an unknown user. ValueError: a character that no file name or file can hold.
        reason = error.strerror if isinstance(error, OSError) else error
        raise NotExported(f"{name} cannot be written: {reason}", hint="give another path") from error
    return path


def _write_new(path: Path, content: bytes) -> None:
    """A file with all of the content, or after an OSError none. Raises FileExistsError, and leaves that file."""
    file = os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600), "wb"
    )
    try:
        with file:
            file.write(content)
    except OSError:
        with suppress(OSError):
            path.unlink()
        raise


def to_markdown(conversation: Conversation) -> str:
    """A conversation as a Markdown document."""
    return "\n\n".join(_sections(conversation)) + "\n"


def _sections(conversation: Conversation) -> Iterator[str]:
    yield f"# {conversation.title}"
    yield f"*{conversation.pair} · exported {datetime.now(UTC):%Y-%m-%d}*"
    if conversation.system:
        yield f"## System\n\n{conversation.system}"
    for message in conversation.messages:
        yield f"## {'You' if message.role == 'user' else 'Reply'}"
        if message.reasoning:
            yield f"<details><summary>Reasoning</summary>\n\n{message.reasoning}\n\n</details>"
        yield message.content
