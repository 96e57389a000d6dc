"""Find the draft that was published with a model: a file beside it, in the same folder or repository of the Hub."""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePosixPath

from localspec import demo
from localspec.errors import LocalspecError
from localspec.gguf.facts import DraftKind
from localspec.gguf.header import parts_of
from localspec.models import hub
from localspec.models.local_models import ModelFile
from localspec.models.registry import Pair, stays_inside
from localspec.models.stores import HASH

# The names of drafts in the order in which llama.cpp takes them.
_NAMES = (r"mtp-", r"dflash-|dspark-", r"eagle3-", r".*[-_.]draft(?:[-_.]|$)")


def with_own_draft(pair: Pair) -> Pair:
    """Return the pair with the draft that lies beside its target, if one fits. A draft that was chosen stays.

    A registered pair of the Hub stays as it is: only what is described for the first time is worth a request.
    """
    if pair.draft or pair.kind is DraftKind.LOOKUP or (pair.listed and pair.target.repo):
        return pair
    with suppress(LocalspecError, OSError):  # without an own draft the pair works too
        found = [
            file
            for file in _beside(pair.target)
            if file.file != pair.target.file and _rank(file) < len(_NAMES)
        ]
        if found and pair.drafter is DraftKind.LOOKUP:  # the target has no head inside
            return next(_fitting(pair, found), pair)
    return pair


def _beside(target: ModelFile) -> list[ModelFile]:
    if target.repo:
        listed = hub.listing(target.repo, target.revision)
        files = [
            ModelFile(each.repo, each.file, each.commit, each.bytes, each.sha256 or "") for each in listed
        ]
        return [file for file in files if stays_inside(file.file)]
    # Ollama's folder has the files of all models, and the demo's draft saves no time.
    if HASH.fullmatch(target.place.name) or target.place == demo.target_path():
        return []
    return [ModelFile.at(path) for path in target.place.parent.iterdir() if path == parts_of(path)[0]]


def _rank(file: ModelFile) -> int:
    name = PurePosixPath(file.file.replace("\\", "/")).name.lower()
    kinds = (
        rank for rank, pattern in enumerate(_NAMES) if re.match(pattern, name) and name.endswith(".gguf")
    )
    return next(kinds, len(_NAMES))


def _fitting(pair: Pair, files: Iterable[ModelFile]) -> Iterator[Pair]:
    """Yield pairs of the target and a draft that fits, by kind, then names like the target's, then size."""
    words = set(re.split(r"[-_.]", pair.target.name.lower()))

    def order(file: ModelFile) -> tuple[int, int, int]:
        return _rank(file), -len(words & {*re.split(r"[-_.]", file.name.lower())}), file.all_bytes

    for file in sorted(files, key=order):
        with suppress(LocalspecError, OSError):
            found = replace(pair, draft=file.pinned() if file.repo else file, has_own_draft=True)
            found.check()
            yield found
