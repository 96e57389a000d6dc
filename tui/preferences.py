"""What the person at the terminal chose and wants to find again: kept beside the conversations, not in config.toml."""

import json
from dataclasses import asdict, dataclass, fields
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
        known = {field.name: values[field.name] for field in fields(Preferences) if field.name in values}
        if "tokens" in known:
            known["tokens"] = TokenStyle(known["tokens"])
        return Preferences(**known)
    except (OSError, ValueError, TypeError):
        return Preferences()


def save(path: Path, preferences: Preferences) -> None:
    """Replace the file in one step. Raises OSError."""
    write_text_atomically(path, json.dumps(asdict(preferences), indent=1))
