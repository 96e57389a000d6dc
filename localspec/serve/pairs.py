"""The model names that clients may say, and the load request for each: the pair, its target alone, its draft alone."""

import difflib
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.engine.messages import LoadPair
from localspec.errors import BadSetting, LocalspecError
from localspec.models.names import find
from localspec.models.registry import Pair, all_pairs, is_known, named
from localspec.serve.bodies import Problem
from localspec.serve.jobs import Jobs

TARGET, DRAFT, LATEST = ":target", ":draft", ":latest"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The meaning of a model name."""

    name: str  # as answers repeat it
    load: LoadPair
    speculate: bool = True


class Pairs:
    """The loaded pair and those on disk; the server never downloads."""

    def __init__(self, jobs: Jobs, *, any_model: bool, called: str = "") -> None:
        """`any_model`: unknown names mean the first pair, which the user `called` so."""
        self._jobs = jobs
        self._any_model = any_model
        self._called = called.casefold()
        self._first = jobs.first.pair or ""

    @property
    def first(self) -> str:
        """The name of the first pair; for files given by path "" until the engine names them."""
        loaded = self._jobs.loaded
        if loaded is not None and loaded.load == self._jobs.first:
            self._first = loaded.ready.pair
        return self._first

    def names(self) -> list[str]:
        """Every model: pairs, each with its target and its draft alone."""
        others = [pair.name for pair in all_pairs() if pair.runnable and pair.on_disk]
        pairs = dict.fromkeys(name for name in [self.first, *others] if name)
        return [name + part for name in pairs for part in ("", TARGET, DRAFT)]

    def pair_of(self, model: str) -> str | None:
        """The name of the pair that a model belongs to, in any spelling; None if it is not here."""
        asked, _ = parted(model)
        if asked in ("", self._called, self.first.casefold()):
            return self.first
        known = named(asked) if is_known(asked) else None  # by its name, an alias, or ORG/REPO:QUANT
        if known is None or not (known.name == self.first or known.on_disk):
            return None
        return known.name

    def files_of(self, model: str) -> tuple[Path, ...]:
        """The files of a model in `names`; none if they are unknown."""
        try:
            files = files_to_load(self.choose(model).load)
        except (Problem, LocalspecError):
            return ()
        return tuple(path for file in files.files if (path := file.path))

    def choose(self, model: str) -> Chosen:
        """The meaning of a name; "" is the first pair. Raises Problem, LocalspecError."""
        pair, (_, part) = self.pair_of(model), parted(model)
        if pair is None:
            if not self._any_model:
                raise self._unknown(model)
            pair, part = self.first, ""
        load = self._jobs.first
        if pair != self.first:
            load = replace(load, pair=pair, target=None, draft=None)
        if part == DRAFT:
            load = draft_alone(load)
        return Chosen(model or self.first, load, speculate=not part)

    def _unknown(self, model: str) -> Problem:
        names = self.names()
        close = difflib.get_close_matches(model, names, n=1, cutoff=0.3) or names[:1]
        hint = f"; the nearest is {close[0]!r}" if close else ""
        return Problem(404, "model_not_found", f"there is no model {model[:80]!r} here{hint}")


def parted(model: str) -> tuple[str, str]:
    """Splits a model name into the pair's name in lower case and the part: `:target`, `:draft` or none."""
    name = model.casefold().removesuffix(LATEST)
    part = next((part for part in (TARGET, DRAFT) if name.endswith(part)), "")
    return name.removesuffix(part), part


def files_to_load(load: LoadPair) -> Pair:
    return find(load.pair, load.target, load.draft if load.draft != "lookup" else None)


def draft_alone(load: LoadPair) -> LoadPair:
    """The request that loads the draft model as a target."""
    files = files_to_load(load)
    if files.draft is None:
        raise BadSetting(f"{files.name} has no draft model", hint="ask for the pair, or its target")
    return replace(load, pair=None, target=str(files.draft.here), draft=None, speculate=False)
