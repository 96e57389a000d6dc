"""A pull on the terminal: one line that is drawn over, or plain lines where there is no terminal."""

import sys

from localspec.cli.printing import DrawnLine, aside
from localspec.memory.planning import outlook
from localspec.pairs.download import FileReady, Note, Progress, Proved, PullEvent, PullStage
from localspec.units import duration_text, size_text

_BAR = 20  # characters
_STEP = 10  # percent between two lines without a terminal


class ProgressLine:
    """Draws the events of a pull on stderr."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._line = DrawnLine(sys.stderr)

    def show(self, event: PullEvent) -> None:
        match event:
            case Progress():
                step = event.done * 100 // max(event.total, 1) // _STEP
                self._line.tell(progress_text(event), step)
            case Proved(target=target, draft=draft):
                self._say(f"{self._name}: target and draft fit each other")
                for sentence in outlook(target, draft):
                    self._say(sentence)
            case FileReady(file=file, fetched=fetched):
                came = f"{size_text(fetched)} fetched, " if fetched else ""
                self._say(f"{file}: {came}sha256 verified")
            case Note(text=text):
                self._say(text)

    def clear(self) -> None:
        self._line.clear()

    def _say(self, text: str) -> None:
        self.clear()
        aside(text)


def progress_text(event: Progress) -> str:
    """Percentage of both files, then which file, how fast, and how long still."""
    share = event.done / event.total if event.total else 1.0
    filled = int(share * _BAR)
    bar = "█" * filled + "░" * (_BAR - filled)
    line = f"{bar} {share:4.0%}  {size_text(event.done)} of {size_text(event.total)}"
    if event.stage is PullStage.WAITING:
        return f"{line}  another localspec is fetching {event.file}"
    if event.stage is PullStage.HASHING:
        return f"{line}  checking {event.file}"
    if event.bytes_per_second:
        line += f"  {size_text(event.bytes_per_second)}/s"
    if event.seconds_left is not None:
        line += f"  {duration_text(event.seconds_left)} left"
    return f"{line}  {event.file}"
