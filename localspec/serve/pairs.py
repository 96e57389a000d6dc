"""The model names that clients may say, and the load request for each."""

import difflib
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.engine.messages import LoadPair
from localspec.errors import LocalspecError
from localspec.models.names import find
from localspec.models.registry import all_pairs, is_known, named
from localspec.serve.bodies import Problem
from localspec.serve.jobs import Jobs

TARGET, LATEST = ":target", ":latest"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The meaning of a model name."""

    name: str  # as answers repeat it
    load: LoadPair
    speculate: bool = True  # False: the target alone


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
        """Every model: pairs, each with its target alone."""
        others = [pair.name for pair in all_pairs() if pair.on_disk]
        pairs = dict.fromkeys(name for name in [self.first, *others] if name)
        return [name + part for name in pairs for part in ("", TARGET)]

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
            load = self.choose(model).load
            files = find(load.pair, load.target, load.draft).files
        except (Problem, LocalspecError):
            return ()
        return tuple(path for file in files if (path := file.path))

    def choose(self, model: str) -> Chosen:
        """The meaning of a name; "" is the first pair. Raises Problem, LocalspecError."""
        pair, (_, alone) = self.pair_of(model), parted(model)
        if pair is None:
            if not self._any_model:
                raise self._unknown(model)
            pair, alone = self.first, False
        load = self._jobs.first
        if pair != self.first:
            load = replace(load, pair=pair, target=None, draft=None)
        return Chosen(model or self.first, load, speculate=not alone)

    def _unknown(self, model: str) -> Problem:
        names = self.names()
        close = difflib.get_close_matches(model, names, n=1) or names[:1]
        hint = f"; ask for {close[0]!r}" if close else ""
        return Problem(404, "model_not_found", f"there is no model {model[:80]!r} here{hint}")


def parted(model: str) -> tuple[str, bool]:
    """The name of a model's pair in lower case, and whether the model is its target alone."""
    name = model.casefold().removesuffix(LATEST)
    return name.removesuffix(TARGET), name.endswith(TARGET)
