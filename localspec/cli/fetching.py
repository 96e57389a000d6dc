"""Fetches pairs with their progress shown, and tells what could be fetched."""

import sys
from typing import TYPE_CHECKING

from localspec.cli.printing import aside, note, say

if TYPE_CHECKING:
    from localspec.gguf.header import Header
    from localspec.pairs.quants import SeveralModels
    from localspec.pairs.registry import Pair


def fetch_reference(target: str, draft: str | None, *, dry: bool = False) -> str:
    """Fetch models of the Hub as a pair of the user's, whose name is returned; or only say what that would fetch."""
    from localspec.hub.failures import of_system
    from localspec.pairs.any_model import described, keep, known_as
    from localspec.pairs.quants import SeveralModels

    pair = known_as(target, draft)
    if pair is None:
        try:
            pair, opened = described(target, draft)
            if not dry:
                pair = keep(pair)
                note(f"{target} is the pair {pair.name} from now on")
        except SeveralModels as several:
            tell_models(several)
            raise
        except OSError as error:
            raise of_system(error, target) from error
        if draft is None:
            tell_draft(target, pair.target.name, opened.header)
    if dry:
        dry_run(pair)
    else:
        fetch(pair)
    return pair.name


def tell_models(several: "SeveralModels") -> None:
    """The models of a repository, a line each."""
    from localspec.pairs.quants import quant_of, size_of

    for model in several.models:
        say(f"{quant_of(model) or '-':<10} {size_of(model):>18}  {several.repo}:{model.file}")


def tell_draft(target: str, name: str, header: "Header") -> None:
    """Which known draft would go with a target that was named alone."""
    from localspec.pairs.suggestion import suggested_draft
    from localspec.units import size_text

    if draft := suggested_draft(name, header):
        what = f"{draft.name} ({size_text(draft.all_bytes)}) can draft for it"
        note(f"{what}: localspec pull {target} --draft {draft.repo}:{draft.file}")


def fetch(pair: "Pair") -> None:
    """Pull with a progress display on stderr, where all of it goes; Ctrl-C keeps what came."""
    from localspec.cli.progress_line import ProgressLine
    from localspec.pairs.download import pull

    display = ProgressLine(pair.name)
    try:
        pull(pair, progress=display.show)
    except KeyboardInterrupt:
        display.clear()
        say(f"Stopped. Go on with: localspec pull {pair.name}", to=sys.stderr)
        raise
    finally:
        display.clear()
    aside(f"{pair.name} is ready: localspec run {pair.name} PROMPT")


def dry_run(pair: "Pair") -> None:
    from localspec.pairs.download import plan_pull
    from localspec.pairs.resolve import refuse_unless_runnable
    from localspec.units import size_text

    refuse_unless_runnable(pair)
    files = plan_pull(pair)
    for file in files:
        if file.here:
            state = f"here: {file.here}"
        elif file.cached:
            state = "here, of another program: only to be hashed"
        elif file.partial:
            state = f"{size_text(file.partial)} are here already"
        else:
            state = "to fetch"
        say(f"{file.name:<48} {size_text(file.bytes):>8}  {state}")
    say(f"{size_text(sum(file.to_fetch for file in files))} would be fetched.")
