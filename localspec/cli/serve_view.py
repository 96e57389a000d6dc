"""What is told of a running endpoint: on a terminal a table that grows and a line below it that is always true."""

import sys
import time
from contextlib import suppress
from typing import TextIO

from localspec.cli.printing import DrawnLine, OutputFailed, on_terminal, say
from localspec.events import Reply
from localspec.serve.jobs import Jobs
from localspec.terminal_text import line_for_terminal

COLUMNS = (
    "answered",
    "prompt",
    "of it read",
    "tokens",
    "tokens/s",
    "a pass",
    "accepted",
    "times plain",
    "ended",
)
WIDTHS = tuple(max(len(name), 8) for name in COLUMNS)
HEAD_EVERY = 20  # rows


class View:
    """Addresses go to stdout, everything else to stderr: a table on a terminal, elsewhere a sentence for each reply.

    A log that cannot be written (its reader left, its disk is full) costs no reply: the lines are dropped.
    """

    def __init__(self, line: DrawnLine) -> None:
        self._line = line
        self._drawn = ""
        self._rows = 0 if on_terminal(sys.stderr) else None  # in the table

    def said(self, text: str) -> None:
        self._log(text, to=sys.stdout)

    def replied(self, reply: Reply) -> None:
        if self._rows is None:
            self._log(summary(reply))
            return
        if self._rows % HEAD_EVERY == 0:
            self._log(row_of(COLUMNS))
        self._rows += 1
        self._log(row_of(cells(reply)))

    def refused(self, method: str, path: str, status: int) -> None:
        self._log(line_for_terminal(f"{method} {path[:80]}: {status}"))

    def changed(self, jobs: Jobs) -> None:
        self._drawn = status_of(jobs)
        with suppress(OSError, OutputFailed):
            self._line.draw(self._drawn)

    def _log(self, text: str, to: TextIO | None = None) -> None:
        with suppress(OSError, OutputFailed):
            self._line.clear()
            say(text, to=sys.stderr if to is None else to)
            self._line.draw(self._drawn)


def cells(reply: Reply) -> tuple[str, ...]:
    """One reply as a row of the table."""
    stats = reply.stats
    return (
        time.strftime("%H:%M:%S"),
        str(stats.prompt_tokens),
        str(stats.prompt_tokens - stats.reused_tokens),
        str(stats.emitted),
        f"{stats.tokens_per_second:.1f}",
        f"{stats.mean_accepted_length:.2f}",
        f"{stats.acceptance_rate:.0%}" if stats.drafted else "-",
        f"{stats.speedup.value:.2f}" if stats.speedup else "-",
        reply.finish_reason,
    )


def row_of(cells: tuple[str, ...]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, WIDTHS, strict=True))


def summary(reply: Reply) -> str:
    """One reply in one line."""
    stats = reply.stats
    parts = [
        f"{stats.emitted} tokens",
        f"{stats.tokens_per_second:.0f} tokens/s",
        f"{stats.mean_accepted_length:.1f} a pass",
    ]
    if stats.speedup:
        parts.append(f"{stats.speedup.value:.2f}x plain")
    read = stats.prompt_tokens - stats.reused_tokens
    parts.append(f"prompt {stats.prompt_tokens}, {read} read in {stats.prefill_seconds * 1000:.0f} ms")
    return ", ".join(parts) + f" ({reply.finish_reason})"


def status_of(jobs: Jobs) -> str:
    """The queue, and all replies together."""
    totals = jobs.totals
    state = "replying" if jobs.busy else "idle"
    if jobs.loaded is None:
        state = jobs.stage or "loading"
    parts = [state, f"{jobs.waiting} waiting", f"{totals.replies} answered"]
    if totals.written_tokens:
        parts += [
            f"{totals.tokens_per_second:.0f} tokens/s",
            f"{totals.acceptance_rate:.0%} of drafts accepted",
        ]
    if totals.speedup:
        parts.append(f"{totals.speedup:.2f}x plain, {totals.saved_seconds:.0f} s saved")
    return " · ".join(parts)
