"""Asks before it fetches a pair, shows the progress, and lists the models of a repository."""

import sys
from collections.abc import Callable
from typing import TextIO

from localspec.display import DrawnLine, aside, bar_text, duration_text, note, say, size_text
from localspec.errors import NotOnDisk
from localspec.health.devices import last_devices
from localspec.models import hub, inspection, names
from localspec.models.download import Fetching, PullEvent, bytes_to_fetch
from localspec.models.download import fetch as fetch_pair
from localspec.models.inspection import Fit
from localspec.models.partial_file import PullStage
from localspec.models.registry import Pair

DRAFT_HELP = "the draft, named the same way (default: the target's own head; without one, lookup in the text)"
_BAR = 20  # characters
_STEP = 10  # percent between two lines without a terminal


def fetch_if_wanted(missing: names.PairNotOnDisk, *, pull: bool) -> None:
    """Fetch the pair if `pull` is set or the user says yes; else raise `missing` again."""
    if not (pull or agreed(lambda: question(missing))):
        raise missing
    fetch(missing.pair)


def take_from_hub(target: str, draft: str | None, *, pull: bool) -> dict[str, str | None]:
    """The pair of models of the Hub, fetched with `pull` or the user's yes.

    Raises NotOnDisk without either.
    """
    if not names.is_on_hub(target, draft):
        return {}
    try:
        name = names.fetched_before(target, draft).name
    except NotOnDisk as missing:
        if not (pull or agreed(lambda: f"{target} is not on this machine. Fetch it?")):
            raise missing
        name = fetch_reference(target, draft)
    return {"pair": name, "target": None, "draft": "lookup" if draft == "lookup" else None}


def agreed(question: Callable[[], str], stream: TextIO = sys.stderr, ask: Callable[[], str] = input) -> bool:
    """Ask the user; Enter is yes. False without a terminal."""
    if not (stream.isatty() and sys.stdin.isatty()):
        return False
    say(f"{question()} [Y/n]", end=" ", to=stream)
    try:
        return ask().strip().lower() in ("", "y", "yes")
    except EOFError:
        say("", to=stream)
        return False


def question(missing: names.PairNotOnDisk) -> str:
    fits = {
        Fit.GPU: "fits here",
        Fit.PART: "fits here with some of it on the CPU",
        Fit.CPU: "fits into RAM here, not on a GPU",
        Fit.NO: "does not fit here",
    }[inspection.fit(missing.pair, last_devices())]
    return f"{missing.pair.name} is not on this machine ({size_text(bytes_to_fetch(missing.pair))}; {fits}). Fetch it?"


def fetch_reference(target: str, draft: str | None) -> str:
    """Fetch models of the Hub as a pair of the user's and return its name."""
    pair = names.known_as(target, draft)
    if pair is None:
        try:
            with DrawnLine(sys.stderr) as line:
                line.draw(f"asking {hub.host()} for {target}")
                pair = names.keep(names.described(target, draft))
            note(f"{target} is the pair {pair.name} from now on")
        except names.SeveralModels as several:
            tell_models(several)
            raise
        if draft is None and (known := inspection.suggested_draft(pair.target.name, pair.target.header)):
            what = f"{known.name} ({size_text(known.all_bytes)}) can draft for it"
            note(f"{what}: localspec pull {target} --draft {known.repo}:{known.file}")
    fetch(pair)
    return pair.name


def tell_models(several: names.SeveralModels) -> None:
    """The models of a repository, a line each."""
    for model in several.models:
        size = size_text(model.all_bytes) + f" in {len(model.rest) + 1} files" * bool(model.rest)
        say(f"{names.quant_of(model) or '-':<10} {size:>18}  {several.repo}:{model.file}")


def fetch(pair: Pair) -> None:
    """Pull with the progress on stderr; Ctrl-C keeps the bytes so far."""
    line = DrawnLine(sys.stderr)

    def show(event: PullEvent) -> None:
        if isinstance(event, Fetching):
            line.tell(progress_text(event), event.done * 100 // max(event.total, 1) // _STEP)
            return
        line.clear()
        aside(event)

    try:
        line.draw(f"asking {hub.host()} for {pair.name}")
        fetch_pair(pair, show)
    except KeyboardInterrupt:
        line.clear()
        say(f"Stopped. Resume with: localspec pull {pair.name}", to=sys.stderr)
        raise
    finally:
        line.clear()
    aside(f"{pair.name} is ready: localspec run {pair.name} PROMPT")


def progress_text(event: Fetching) -> str:
    """Percentage of all files, then the speed, the time left and the file."""
    share = event.done / event.total if event.total else 1.0
    line = f"{bar_text(share, _BAR)}  {size_text(event.done)} of {size_text(event.total)}"
    if event.stage is PullStage.WAITING:
        return f"{line}  waiting for another localspec that fetches"
    if event.stage is PullStage.HASHING:
        return f"{line}  checking {event.file}"
    if event.bytes_per_second:
        line += f"  {size_text(event.bytes_per_second)}/s"
    if event.seconds_left is not None:
        line += f"  {duration_text(event.seconds_left)} left"
    return f"{line}  {event.file}"
