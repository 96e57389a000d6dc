"""Find a draft for a model: one in the same folder or repository of the Hub, or one of its family."""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import PurePosixPath

from localspec import demo
from localspec.errors import LocalspecError
from localspec.gguf.facts import DraftKind
from localspec.gguf.header import parts_of
from localspec.gguf.matching import check
from localspec.models import hub
from localspec.models.local_models import ModelFile, distinct
from localspec.models.registry import Pair, registered_pairs, stays_inside
from localspec.models.stores import HASH

_SIZE = re.compile(r"[-_ :]?((?:e|a)?\d+(?:\.\d+)?[bm])(?![a-z0-9])", re.IGNORECASE)
# Patterns of the names of drafts, in the order in which llama.cpp prefers them.
_NAMES = (r"mtp-", r"dflash-|dspark-", r"eagle3-", r".*[-_.]draft(?:[-_.]|$)")


def with_own_draft(pair: Pair) -> Pair:
    """Return the pair with a draft from the folder or repository of its target, if one fits. Keep a given draft.

    A model of another program also gets a draft of its family that is on this machine.
    A registered pair of the Hub stays as it is, because the search would need a request.
    """
    if pair.draft or pair.kind is DraftKind.LOOKUP or (pair.listed and pair.target.repo):
        return pair
    with suppress(LocalspecError, OSError):  # the pair also works without this draft
        beside = (file for file in _beside(pair.target) if file.file != pair.target.file)
        found = [file for file in beside if _rank(file) < len(_NAMES)]
        if pair.drafter is DraftKind.LOOKUP:  # the target has no head of its own
            related = [draft for draft in family_drafts(pair) if draft.path] if pair.found else []
            return next(chain(_fitting(pair, found), _fitting(pair, related)), pair)
    return pair


def _beside(target: ModelFile) -> list[ModelFile]:
    if target.repo:
        files = map(ModelFile.listed, hub.listing(target.repo, target.revision))
        return [file for file in files if stays_inside(file.file)]
    # Ollama's folder has the files of all models, and the demo's draft saves no time: neither folder is searched.
    if HASH.fullmatch(target.place.name) or target.place == demo.target_path():
        return []
    return [ModelFile.at(path) for path in target.place.parent.iterdir() if path == parts_of(path)[0]]


def _rank(file: ModelFile) -> int:
    name = PurePosixPath(file.file.replace("\\", "/")).name.lower()
    is_gguf = name.endswith(".gguf")
    return next((rank for rank, kind in enumerate(_NAMES) if is_gguf and re.match(kind, name)), len(_NAMES))


def _fitting(pair: Pair, files: Iterable[ModelFile]) -> Iterator[Pair]:
    """Yield pairs of the target and a fitting draft, sorted by kind of draft, then by similar name, then by size."""
    words = set(re.split(r"[-_.]", pair.target.name.lower()))

    def order(file: ModelFile) -> tuple[int, int, int]:
        return _rank(file), -len(words & {*re.split(r"[-_.]", file.name.lower())}), file.all_bytes

    for file in sorted(files, key=order):
        with suppress(LocalspecError, OSError):
            found = replace(pair, draft=file.pinned() if file.repo else file, has_own_draft=True)
            found.check()
            yield found


def family_drafts(pair: Pair) -> tuple[ModelFile, ...]:
    """Return the small drafts of registered pairs whose target has this target's family, the largest first.

    A head drafts only for a target of its own size.
    """
    header = pair.target.header
    names = pair.name, pair.target.name, header.text("general.name")
    ours = {family for name in names if (family := _family(name))}
    found = []
    for other in registered_pairs():
        theirs = _family(other.target.name)
        is_ours = theirs in ours if other.kind.is_head else theirs and theirs[0] in dict(ours)
        if (draft := other.draft) and draft.repo and is_ours and 3 * draft.all_bytes <= header.file_bytes:
            found.append(draft)
    return distinct(sorted(found, key=lambda file: -file.bytes))


def suggested_draft(pair: Pair) -> ModelFile | None:
    """Return a small draft of the registry with the target's vocabulary, or None."""
    related = family_drafts(pair)[:3]  # few of them, because each header may come from the Hub
    drafts = (other.draft for other in registered_pairs())
    here = (draft for draft in drafts if draft and draft.repo and draft.path)  # without the demo's draft
    for file in distinct([*related, *here]):
        with suppress(LocalspecError):
            is_small = 3 * file.all_bytes <= pair.target.header.file_bytes
            if is_small and check([pair.target.header, file.header]) is None:
                return file
    return None


def _family(name: str) -> tuple[str, str] | None:
    """Return the family and the size in a model's name, for example ("qwen3", "8b"); None without a size."""
    if not (found := _SIZE.search(name)):
        return None
    letters = re.sub(r"[^a-z0-9]", "", name[: found.start()].lower())
    return letters.removeprefix("meta"), found[1].lower()
