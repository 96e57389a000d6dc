"""What is being done before there is anything to show: one line on stderr where that is a terminal."""

import shutil
import sys
from contextlib import AbstractContextManager
from types import TracebackType


class StageLine(AbstractContextManager["StageLine"]):
    """Draws each stage over the one before, and takes the line away at the end."""

    def show(self, text: str) -> None:
        if sys.stderr.isatty():
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{text}"[: width + 4], end="", flush=True, file=sys.stderr)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", flush=True, file=sys.stderr)
