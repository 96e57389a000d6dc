"""A pair that is not on disk: ask on a terminal, fetch when told to, otherwise say the command."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from localspec.cli.printing import say

if TYPE_CHECKING:
    from localspec.pairs.resolve import PairNotOnDisk


def fetch_if_wanted(missing: "PairNotOnDisk", *, pull: bool) -> None:
    """Fetch the pair if `pull` is set or the user says yes; raises `missing` again otherwise."""
    from localspec.cli.fetching import fetch

    if not (pull or agreed(lambda: question(missing))):
        raise missing
    fetch(missing.pair)


def take_from_hub(target: str, draft: str | None, *, pull: bool) -> dict[str, str | None]:
    """The pair that stands for models of the Hub, fetched if `pull` is set or the user says yes; else nothing.

    Raises NotOnDisk where nobody wants it fetched.
    """
    from localspec.errors import NotOnDisk
    from localspec.pairs.any_model import fetched_before, is_on_hub

    if not is_on_hub(target, draft):
        return {}
    try:
        name = fetched_before(target, draft).name
    except NotOnDisk as missing:
        if not (pull or agreed(lambda: f"{target} is not on this machine, fetch it?")):
            raise missing
        from localspec.cli.fetching import fetch_reference

        name = fetch_reference(target, draft)
    return {"pair": name, "target": None, "draft": "lookup" if draft == "lookup" else None}


def agreed(question: Callable[[], str], stream: TextIO = sys.stderr, ask: Callable[[], str] = input) -> bool:
    """Ask a person; Enter is yes. False where there is nobody to ask."""
    if not (stream.isatty() and sys.stdin.isatty()):
        return False
    say(f"{question()} [Y/n]", end=" ", to=stream)
    try:
        return ask().strip().lower() in ("", "y", "yes")
    except EOFError:
        return False


def question(missing: "PairNotOnDisk") -> str:
    from localspec.memory.known_devices import last_devices
    from localspec.pairs.download import plan_pull
    from localspec.pairs.estimate import Fit, fit
    from localspec.units import size_text

    size = sum(file.to_fetch for file in plan_pull(missing.pair))
    fits = {
        Fit.GPU: "fits here",
        Fit.PART: "fits here with some of it on the CPU",
        Fit.CPU: "fits into RAM here, not on a GPU",
        Fit.NO: "does not fit here",
    }[fit(missing.pair, last_devices())]
    return f"{missing.pair.name} is not on this machine: {size_text(size)}, {fits}, fetch it?"
