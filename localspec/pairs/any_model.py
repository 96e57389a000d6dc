"""Any model of the Hub as a pair: described, pinned under a name among the user's pairs, and found there again."""

import re
from dataclasses import replace

from localspec.errors import NotOnDisk
from localspec.gguf.facts import ModelFacts
from localspec.gguf.header import Header
from localspec.gguf.heads import draft_kind, has_head
from localspec.locks import locked
from localspec.pairs.additions import add_pair
from localspec.pairs.proof import prove
from localspec.pairs.references import HubReference, OpenedFile, hub_reference, open_reference, pin
from localspec.pairs.registry import LocalFile, ModelFile, Pair, PairKind, all_pairs, is_known, users_folder

LOOKUP = "lookup"  # in place of a draft
_LONGEST_NAME = 80  # characters


def is_on_hub(target: str | None, draft: str | None) -> bool:
    """Whether one of the two has to come from the Hub. Raises BadSetting."""
    return any(hub_reference(text) for text in (target, draft) if text and text != LOOKUP)


def known_as(target: str, draft: str | None) -> Pair | None:
    """The pair that was made of these two before."""
    key = _key(target, draft)
    pairs = [pair for pair in all_pairs() if key in pair.aliases]
    return pairs[-1] if pairs else None


def fetched_before(target: str, draft: str | None) -> Pair:
    """The same, or NotOnDisk with the command that fetches it."""
    if pair := known_as(target, draft):
        return pair
    command = f"localspec pull {target}" + (f" --draft {draft}" if draft and draft != LOOKUP else "")
    raise NotOnDisk(f"{_key(target, draft)} was not fetched yet", hint=f"fetch it with: {command}")


def described(target: str, draft: str | None) -> tuple[Pair, OpenedFile]:
    """A pair of these two, proved from their headers, for `keep`; and its target.

    Without a draft the head inside the target proposes, where it has one; else, or with `lookup`, proposals come from
    the text. Raises DownloadFailed, UnknownPair,
    BadModelFile, IncompatiblePair, BadSetting, OSError.
    """
    opened = open_reference(target)
    beside = None if draft in (None, LOOKUP) else open_reference(draft or "")
    prove(opened.header, beside.header if beside else None)
    files = (pin(opened), pin(beside) if beside else None)
    pair = Pair(
        name=_free_name(files, _key(target, draft)),
        kind=_kind(opened.header, beside.header if beside else None, draft),
        target=files[0],
        draft=files[1],
        aliases=(_key(target, draft),),
        use="your own",
        context=ModelFacts.from_header(opened.header).context,
    )
    return pair, opened


def keep(pair: Pair) -> Pair:
    """Write a described pair, under another name where another process has taken its own.

    Raises BadSetting, OSError.
    """
    with locked(users_folder()):
        pair = replace(pair, name=_free_name((pair.target, pair.draft), *pair.aliases))
        add_pair(pair)
    return pair


def _kind(target: Header, beside: Header | None, draft: str | None) -> PairKind:
    if beside:
        return PairKind.of(draft_kind(beside))
    return PairKind.MTP if draft is None and has_head(target) else PairKind.LOOKUP


def _key(target: str, draft: str | None) -> str:
    """Both as they were written, in a form that is the same for every way to write them."""
    return " ".join(_normal(text) for text in (target, draft) if text and text != LOOKUP)


def _normal(text: str) -> str:
    found = hub_reference(text)
    return (found.text if isinstance(found, HubReference) else text).lower()


def _free_name(files: tuple[ModelFile, ModelFile | None], key: str) -> str:
    """A name from the files' own that no other pair has."""
    stems = "+".join(_stem(file) for file in files if file)
    name = re.sub(r"[^a-z0-9._+-]+", "-", stems.lower()).strip("-._+")[:_LONGEST_NAME] or "model"
    ours = {pair.name for pair in all_pairs() if key in pair.aliases}
    numbered = (name if n == 1 else f"{name}-{n}" for n in range(1, 1000))
    return next(free for free in numbered if free in ours or not is_known(free))


def _stem(file: ModelFile) -> str:
    name = file.path.stem if isinstance(file, LocalFile) else file.name.removesuffix(".gguf")
    return re.sub(r"-\d{5}-of-\d{5}$", "", name)
