"""System prompts that the person has given names to: one JSON object beside the conversations."""

from dataclasses import dataclass
from pathlib import Path

from localspec.errors import BadSetting
from localspec.files import change_json_object, read_json_object


@dataclass(frozen=True, slots=True)
class Presets:
    """A file of them, read anew each time: other chats write it too."""

    path: Path

    def load(self) -> dict[str, str]:
        """Names and texts; an entry that is no text is left out. Raises BadSetting for a damaged file."""
        try:
            values = read_json_object(self.path)
        except OSError as error:
            raise self._failure("read", error) from error
        except ValueError as error:
            raise BadSetting(
                f"{self.path} is damaged: {error}",
                hint="repair it; a new preset begins a new file and keeps this one",
            ) from error
        return {name: text for name, text in values.items() if isinstance(text, str) and text}

    def save(self, name: str, text: str) -> str:
        """Keep a text under a name; without a text, forget the name. Says where a damaged file was put, else "".

        Raises BadSetting.
        """
        try:
            return change_json_object(self.path, {name: text or None})
        except OSError as error:
            raise self._failure("written", error) from error

    def _failure(self, what: str, error: OSError) -> BadSetting:
        return BadSetting(
            f"{self.path} cannot be {what}: {error.strerror}", hint="check its folder and the disk"
        )
