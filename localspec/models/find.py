"""How a user names a model: on the Hub, or by a path on this machine.

A model of the Hub becomes a pair of the user's, pinned to its files and found again by the same names.
"""

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from localspec.display import size_text
from localspec.errors import (
    BadModelFile,
    BadSetting,
    DownloadFailed,
    IncompatiblePair,
    NotOnDisk,
    UnknownPair,
)
from localspec.files import expanded, locked
from localspec.gguf.facts import ModelFacts, draft_kind, has_head
from localspec.gguf.header import Header, header_at, joined, parts_of, read_header
from localspec.gguf.matching import Adapter, prove
from localspec.models import hub, store
from localspec.models.hub import RemoteFile
from localspec.models.registry import (
    DEMO,
    HubFile,
    LocalFile,
    ModelFile,
    Pair,
    PairKind,
    add_pair,
    all_pairs,
    find,
    is_known,
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


@dataclass(frozen=True, slots=True)
class HubReference:
    """A model of a repository, as a user names it."""

    repo: str
    file: str = ""  # "": the model is named by its quantisation, or not at all
    quant: str = ""
    revision: str = "main"

    @property
    def text(self) -> str:
        """The shortest way to write it."""
        named = self.file or self.quant
        return f"{self.repo}:{named}" if named else self.repo


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """A file, here or on the Hub, and its header."""

    file: ModelFile
    header: Header
    path: Path | None  # None: only on the Hub


def is_file_reference(text: str) -> bool:
    """Whether a text names a file or a repository rather than a pair."""
    return text.lower().endswith(".gguf") or "/" in text or "\\" in text


def hub_reference(text: str) -> HubReference | None:
    """ORG/REPO, ORG/REPO:QUANT, ORG/REPO:FILE.gguf, or an address of the Hub; None for anything else.

    A text that is a path on this machine gives None. Raises BadSetting.
    """
    if os.path.exists(expanded(text)):
        return None
    if found := _ADDRESS.fullmatch(text):
        named = HubReference(found[1], unquote(found[3] or ""), found[4] or "", unquote(found[2] or "main"))
    elif (found := _ON_THE_HUB.fullmatch(text)) and (found[2] or not text.lower().endswith(".gguf")):
        is_file = (found[2] or "").lower().endswith(".gguf")
        named = HubReference(found[1], found[2] if is_file else "", "" if is_file else found[2] or "")
    else:
        return None
    if named.file and not (named.file.lower().endswith(".gguf") and stays_inside(named.file)):
        raise BadSetting(f"{text} does not name a file of a repository", hint="write ORG/REPO:FILE.gguf")
    return named


def open_reference(text: str) -> OpenedFile:
    """Find a model and read its header, over the network where it is not here.

    Raises DownloadFailed, UnknownPair, BadModelFile, BadSetting.
    """
    if found := hub_reference(text):
        file = pinned(found)
        return OpenedFile(file, _hub_header(file), None)
    path = expanded(text).absolute()
    header = header_at(path)
    return OpenedFile(LocalFile(path, header.file_bytes), header, path)


def open_file(file: ModelFile) -> OpenedFile:
    """Read the header of a known file, over the network where it is not here."""
    path = store.locate(file)
    if path is not None:
        return OpenedFile(file, header_at(path), path)
    if isinstance(file, LocalFile):
        raise BadModelFile(
            f"{file.path} does not exist", hint="put it there, or write the pair again: `localspec pairs add`"
        )
    return OpenedFile(file, _hub_header(file), None)


def _hub_header(file: HubFile) -> Header:
    """The header of a model on the Hub, by range requests of a few megabytes for each of its files."""
    remotes = [hub.look(part.repo, part.file, part.revision) for part in (file, *file.rest)]
    headers = [
        read_header(partial(hub.read_range, remote), remote.bytes, label=remote.name) for remote in remotes
    ]
    return joined(Path(file.name), headers) if file.rest else headers[0]


def pin(opened: OpenedFile) -> ModelFile:
    """The file with everything that a registry entry needs; a local one is hashed for it."""
    if isinstance(opened.file, HubFile):
        if not opened.file.sha256:
            raise DownloadFailed(
                f"the Hub gives no sha256 for {opened.file.repo}:{opened.file.file}, so it cannot be pinned",
                hint="fetch the file yourself and add it by its path",
            )
        return opened.file
    assert opened.path is not None
    sha256 = store.known_sha256(opened.path) or store.hash_file(opened.path)
    return LocalFile(opened.path, opened.path.stat().st_size, sha256)


def pinned(named: HubReference) -> HubFile:
    """The model of a reference as it is on the Hub now. Raises SeveralModels, UnknownPair, DownloadFailed."""
    if named.file and len(parts_of(Path(named.file))) == 1:
        return _hub_file(hub.look(named.repo, named.file, named.revision))
    models = models_in(named.repo, hub.listing(named.repo, named.revision))
    return chosen(named.repo, named.file or named.quant, models)


class SeveralModels(UnknownPair):
    """The name of a repository fits several of its models, or none."""

    def __init__(self, repo: str, models: tuple[HubFile, ...], wanted: str) -> None:
        self.repo, self.models = repo, models
        known = ", ".join(dict.fromkeys(quant_of(model) or model.file for model in models))
        what = f"has no {wanted}" if wanted else f"holds {len(models)} models"
        usual = next((model for model in models if quant_of(model).upper() == "Q4_K_M"), models[0])
        first = quant_of(usual) or models[0].file
        super().__init__(f"{repo} {what}: {known}", hint=f"name one of them, for example {repo}:{first}")


def models_in(repo: str, listed: Sequence[RemoteFile]) -> tuple[HubFile, ...]:
    """The GGUF models of a repository, smallest first; a model in several files is one. Raises UnknownPair for none."""
    files = {file.file: file for file in listed if _is_model(file)}
    models = []
    for file in files.values():
        path = PurePosixPath(file.file)
        names = [str(path.with_name(part.name)) for part in parts_of(path)]
        if file.file == names[0] and files.keys() >= set(names):
            rest = tuple(_hub_file(files[name], file.sha256 or "") for name in names[1:])
            models.append(replace(_hub_file(file), rest=rest))
    if not models:
        raise UnknownPair(f"{repo} has no GGUF model", hint="look for a repository whose name ends in -GGUF")
    return tuple(sorted(models, key=lambda model: model.all_bytes))


def chosen(repo: str, wanted: str, models: tuple[HubFile, ...]) -> HubFile:
    """The model whose file or quantisation is wanted, any case; the only one where nothing is. Raises SeveralModels."""
    text = wanted.lower()
    by_file = [model for model in models if text in (model.file.lower(), model.name.lower())]
    by_part = [model for model in models if text in (part.file.lower() for part in model.rest)]
    by_quant = [model for model in models if quant_of(model).lower() == text]
    by_ending = [model for model in models if quant_of(model).lower().endswith(f"-{text}")]
    for found in (by_file, by_part, by_quant, by_ending, [] if wanted else list(models)):
        if len(found) == 1:
            return found[0]
    raise SeveralModels(repo, models, wanted)


def quant_of(model: HubFile) -> str:
    """The quantisation that the name of a file tells; "" for none."""
    found = _QUANT.findall(model.file.removesuffix(".gguf"))
    return str(found[-1]) if found else ""


def size_of(model: HubFile) -> str:
    parts = f" in {len(model.rest) + 1} files" if model.rest else ""
    return f"{size_text(model.all_bytes)}{parts}"


def _is_model(file: RemoteFile) -> bool:
    name = PurePosixPath(file.file).name
    return name.lower().endswith(".gguf") and not _NO_MODEL.search(name) and stays_inside(file.file)


def _hub_file(file: RemoteFile, first_sha256: str = "") -> HubFile:
    sha256 = file.sha256 or ""
    return HubFile(file.repo, file.file, file.commit, file.bytes, sha256, first_sha256=first_sha256)


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


def described(target: str, draft: str | None) -> tuple[Pair, OpenedFile]:
    """A pair of these two, proved from their headers, for `keep`; and its target.

    Without a draft the head inside the target drafts, if there is one. Without a head, and with `lookup`, drafts come
    from the text. Raises DownloadFailed, UnknownPair, BadModelFile, IncompatiblePair, BadSetting, OSError.
    """
    opened = open_reference(target)
    beside = None if draft in (None, LOOKUP) else open_reference(draft or "")
    prove(opened.header, beside.header if beside else None)
    kind = PairKind.MTP if draft is None and has_head(opened.header) else PairKind.LOOKUP
    if beside:
        kind = PairKind.of(draft_kind(beside.header))
    files = (pin(opened), pin(beside) if beside else None)
    pair = Pair(
        name=_free_name(files, _key(target, draft)),
        kind=kind,
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


def _key(target: str, draft: str | None) -> str:
    """Both names in one form, however the user wrote them."""
    texts = [text for text in (target, draft) if text and text != LOOKUP]
    return " ".join((found.text if (found := hub_reference(text)) else text).lower() for text in texts)


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


@dataclass(frozen=True, slots=True)
class Newer:
    """The Hub has another file in the place of a pinned one."""

    pair: str
    file: HubFile
    bytes: int | None  # None: no file of that name any more

    @property
    def text(self) -> str:
        return f"{self.file.repo}:{self.file.file}"


def outdated() -> tuple[Newer, ...]:
    """One question to the Hub for each file of the pairs that are here. Raises DownloadFailed."""
    found = []
    for pair in filter(store.on_disk, all_pairs()):
        for file in pair.hub_files:
            try:
                remote = hub.look(file.repo, file.file)
            except UnknownPair:
                found.append(Newer(pair.name, file, None))
                continue
            if remote.sha256 is None:
                raise DownloadFailed(f"the Hub gives no sha256 for {remote.name}", hint="check HF_ENDPOINT")
            if remote.sha256 != file.sha256:
                found.append(Newer(pair.name, file, remote.bytes))
    return tuple(found)


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
    """Pairs on disk, newest first, if none was used yet."""
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
        else f"drafts with a file of its own ({pair.kind}), but names no file"
    )
    raise IncompatiblePair(f"{pair.name} {how}", hint="write the pair again: `localspec pairs add`")


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
            hint="put it there, or write the pair again: `localspec pairs add`",
        )
    return BadModelFile(
        f"{file.path} is no longer the file that {pair.name} was made with: it has another size",
        hint="`localspec pairs add` writes the pair again",
    )
