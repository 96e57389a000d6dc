"""Find the pair to load: by its name, by a path, or by a model of the Hub, which becomes a pair of the user."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from localspec import demo
from localspec.errors import BadSetting, NotOnDisk, UnknownPair
from localspec.files import expanded, locked
from localspec.gguf.facts import DraftKind, trained_context
from localspec.gguf.header import BLOCKS, parts_of
from localspec.models import hub, local_models
from localspec.models.download import PairNotOnDisk, check_here, fetch
from localspec.models.hub import RemoteFile
from localspec.models.local_models import ModelFile, quant_in
from localspec.models.own_draft import with_own_draft
from localspec.models.registry import (
    DEMO,
    Pair,
    add_pair,
    all_pairs,
    is_known,
    known,
    named,
    near_names,
    opened_as,
    stays_inside,
    users_folder,
)
from localspec.models.stores import HASH, NO_MODEL, file_at, stored

LOOKUP = "lookup"  # the option `draft` with this value copies draft tokens from the text, without a model
_ON_THE_HUB = re.compile(r"(?:hf://)?([\w.-]+/[\w.-]+)(?::(.+\.gguf|[\w.-]+))?", re.IGNORECASE)
_ADDRESS = re.compile(
    r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)"
    r"(?:/(?:resolve|blob|raw)/([^/?#]+)/([^?#]+?)|/tree/[^?#]*|:([\w.-]+))?/?(?:[?#].*)?"
)


def is_file_reference(text: str) -> bool:
    return text.lower().endswith(".gguf") or "/" in text or "\\" in text


def _is_model(text: str) -> bool:
    return is_file_reference(text) or os.path.exists(expanded(text)) or stored(text) is not None


def _as_target(text: str) -> bool:
    """Return whether a text names a target, not a pair: a file or a Hub model whose name no pair has."""
    pair = known(text)
    if os.path.isfile(expanded(text)) and (pair is None or pair.found):
        return is_file_reference(text) or HASH.fullmatch(text) is not None
    return is_file_reference(text) and not is_known(text)


def hub_reference(text: str) -> ModelFile | None:
    """Return the model of a Hub address, ORG/REPO, ORG/REPO:QUANT or ORG/REPO:FILE.gguf; None for other texts."""
    if os.path.exists(expanded(text)) or stored(text):
        return None
    if found := _ADDRESS.fullmatch(text):
        revision = unquote(found[2] or "main")
        named = ModelFile(found[1], unquote(found[3] or ""), revision, quant=found[4] or "")
    elif (found := _ON_THE_HUB.fullmatch(text)) and (found[2] or not text.lower().endswith(".gguf")):
        is_file = (found[2] or "").lower().endswith(".gguf")
        file, quant = (found[2], "") if is_file else ("", found[2] or "")
        named = ModelFile(found[1], file, "main", quant=quant)
    else:
        return None
    if named.file and not (named.file.lower().endswith(".gguf") and stays_inside(named.file)):
        raise BadSetting(f"{text} does not name a file of a repository", hint="write ORG/REPO:FILE.gguf")
    return named


def model_file(text: str) -> ModelFile:
    """Return the model that `text` names: a path on this machine, or a Hub reference. Raises SeveralModels."""
    named = hub_reference(text)
    if named is None:
        return file_at(expanded(text).absolute())
    if named.file and len(parts_of(Path(named.file))) == 1:
        return ModelFile.listed(hub.look(named.repo, named.file, named.revision))
    models = models_in(named.repo, hub.listing(named.repo, named.revision))
    return chosen(named.repo, named.file or named.quant, models)


class SeveralModels(UnknownPair):
    def __init__(self, repo: str, models: tuple[ModelFile, ...], wanted: str) -> None:
        self.repo, self.models = repo, models
        known = dict.fromkeys(quant_in(model.file) or model.file for model in models)
        usual = next((name for name in known if name.upper() == "Q4_K_M"), next(iter(known)))
        found = f"no {wanted}, only" if wanted else f"{len(models)} models"
        hint = f"name one of them, for example {repo}:{usual}"
        super().__init__(f"{repo} has {found}: {', '.join(known)}", hint=hint)


def models_in(repo: str, listed: Sequence[RemoteFile]) -> tuple[ModelFile, ...]:
    """Return a repository's GGUF models, smallest first. Raises UnknownPair if there is none."""
    files, models = {file.file: file for file in listed if stays_inside(file.file)}, []
    for file in files.values():
        path = PurePosixPath(file.file)
        first, *others = (str(path.with_name(part.name)) for part in parts_of(path))
        is_model = path.name.lower().endswith(".gguf") and not NO_MODEL.search(path.name)
        if is_model and file.file == first and files.keys() >= set(others):
            rest = tuple(ModelFile.listed(files[name], file.sha256 or "") for name in others)
            models.append(replace(ModelFile.listed(file), rest=rest))
    if not models:
        raise UnknownPair(f"{repo} has no GGUF model", hint="look for a repository whose name ends in -GGUF")
    return tuple(sorted(models, key=lambda model: model.all_bytes))


def chosen(repo: str, wanted: str, models: tuple[ModelFile, ...]) -> ModelFile:
    text = wanted.lower()
    by_file = [model for model in models if text in (model.file.lower(), model.name.lower())]
    by_part = [model for model in models if text in (part.file.lower() for part in model.rest)]
    by_quant = [model for model in models if quant_in(model.file).lower() == text]
    by_ending = [model for model in models if quant_in(model.file).lower().endswith(f"-{text}")]
    for found in (by_file, by_part, by_quant, by_ending, [] if wanted else list(models)):
        if len(found) == 1:
            return found[0]
    raise SeveralModels(repo, models, wanted)


def quantisation_of(model: ModelFile) -> str:
    """Return the quantisation in a file's name; else the type of most weights. Raises LocalspecError, OSError."""
    weights = Counter[str]()
    for tensor in model.header.tensors:
        weights[BLOCKS[tensor.type][0]] += prod(tensor.shape)
    return quant_in(model.file) or max(weights, key=weights.__getitem__, default="")


def is_on_hub(target: str | None, draft: str | None) -> bool:
    return any(hub_reference(text) for text in (target, draft) if text and text != LOOKUP)


def known_as(target: str, draft: str | None) -> Pair | None:
    key = _key(target, draft)
    return next((pair for pair in reversed(all_pairs()) if key in pair.aliases), None)


def described(target: str, draft: str | None) -> Pair:
    """Return a new pair of target and draft, checked by their headers; `keep` stores the pair.

    If `draft` is None, take the head inside the target, or a draft in its repository; without either, drafts are copied
    from the text.
    """
    ours = model_file(target)
    theirs = None if draft in (None, LOOKUP) else model_file(draft or "")
    pair = Pair("", DraftKind.LOOKUP if draft == LOOKUP else DraftKind.MODEL, ours, theirs)
    pair.check()
    pair, key = with_own_draft(pair), _key(target, draft)
    return replace(
        pair,
        name=_free_name(pair, key),
        kind=pair.drafter,
        target=ours.pinned(),
        draft=pair.draft and pair.draft.pinned(),
        aliases=(key,),
        use="your own",
        context=trained_context(ours.header),
    )


def keep(pair: Pair) -> Pair:
    """Store a pair made by `described`. Rename it if another process has just used its name."""
    with locked(users_folder()):
        pair = replace(pair, name=_free_name(pair, *pair.aliases), listed=True)
        add_pair(pair)
    return pair


def _key(target: str, draft: str | None) -> str:
    texts = {text: hub_reference(text) for text in (target, draft) if text and text != LOOKUP}
    names = (f"{on.repo}:{on.file or on.quant}".rstrip(":") if on else text for text, on in texts.items())
    return " ".join(names).lower()


def _free_name(pair: Pair, key: str) -> str:
    stems = "+".join(re.sub(r"(-\d{5}-of-\d{5})?(\.gguf)?$", "", file.name) for file in pair.files)
    name = re.sub(r"[^a-z0-9._+-]+", "-", stems.lower()).strip("-._+")[:80] or "model"
    ours = {pair.name for pair in all_pairs() if key in pair.aliases}
    numbered = (name if n == 1 else f"{name}-{n}" for n in range(1, 1000))
    return next(free for free in numbered if free in ours or not is_known(free))


def find(
    pair: str | Path | None = None,
    target: str | Path | None = None,
    draft: str | Path | None = None,
    *,
    pull: bool = False,
) -> Pair:
    """Return the pair to load, with all its files on this machine; without arguments, `default_pair()`.

    `pair` is the name of a pair; a path or a Hub model in its place counts as `target`. `target` and `draft`
    are paths or Hub models, for example ORG/REPO:Q4_K_M. `draft` replaces the draft of the pair; the draft
    "lookup" takes draft tokens from the text alone. `pull`: whether to fetch missing files first.
    Raises UnknownPair, PairNotOnDisk (a NotOnDisk), BadModelFile, IncompatiblePair, BadSetting, DownloadFailed.
    """
    for name, given in (("pair", pair), ("target", target), ("draft", draft)):
        if not isinstance(given, str | Path | None):
            raise BadSetting(f"{name} is of type {type(given).__name__}", hint="give a str or a Path")
    pair = None if pair is None else str(pair)
    if pair is not None and target is None and _as_target(pair):
        # `_key` gives hf.co/ORG/REPO and ORG/REPO the same key, so that both find the same pair.
        stored_as = None if os.path.isfile(expanded(pair)) else known(_key(pair, None))
        pair, target = (stored_as.name, None) if stored_as else (None, pair)
    if draft == LOOKUP:
        return find(pair, target, pull=pull).alone
    if draft is not None and is_known(str(draft)) and not _is_model(str(draft)):
        hint = f"give a GGUF file, ORG/REPO:QUANT or {LOOKUP}, or the pair alone: --pair {draft}"
        raise BadSetting(f"{draft} is a pair, and a draft is one model", hint=hint)
    if target is None and draft is not None:
        if pair is None or is_on_hub(None, str(draft)):
            why = f"on Hugging Face does not fit the pair {pair}" if pair else "was given without a target"
            hint = "name its target too: --target FILE (in Python target=...)"
            raise BadSetting(f"the draft {draft} {why}", hint=hint)
        chosen = replace(find(pair, pull=pull), has_own_draft=False, listed=False)
        return replace(chosen, kind=DraftKind.MODEL, draft=file_at(draft))
    if target is not None and pair is not None:
        hint = "name only the pair, or only --target (in Python target=...)"
        raise BadSetting("a pair and a target file were both given", hint=hint)
    is_new = False
    if target is not None:
        texts = str(target), None if draft is None else str(draft)
        before = known_as(*texts)
        if not (before or is_on_hub(*texts)):
            if draft is None:
                return with_own_draft(of_file(target))
            return opened_as(file_at(target), file_at(draft))
        if not (before or pull):
            raise _not_downloaded(*texts)
        chosen, is_new = before or described(*texts), before is None
    else:
        chosen = with_own_draft(named(pair) if pair is not None else default_pair())
    try:
        check_here(chosen)
    except PairNotOnDisk:
        if not pull:
            raise
        fetch(chosen)
    return keep(chosen) if is_new else chosen  # store the pair only now, when its files are verified


def _not_downloaded(target: str, draft: str | None) -> NotOnDisk:
    command = " --draft ".join(filter(None, (f"localspec pull {target}", draft)))
    hint, near = f"download it with: {command}", [name for name in near_names(target) if ":" in name]
    hint += f", or use what is here: {' or '.join(near)}" if near else ""
    return NotOnDisk(f"{target} was not downloaded yet", hint=hint)


def default_pair() -> Pair:
    """Return the pair that was used or downloaded last; the demo if no other pair is on this machine."""
    uses, demo_target = local_models.last_uses(), demo.target_path()

    def latest(pair: Pair) -> tuple[float, ...]:
        """Return the sort key of a pair: when it was last used or its newest file written; then two times for ties."""
        written, used = [file.here.stat().st_mtime for file in pair.files], uses.get(pair.used_as, 0.0)
        return max(used, *written), used, written[0]

    usable = (pair for pair in all_pairs() if pair.used_as in uses or not pair.found)
    here = [pair for pair in usable if pair.on_disk and pair.target.path != demo_target]
    return max(here, key=latest, default=None) or known(DEMO) or named(DEMO)


def of_file(target: str | Path) -> Pair:
    return opened_as(file_at(target))
