"""What the person at the terminal chose and wants to find again: kept beside the conversations, not in config.toml."""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from localspec.files import write_text_atomically


class TokenStyle(StrEnum):
    """How much the live text shows of where its tokens came from."""

    OFF = "off"
    SUBTLE = "subtle"
    STRONG = "strong"


@dataclass(frozen=True, slots=True)
class Preferences:
    theme: str = "localspec"
    tokens: TokenStyle = TokenStyle.SUBTLE
    inspector: bool = False


def load(path: Path) -> Preferences:
    """Preferences from a file; what is missing or damaged there is as if never chosen."""
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        return Preferences()
    chosen = asdict(Preferences())
    for name, default in chosen.items():
        with suppress(KeyError, ValueError):
            value = values[name]
            if isinstance(default, TokenStyle):
                value = TokenStyle(value)
            if type(value) is type(default):
                chosen[name] = value
    return Preferences(**chosen)


def save(path: Path, preferences: Preferences) -> None:
    """Replace the file in one step. Raises OSError."""
    write_text_atomically(path, json.dumps(asdict(preferences), indent=1))
