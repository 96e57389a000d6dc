"""Which known draft goes with a target: those of its family first, then any model here; each proved from its header."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from localspec.errors import LocalspecError
from localspec.gguf.header import Header, header_of_file
from localspec.gguf.shared_tokens import SharedTokens
from localspec.pairs.proof import prove
from localspec.pairs.references import open_file
from localspec.pairs.registry import DEMO, HubFile, ModelFile, all_pairs
from localspec.pairs.store import distinct, locate

_SIZE = re.compile(r"[-_ ]?(?:e|a)?\d+(?:\.\d+)?b\b", re.IGNORECASE)
_MOST_ASKED = 3  # headers that are read over the network, and vocabularies that are compared
_SMALLER = 3  # times, at least, that a draft has to be


def suggested_draft(name: str, target: Header) -> HubFile | None:
    """A draft of the registry that is proved to fit this target, of the same vocabulary; None for none.

    name: of the target's file. Headers of drafts that are not here are read over the network.
    """
    asked = 0
    for draft in _candidates(name):
        if draft.all_bytes * _SMALLER > target.file_bytes:
            continue
        here = locate(draft) is not None
        if not here and asked == _MOST_ASKED:
            continue
        asked += not here
        with suppress(LocalspecError):
            if prove(target, open_file(draft).header) is None:
                return draft
    return None


def draft_of_another_vocabulary(target: Header) -> tuple[Path, SharedTokens] | None:
    """The smallest model here that drafts for this target with the tokens that both have; None for none."""
    files = distinct(file for pair in all_pairs() if pair.name != DEMO for file in pair.files)
    here = [(path.stat().st_size, path) for file in files if (path := locate(file))]
    for size, path in sorted(here)[:_MOST_ASKED]:
        with suppress(LocalspecError):
            shared = prove(target, header_of_file(path))
            if shared and size * _SMALLER <= target.file_bytes:
                return path, shared
    return None


def _candidates(name: str) -> Iterator[HubFile]:
    """Drafts of pairs whose target is of this family, the largest first; then all that are here."""
    pairs = [pair for pair in all_pairs() if pair.name != DEMO]
    family = _family(name)
    related = [pair.draft for pair in pairs if pair.draft and family and _family(pair.target.name) == family]
    here = [pair.draft for pair in pairs if pair.draft and locate(pair.draft)]
    found: list[ModelFile] = [*sorted(related, key=lambda file: -(file.bytes or 0)), *here]
    yield from (file for file in distinct(found) if isinstance(file, HubFile))


def _family(name: str) -> str:
    """What stands before the size in the name of a file, "" where there is no size in it."""
    found = _SIZE.search(name)
    return name[: found.start()].lower().removeprefix("meta-") if found else ""
