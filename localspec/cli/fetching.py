"""Downloads for commands: ask the user, show the progress, and list the models of a repository."""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TextIO

from localspec.display import DrawnLine, bar_text, duration_text, print_line, print_notice, say, size_text
from localspec.errors import LocalspecError, NotOnDisk
from localspec.loading import pair_info
from localspec.loading.pair_info import Fit
from localspec.machine.devices import last_devices
from localspec.models import hub, names
from localspec.models.download import (
    Fetching,
    PairNotOnDisk,
    PullEvent,
    PullStage,
    bytes_to_fetch,
    fetch_projector,
)
from localspec.models.download import fetch as fetch_pair
from localspec.models.local_models import quant_in
from localspec.models.own_draft import family_drafts, suggested_draft, with_own_draft
from localspec.models.projector import published
from localspec.models.registry import Pair

DRAFT_HELP = "a GGUF file, ORG/REPO:QUANT, or lookup (default: the target's head, else lookup in the text)"


def fetch_if_wanted(missing: NotOnDisk, target: str | None, draft: str | None, *, pull: bool) -> None:
    """Fetch the missing pair or Hub models if `pull` is true or the user agrees; if not, raise `missing`."""
    pair = missing.pair if isinstance(missing, PairNotOnDisk) else None
    if not (
        pull or agreed(lambda: question(pair) if pair else f"{target} is not on this machine. Download it?")
    ):
        raise missing
    if pair:
        fetch(pair)
    else:
        fetch_reference(target or "", draft)


def agreed(question: Callable[[], str], stream: TextIO = sys.stderr, ask: Callable[[], str] = input) -> bool:
    """Ask the user a question, where Enter means yes; return False without a terminal."""
    if not (stream.isatty() and sys.stdin.isatty()):
        return False
    say(f"{question()} [Y/n]", end=" ", to=stream)
    try:
        return ask().strip().lower() in ("", "y", "yes")
    except EOFError:
        say("", to=stream)
        return False


def question(pair: Pair) -> str:
    fits = {Fit.GPU: "fits here", Fit.PART: "fits here, partly on the CPU"}
    fits |= {Fit.CPU: "fits into RAM here, not on a GPU", Fit.NO: "does not fit here"}
    fit, size = fits[pair_info.fit(pair, last_devices())], size_text(bytes_to_fetch(pair))
    return f"{pair.name} is not on this machine ({size}; {fit}). Download it?"


def fetch_reference(target: str, draft: str | None, *, images: bool = False) -> None:
    pair, reference = names.known_as(target, draft), ""
    if pair is None:
        reference = f"{target} --draft {draft}" if draft else target
        try:
            with DrawnLine(sys.stderr) as line:
                line.draw(f"asking {hub.host()} for {target}")
                pair = names.described(target, draft)
        except names.SeveralModels as several:
            tell_models(several)
            raise
        if draft is None and (known := suggested_draft(pair)):
            what = f"{known.name} ({size_text(known.all_bytes)}) can draft for {target}; to download it"
            print_notice(f"{what}: localspec pull {target} --draft {known.repo}:{known.file}")
    fetch(pair, images=images, reference=reference)


def suggest_draft(pair: Pair, *, pull: bool = False) -> Pair:
    """Offer to download a draft for a model of another program; return the pair to load.

    `pull`: whether to download it without a question. After a failed download the model runs without a draft.
    """
    if not (found := family_drafts(pair)):
        return pair
    what = f"{found[0].name} ({size_text(found[0].all_bytes)}) can draft for {pair.name}"
    if not (pull or agreed(lambda: f"{what}. Download it?")):
        print_notice(f"{what}; to download it: localspec pull {pair.name}")
        return pair
    try:
        fetch(replace(pair, draft=found[0]))
    except LocalspecError as error:
        if pull:
            raise
        print_notice(f"{error}. {pair.name} runs without a draft model.")
    return with_own_draft(pair)


def tell_models(several: names.SeveralModels) -> None:
    for model in several.models:
        size = size_text(model.all_bytes) + f" in {len(model.rest) + 1} files" * bool(model.rest)
        say(f"{quant_in(model.file) or '-':<10} {size:>18}  {several.repo}:{model.file}")


def fetch(pair: Pair, *, images: bool = False, reference: str = "") -> None:
    """Fetch a pair and show the progress on stderr; Ctrl-C keeps the bytes received so far.

    `images`: whether to fetch the projector with which the target reads images.
    `reference`: the user's name for a new pair from the Hub; the pair is stored once its files are verified.
    """
    with DrawnLine(sys.stderr) as line:

        def show(event: PullEvent) -> None:
            if isinstance(event, Fetching):
                tenth = event.done * 10 // max(event.total, 1)
                line.tell(progress_text(event), tenth)
                return
            line.clear()
            print_line(event)

        try:
            line.draw(f"asking {hub.host()} for {pair.name}")
            fetch_pair(pair, show)
            if reference:
                pair = names.keep(pair)
                show(f"{reference} is now the pair {pair.name}")
            if images:
                projector = published(pair)
                show(f"{projector.name} is checked by the hash in {projector.repo}; localspec has no other")
                fetch_projector(pair, projector, show)
        except KeyboardInterrupt:
            line.clear()
            say(f"Stopped. Resume with: localspec pull {reference or pair.name}", to=sys.stderr)
            raise
    print_line(f"{pair.name} is ready: localspec run {pair.name} PROMPT")


def progress_text(event: Fetching) -> str:
    share = event.done / event.total if event.total else 1.0
    line = f"{bar_text(share, 20)}  {size_text(event.done)} of {size_text(event.total)}"
    if event.stage is PullStage.WAITING:
        return f"{line}  waiting for another localspec that downloads this file"
    if event.stage is PullStage.HASHING:
        return f"{line}  checking {event.file}"
    if event.bytes_per_second:
        line += f"  {size_text(event.bytes_per_second)}/s"
    if event.seconds_left is not None:
        line += f"  {duration_text(event.seconds_left)} left"
    return f"{line}  {event.file}"
