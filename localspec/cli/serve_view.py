"""What the terminal shows of a running endpoint: a line for each reply, and below them one that is always true."""

import sys

from localspec.cli.printing import DrawnLine, say
from localspec.events import Reply
from localspec.serve.jobs import Jobs


class View:
    """Addresses go to stdout, everything else to stderr; the last line is drawn on a terminal only."""

    def __init__(self, line: DrawnLine) -> None:
        self._line = line
        self._drawn = ""

    def said(self, text: str) -> None:
        self._line.clear()
        say(text)
        self._line.draw(self._drawn)

    def replied(self, reply: Reply) -> None:
        self._log(summary(reply))

    def refused(self, method: str, path: str, status: int) -> None:
        self._log(f"{method} {path[:80]}: {status}")

    def changed(self, jobs: Jobs) -> None:
        self._drawn = status_of(jobs)
        self._line.draw(self._drawn)

    def _log(self, text: str) -> None:
        self._line.clear()
        say(text, to=sys.stderr)
        self._line.draw(self._drawn)


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
