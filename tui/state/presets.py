"""System prompts that the person has given names to: one JSON object beside the conversations."""

import json
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import BadSetting
from localspec.files import write_text_atomically


@dataclass(frozen=True, slots=True)
class Presets:
    """A file of them, read anew each time: other chats write it too."""

    path: Path

    def load(self) -> dict[str, str]:
        """Names and texts; what makes no sense in the file is left out."""
        try:
            values = json.loads(self.path.read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            values = None
        known = values.items() if isinstance(values, dict) else ()
        return {name: text for name, text in known if isinstance(text, str) and text}

    def save(self, name: str, text: str) -> None:
        """Keep a text under a name; without a text, forget the name. Raises BadSetting."""
        kept = {known: other for known, other in self.load().items() if known != name}
        if text:
            kept[name] = text
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_text_atomically(self.path, json.dumps(kept, indent=1, ensure_ascii=False))
        except OSError as error:
            raise BadSetting(
                f"{self.path} cannot be written: {error.strerror}", hint="check its folder"
            ) from error
