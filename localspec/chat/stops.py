"""Stop strings: text is released as soon as no stop string can begin in it any more."""

from collections.abc import Sequence

from localspec.chat.matching import Patterns


class StopScanner:
    """Cuts a stream of text at the first complete stop string, however the text is split into pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = Patterns(stops)
        self._held = ""
        self._stopped = False

    def push(self, text: str) -> tuple[str, bool]:
        """Text that may be shown now, and whether a stop string ended the stream; what follows is dropped.

        The stop string that is complete first wins; of several that end together, the longest.
        """
        if self._stopped:
            return "", True
        text = self._held + text
        match = self._stops.find(text)
        if match:
            self._held, self._stopped = "", True
            return text[: match.start], True
        released = len(text) - self._stops.unfinished(text)
        self._held = text[released:]
        return text[:released], False

    def flush(self) -> str:
        """What was held back, when no more text follows."""
        held, self._held = self._held, ""
        return held
