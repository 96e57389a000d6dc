"""The model names that clients may say, and what is loaded for each: the pair, its target alone, its draft alone."""

import difflib
from dataclasses import dataclass, replace

from localspec.engine.messages import LoadPair
from localspec.errors import BadSetting
from localspec.pairs import store
from localspec.pairs.registry import all_pairs
from localspec.pairs.resolve import resolve
from localspec.serve.jobs import Jobs
from localspec.serve.problems import failed

TARGET, DRAFT, LATEST = ":target", ":draft", ":latest"


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a model name means."""

    name: str  # as answers repeat it
    load: LoadPair
    speculate: bool = True


class Pairs:
    """The loaded pair and those on disk; nothing is ever fetched."""

    def __init__(self, jobs: Jobs, *, any_model: bool) -> None:
        """`any_model`: names that are not known mean the loaded pair."""
        self._jobs = jobs
        self._any_model = any_model
        self._first = jobs.first.pair or ""

    @property
    def first(self) -> str:
        """The name of the pair of the start; "" while that is not known: files have theirs from the engine."""
        loaded = self._jobs.loaded
        if loaded is not None and loaded.load == self._jobs.first:
            self._first = loaded.ready.pair
        return self._first

    def names(self) -> list[str]:
        """What can be asked for: pairs, each with its target and its draft alone."""
        others = [pair.name for pair in all_pairs() if pair.runnable and store.on_disk(pair)]
        pairs = dict.fromkeys(name for name in [self.first, *others] if name)
        return [name + part for name in pairs for part in ("", TARGET, DRAFT)]

    def choose(self, model: str) -> Chosen:
        """What a name means; none is the pair of the start. Raises RequestFailed, LocalspecError."""
        name = model.removesuffix(LATEST) or self.first
        part = next((part for part in (TARGET, DRAFT) if name.endswith(part)), "")
        pair = name.removesuffix(part)
        if pair != self.first and not self._is_here(pair):
            if not self._any_model:
                raise self._unknown(model)
            pair, part = self.first, ""
        load = (
            self._jobs.first
            if pair == self.first
            else replace(self._jobs.first, pair=pair, target=None, draft=None)
        )
        if part == DRAFT:
            load = draft_alone(load)
        return Chosen(model or name, load, speculate=not part)

    def _is_here(self, pair: str) -> bool:
        return any(known.name == pair and store.on_disk(known) for known in all_pairs())

    def _unknown(self, model: str) -> Exception:
        names = self.names()
        close = difflib.get_close_matches(model, names, n=1, cutoff=0.3) or names[:1]
        hint = f"; the nearest is {close[0]!r}" if close else ""
        return failed(
            404, "not_found_error", "model_not_found", f"there is no model {model[:80]!r} here{hint}"
        )


def draft_alone(load: LoadPair) -> LoadPair:
    """What loads the draft model as a target."""
    files = resolve(load.pair, load.target, load.draft if load.draft != "lookup" else None)
    if files.draft is None:
        raise BadSetting(f"{files.name} has no draft model", hint="ask for the pair, or its target")
    return replace(load, pair=None, target=str(files.draft), draft=None, speculate=False)
