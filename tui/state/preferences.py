"""What the person at the terminal chose and wants to find again: kept beside the conversations, not in config.toml."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from localspec.files import change_json_object, read_json_object


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
        values = read_json_object(path)
    except (OSError, ValueError):
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


def save(path: Path, choices: Mapping[str, object]) -> str:
    """Keep what was chosen here, by name, beside what other chats chose. Raises OSError.

    Says where a damaged file was put, else "".
    """
    return change_json_object(path, choices)
