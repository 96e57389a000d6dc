"""From what the user named, or did not name, to the files that will be loaded."""

import stat
from dataclasses import dataclass
from pathlib import Path

from localspec.display import size_text
from localspec.errors import BadModelFile, BadSetting, IncompatiblePair, NotOnDisk
from localspec.files import expanded
from localspec.gguf.adapters import Adapter
from localspec.gguf.header import parts_of
from localspec.pairs import store
from localspec.pairs.references import fetched_before, is_on_hub
from localspec.pairs.registry import DEMO, HubFile, ModelFile, Pair, PairKind, all_pairs, find


@dataclass(frozen=True, slots=True)
class PairFiles:
    """The files of a pair, all of them on disk."""

    name: str
    kind: PairKind
    target: Path
    draft: Path | None
    starting_depth: int = 4
    acceptance: float | None = None  # see models.toml
    lora: tuple[Adapter, ...] = ()  # for the target


class PairNotOnDisk(NotOnDisk):
    """A known pair whose files have to be fetched first."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        absent = [file for file in pair.hub_files if store.locate(file) is None]
        to_fetch = sum(file.bytes for file in absent if not store.cached_copies(file))
        what = f"{size_text(to_fetch)} to fetch" if to_fetch else "another program has it, not checked yet"
        super().__init__(
            f"{pair.name} is not on this machine ({what})", hint=f"fetch it with: localspec pull {pair.name}"
        )


def resolve(
    pair: str | None = None, target: str | Path | None = None, draft: str | Path | None = None
) -> PairFiles:
    """The files to load: those given, those of the named pair, or those of `default_pair()`.

    A target or draft on the Hub (ORG/REPO:Q4_K_M) is the pair that a pull made of it.

    Raises UnknownPair, PairNotOnDisk (a NotOnDisk), BadModelFile, IncompatiblePair, BadSetting.
    """
    if target is not None:
        if pair is not None:
            raise BadSetting("a pair and a target file were both given", hint="name one of them")
        if is_on_hub(str(target), None if draft is None else str(draft)):
            return resolve(fetched_before(str(target), None if draft is None else str(draft)).name)
        return _of_files(expanded(target), None if draft is None else expanded(draft))
    if draft is not None:
        raise BadSetting("a draft file was given without a target file", hint="add --target FILE")
    chosen = find(pair) if pair is not None else default_pair()
    refuse_unless_runnable(chosen)
    paths = [parts_of(path)[0] for file in chosen.files if (path := store.locate(file))]
    if len(paths) < len(chosen.files):
        raise _why_missing(chosen, store.missing(chosen)[0])
    return PairFiles(
        name=chosen.name,
        kind=chosen.kind,
        target=paths[0],
        draft=paths[1] if len(paths) > 1 else None,
        starting_depth=chosen.starting_depth,
        acceptance=chosen.acceptance,
    )


def default_pair() -> Pair:
    """With no pair named: the last used one, else the one whose target came last, else the demo."""
    here = {pair.name: pair for pair in _here()}
    used = [name for name, _ in sorted(store.last_uses().items(), key=lambda use: use[1]) if name in here]
    if used:
        return here[used[-1]]
    return max(here.values(), key=_came, default=None) or find(DEMO)


def undecided() -> tuple[Pair, ...]:
    """The pairs of which `default_pair` takes the newest for want of anything better, that one first; or none."""
    here = sorted(_here(), key=_came, reverse=True)
    decided = len(here) < 2 or any(pair.name in store.last_uses() for pair in here)
    return () if decided else tuple(here)


def _here() -> list[Pair]:
    """The pairs that can run, the embedded one left out."""
    return [pair for pair in all_pairs() if pair.name != DEMO and pair.runnable and store.on_disk(pair)]


def _came(pair: Pair) -> float:
    """When the target was written here, in seconds since 1970."""
    path = store.locate(pair.target)
    return path.stat().st_mtime if path else 0.0


def refuse_unless_runnable(pair: Pair) -> None:
    """Raises IncompatiblePair for a pair that lacks the file it would draft with, or has one it does not need."""
    if pair.runnable:
        return
    how = (
        "drafts from the text alone and has a draft file all the same"
        if pair.kind is PairKind.LOOKUP
        else f"is said to draft with a file of its own ({pair.kind}), and names none"
    )
    raise IncompatiblePair(f"{pair.name} {how}", hint="write the pair anew: `localspec pairs add`")


def _of_files(target: Path, draft: Path | None) -> PairFiles:
    for path in (target, draft):
        if path is not None and (problem := _why_no_file(path)):
            raise BadModelFile(f"{path} {problem}", hint="give the path of a GGUF file")
    first = parts_of(target)[0]  # llama.cpp begins with it
    return PairFiles(first.stem, PairKind.SIMPLE, first, draft and parts_of(draft)[0])


def _why_no_file(path: Path) -> str:
    """What a path is instead of a file; "" for a file."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return "does not exist"
    except OSError as error:
        return f"cannot be opened: {error.strerror}"
    if stat.S_ISREG(mode):
        return ""
    return "is a folder" if stat.S_ISDIR(mode) else "is no regular file"


def _why_missing(pair: Pair, file: ModelFile) -> Exception:
    if isinstance(file, HubFile):
        return PairNotOnDisk(pair)
    if not file.path.exists():
        return BadModelFile(
            f"{pair.name} needs {file.path}, which does not exist",
            hint="put it there, or write the pair anew: `localspec pairs add`",
        )
    return BadModelFile(
        f"{file.path} is no longer the file that {pair.name} was made with: it has another size",
        hint="`localspec pairs add` writes the pair anew",
    )
