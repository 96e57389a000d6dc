"""Finds the pair to load: by a model on the Hub, a path on this machine, or a pair's name.

A model of the Hub becomes a pair of the user's, pinned to its files and found again by the same names.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from stat import S_ISREG
from typing import Any
from urllib.parse import unquote

from localspec import demo
from localspec.display import size_text
from localspec.errors import (
    BadModelFile,
    BadSetting,
    NotOnDisk,
    UnknownPair,
)
from localspec.files import expanded, locked
from localspec.gguf.facts import DraftKind, has_head, trained_context
from localspec.gguf.header import parts_of
from localspec.models import hub, places
from localspec.models.download import absent, bytes_to_fetch, fetch
from localspec.models.hub import RemoteFile
from localspec.models.places import ModelFile
from localspec.models.registry import (
    DEMO,
    Pair,
    add_pair,
    all_pairs,
    is_known,
    named,
    stays_inside,
    users_folder,
)

LOOKUP = "lookup"  # in place of a draft
_LONGEST_NAME = 80  # characters
_ON_THE_HUB = re.compile(r"(?:hf://)?([\w.-]+/[\w.-]+)(?::(.+\.gguf|[\w.-]+))?", re.IGNORECASE)
_ADDRESS = re.compile(
    r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)"
    r"(?:/(?:resolve|blob|raw)/([^/?#]+)/([^?#]+?)|/tree/[^?#]*|:([\w.-]+))?/?(?:[?#].*)?"
)

_QUANT = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|TQ\d_\d|MXFP4\w*|NVFP4|BF16|F16|F32|FP16|FP32))(?=[-./]|$)",
    re.IGNORECASE,
)
# Heads, parts of models that see images, and the matrices that steer quantising.
_NO_MODEL = re.compile(r"^(?:mtp-|eagle3-|dflash-|dspark-)|mmproj|imatrix", re.IGNORECASE)


def is_file_reference(text: str) -> bool:
    """Whether a text names a file or a repository rather than a pair."""
    return text.lower().endswith(".gguf") or "/" in text or "\\" in text


def hub_reference(text: str) -> ModelFile | None:
    """ORG/REPO, ORG/REPO:QUANT, ORG/REPO:FILE.gguf, or an address of the Hub, not pinned; None for anything else.

    A text that is a path on this machine gives None. Raises BadSetting.
    """
    if os.path.exists(expanded(text)):
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
    """The model of a reference as it is on the Hub now, or of a path on this machine.

    Raises SeveralModels, UnknownPair, DownloadFailed, BadSetting.
    """
    named = hub_reference(text)
    if named is None:
        return _file_at(expanded(text).absolute())
    if named.file and len(parts_of(Path(named.file))) == 1:
        return _as_listed(hub.look(named.repo, named.file, named.revision))
    models = models_in(named.repo, hub.listing(named.repo, named.revision))
    return chosen(named.repo, named.file or named.quant, models)


class SeveralModels(UnknownPair):
    """The name of a repository fits several of its models, or none."""

    def __init__(self, repo: str, models: tuple[ModelFile, ...], wanted: str) -> None:
        self.repo, self.models = repo, models
        known = ", ".join(dict.fromkeys(quant_of(model) or model.file for model in models))
        what = f"has no {wanted}" if wanted else f"holds {len(models)} models"
        usual = next((model for model in models if quant_of(model).upper() == "Q4_K_M"), models[0])
        first = quant_of(usual) or models[0].file
        super().__init__(f"{repo} {what}: {known}", hint=f"name one of them, for example {repo}:{first}")


def models_in(repo: str, listed: Sequence[RemoteFile]) -> tuple[ModelFile, ...]:
    """The GGUF models of a repository, smallest first; a model in several files is one. Raises UnknownPair for none."""
    files = {file.file: file for file in listed if _is_model(file)}
    models = []
    for file in files.values():
        path = PurePosixPath(file.file)
        names = [str(path.with_name(part.name)) for part in parts_of(path)]
        if file.file == names[0] and files.keys() >= set(names):
            rest = tuple(_as_listed(files[name], file.sha256 or "") for name in names[1:])
            models.append(replace(_as_listed(file), rest=rest))
    if not models:
        raise UnknownPair(f"{repo} has no GGUF model", hint="look for a repository whose name ends in -GGUF")
    return tuple(sorted(models, key=lambda model: model.all_bytes))


def chosen(repo: str, wanted: str, models: tuple[ModelFile, ...]) -> ModelFile:
    """The model with the wanted file or quantisation, or the only one. Raises SeveralModels."""
    text = wanted.lower()
    by_file = [model for model in models if text in (model.file.lower(), model.name.lower())]
    by_part = [model for model in models if text in (part.file.lower() for part in model.rest)]
    by_quant = [model for model in models if quant_of(model).lower() == text]
    by_ending = [model for model in models if quant_of(model).lower().endswith(f"-{text}")]
    for found in (by_file, by_part, by_quant, by_ending, [] if wanted else list(models)):
        if len(found) == 1:
            return found[0]
    raise SeveralModels(repo, models, wanted)


def quant_of(model: ModelFile) -> str:
    """The quantisation in a file's name; "" for none."""
    found = _QUANT.findall(model.file.removesuffix(".gguf"))
    return str(found[-1]) if found else ""


def _is_model(file: RemoteFile) -> bool:
    name = PurePosixPath(file.file).name
    return name.lower().endswith(".gguf") and not _NO_MODEL.search(name) and stays_inside(file.file)


def _as_listed(file: RemoteFile, first_sha256: str = "") -> ModelFile:
    sha256 = file.sha256 or ""
    return ModelFile(file.repo, file.file, file.commit, file.bytes, sha256, first_sha256=first_sha256)


def is_on_hub(target: str | None, draft: str | None) -> bool:
    """Whether one of the two has to come from the Hub. Raises BadSetting."""
    return any(hub_reference(text) for text in (target, draft) if text and text != LOOKUP)


def known_as(target: str, draft: str | None) -> Pair | None:
    """The pair that an earlier pull made of these two."""
    key = _key(target, draft)
    pairs = [pair for pair in all_pairs() if key in pair.aliases]
    return pairs[-1] if pairs else None


def fetched_before(target: str, draft: str | None) -> Pair:
    """`known_as`, or NotOnDisk with the command that fetches the pair."""
    if pair := known_as(target, draft):
        return pair
    command = f"localspec pull {target}" + (f" --draft {draft}" if draft and draft != LOOKUP else "")
    raise NotOnDisk(f"{_key(target, draft)} was not fetched yet", hint=f"fetch it with: {command}")


def described(target: str, draft: str | None) -> Pair:
    """A pair of these two, checked by their headers, for `keep`.

    Without a draft the head inside the target drafts, if there is one. Without a head, and with `lookup`, drafts come
    from the text. Raises DownloadFailed, UnknownPair, BadModelFile, IncompatiblePair, BadSetting, OSError.
    """
    ours = model_file(target)
    theirs = None if draft in (None, LOOKUP) else model_file(draft or "")
    kind = DraftKind.MTP if draft is None and has_head(ours.header) else DraftKind.LOOKUP
    pair = Pair("", theirs.kind if theirs else kind, ours, theirs)
    pair.check()
    key = _key(target, draft)
    return replace(
        pair,
        name=_free_name(pair, key),
        target=ours.pinned(),
        draft=theirs and theirs.pinned(),
        aliases=(key,),
        use="your own",
        context=trained_context(ours.header),
    )


def keep(pair: Pair) -> Pair:
    """Write a described pair, under another name where another process has taken its own.

    Raises BadSetting, OSError.
    """
    with locked(users_folder()):
        pair = replace(pair, name=_free_name(pair, *pair.aliases))
        add_pair(pair)
    return pair


def _key(target: str, draft: str | None) -> str:
    """The names of target and draft, normalised."""
    texts = [text for text in (target, draft) if text and text != LOOKUP]
    return " ".join(map(_shortest, texts)).lower()


def _shortest(text: str) -> str:
    named = hub_reference(text)
    if named is None:
        return text
    which = named.file or named.quant
    return f"{named.repo}:{which}" if which else named.repo


def _free_name(pair: Pair, key: str) -> str:
    """A name from the files' own that no other pair has."""
    stems = "+".join(re.sub(r"(-\d{5}-of-\d{5})?(\.gguf)?$", "", file.name) for file in pair.files)
    name = re.sub(r"[^a-z0-9._+-]+", "-", stems.lower()).strip("-._+")[:_LONGEST_NAME] or "model"
    ours = {pair.name for pair in all_pairs() if key in pair.aliases}
    numbered = (name if n == 1 else f"{name}-{n}" for n in range(1, 1000))
    return next(free for free in numbered if free in ours or not is_known(free))


class PairNotOnDisk(NotOnDisk):
    """A known pair whose files have to be fetched first."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        to_fetch = bytes_to_fetch(pair)
        what = f"{size_text(to_fetch)} to fetch" if to_fetch else "another program has it, not checked yet"
        super().__init__(
            f"{pair.name} is not on this machine ({what})", hint=f"fetch it with: localspec pull {pair.name}"
        )


def find(
    pair: str | Path | None = None,
    target: str | Path | None = None,
    draft: str | Path | None = None,
    *,
    pull: bool = False,
) -> Pair:
    """The pair to load, all of it here: by its name, of these files, or `default_pair()`.

    A path or a model of the Hub in place of a name is the target, unless a pair is called so. A target or draft on the
    Hub (ORG/REPO:Q4_K_M) is the pair that a pull made of it. With the draft `lookup` the text alone drafts; another one
    takes the place of the pair's own. `pull` fetches what is not here.
    Raises UnknownPair, PairNotOnDisk (a NotOnDisk), BadModelFile, IncompatiblePair, BadSetting, DownloadFailed.
    """
    for name, given in (("pair", pair), ("target", target), ("draft", draft)):
        if given is not None and not isinstance(given, str | Path):
            raise BadSetting(f"{name} is of type {type(given).__name__}", hint="give a text or a Path")
    pair = None if pair is None else str(pair)
    if pair is not None and target is None and is_file_reference(pair) and not is_known(pair):
        pair, target = None, pair
    if draft == LOOKUP:
        return find(pair, target, pull=pull).alone
    if target is None and draft is not None:
        if pair is None or is_on_hub(None, str(draft)):
            hint = "name its target too: --target FILE (in Python target=...)"
            why = (
                "was given without a target"
                if pair is None
                else f"of the Hub does not go with the pair {pair}"
            )
            raise BadSetting(f"the draft {draft} {why}", hint=hint)
        found = find(pair, draft=LOOKUP, pull=pull)
        return replace(found, kind=DraftKind.MODEL, draft=_file_at(expanded(draft)))
    if target is not None and pair is not None:
        raise BadSetting("a pair and a target file were both given", hint="name one of them")
    if target is not None:
        texts = str(target), None if draft is None else str(draft)
        if not is_on_hub(*texts):
            return _of_files(expanded(target), None if draft is None else expanded(draft))
        found = known_as(*texts) or keep(described(*texts)) if pull else fetched_before(*texts)
    else:
        found = named(pair) if pair is not None else default_pair()
    if not found.on_disk:
        missing = _why_missing(found, next(file for file in found.files if not file.path))
        if not (pull and isinstance(missing, PairNotOnDisk)):
            raise missing
        fetch(found)
    return found


def default_pair() -> Pair:
    """With no pair named: the one used or fetched last, or the files used last; the demo while nothing else is here."""
    uses, toy = places.last_uses(), demo.target_path()

    def latest(pair: Pair) -> tuple[float, ...]:
        """Seconds since 1970: of its last use or newest file; then of what it does not share with other pairs."""
        written, used = [file.here.stat().st_mtime for file in pair.files], uses.get(used_as(pair), 0.0)
        return max(used, *written), used, written[0]

    absolute = ([Path(path) for path in use.split("\n")] for use in uses if Path(use).is_absolute())
    files = [_of_files(*paths) for paths in absolute if all(path.is_file() for path in paths)]
    here = [pair for pair in (*all_pairs(), *files) if pair.on_disk and pair.target.path != toy]
    return max(here, key=latest, default=None) or named(DEMO)


def asked_as(pair: Pair) -> dict[str, Any]:
    """The arguments that `find` finds this pair by: its name, or its files where it has none."""
    if is_known(pair.name) and named(pair.name).target == pair.target:
        return {"pair": pair.name}
    paths = (str(file.place.absolute()) for file in pair.files)
    return dict(zip(("target", "draft"), paths, strict=False))


def used_as(pair: Pair) -> str:
    """The text under which its last use is remembered."""
    return "\n".join(asked_as(pair).values())


def _of_files(target: Path, draft: Path | None = None) -> Pair:
    return Pair(
        parts_of(target)[0].stem, DraftKind.MODEL, _file_at(target), _file_at(draft) if draft else None
    )


def _file_at(path: Path) -> ModelFile:
    try:
        why = "" if S_ISREG(path.stat().st_mode) else "is no file"
    except FileNotFoundError:
        why = "does not exist"
    except (OSError, ValueError) as error:  # ValueError: a name with NUL
        why = f"cannot be read: {getattr(error, 'strerror', error)}"
    if why:
        raise UnknownPair(f"{path} {why}", hint="give the path of a GGUF file that you may read")
    return ModelFile.at(path)


def _why_missing(pair: Pair, file: ModelFile) -> Exception:
    if file.repo:
        return PairNotOnDisk(pair)
    if not file.place.exists():
        return absent(pair, file)
    return BadModelFile(
        f"{file.file} is no longer the file that {pair.name} was made with: it has another size",
        hint="`localspec pairs add` writes the pair again",
    )
