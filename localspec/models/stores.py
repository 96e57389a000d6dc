"""Find the models of other programs: Ollama, LM Studio, the Hugging Face cache, and llama.cpp.

Their files are only read. They may change at any time, and may be broken in any way.
"""

import glob
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from stat import S_ISREG
from typing import Any

from localspec.errors import BadModelFile, UnknownPair
from localspec.files import expanded, read_json_object, write_atomically
from localspec.gguf.facts import draft_kind, first_known_crash
from localspec.gguf.header import header_of_part, parts_of
from localspec.models.local_models import (
    HUGGING_FACE,
    LLAMA_CPP,
    LM_STUDIO,
    OLLAMA,
    ModelFile,
    folders_of,
    quant_in,
)
from localspec.options import REPLY, data_dir

NO_MODEL = re.compile(  # names of files that do not run alone: heads, drafts, image encoders, imatrix files
    r"^(?:mtp-|eagle3-|dflash-|dspark-)|mmproj|imatrix|[-_.]draft(?:[-_.]|$)", re.IGNORECASE
)
BLOB = re.compile(r"sha256-[0-9a-f]{64}")
HASH = re.compile(rf"{BLOB.pattern}|[0-9a-f]{{64}}")  # names of files that are hashes of their content
_MOST_BYTES = 1_000_000  # largest file that `_content` reads; Ollama's manifests are smaller
_VERSION = "2"  # raise this number when `_facts` returns something else
_LAYER = "application/vnd.ollama.image."
# By program: the patterns of its model files below its folder.
_PATTERNS = {
    LM_STUDIO: ("*/*/*.gguf", "*/*/*.safetensors"),
    HUGGING_FACE: ("models--*--*/snapshots/*/*.gguf", "models--*--*/snapshots/*/*/*.gguf"),
    LLAMA_CPP: ("*.gguf",),
}


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model of another program."""

    name: str  # the name of the model in that program
    store: str
    path: str  # path of the GGUF, or of the manifest or folder if there is no GGUF
    aliases: tuple[str, ...] = ()
    projector: str = ""  # path of its projector for images
    params: str = ""  # path of Ollama's parameters, which are JSON
    system: str = ""  # path of Ollama's system message
    trouble: str = ""  # why the model cannot be loaded, as a phrase to follow its name

    @property
    def file(self) -> ModelFile:
        return ModelFile("", self.path, label=self.name)

    @property
    def why_not(self) -> str:
        """Why llama.cpp cannot load the model, as a phrase to follow its name; "" if no reason is known."""
        return self.trouble or _known_facts(self.path)[0]

    def check(self) -> None:
        """Raise BadModelFile if llama.cpp cannot load the model."""
        if why := self.why_not:
            hint = "look for the same model as a GGUF: `localspec pairs`, or ORG/REPO-GGUF on Hugging Face"
            raise BadModelFile(f"{self.name}, found in {self.store}, {why}", hint=hint)

    @property
    def about(self) -> str:
        text = self.trouble or next(filter(None, _known_facts(self.path)), "")
        return f"found in {self.store}" + f"; it {text}" * bool(text)

    @property
    def options(self) -> dict[str, Any]:
        """The system message and the sampler's options of Ollama, by their names in localspec's options."""
        found = {name: value for name, value in _object(self.params).items() if name in REPLY}
        with suppress(OSError, ValueError):
            found["system"] = _content(self.system).decode() or None
        return {
            name: value for name, value in found.items() if value is not None and REPLY[name].admits(value)
        }

    @property
    def context(self) -> int | None:
        """The context length that Ollama uses (num_ctx), in tokens; localspec only shows it."""
        value = _object(self.params).get("num_ctx")
        return value if isinstance(value, int) else None


def stored_models() -> tuple[StoredModel, ...]:
    """Return the models of all programs. A name that two of them have gets the program as its prefix."""
    found = dict[str, StoredModel]()
    for models in (_ollama(), *map(_in_repos, _PATTERNS)):
        for model in models:
            own = f"{model.store.lower().replace(' ', '-')}:{model.name}"
            name = own if model.name.lower() in found else model.name
            found.setdefault(name.lower(), replace(model, name=name, aliases=(*model.aliases, own)))
    return tuple(found.values())


def stored(name: str) -> StoredModel | None:
    """Return another program's model by its name or, if no model has this name, by an alias; else None."""
    wanted, models = name.strip().lower(), stored_models() if name.strip() else ()
    named = {text.lower(): model for model in reversed(models) for text in model.aliases}
    return (named | {model.name.lower(): model for model in models}).get(wanted)


def labelled(path: Path) -> ModelFile:
    """Return a file of this machine. If its name is a hash, its label is the name of the model."""
    if not HASH.fullmatch(path.name):
        return ModelFile.at(path)
    here, name = os.path.realpath(path), ""
    with suppress(OSError, BadModelFile):
        same = (model.name for model in stored_models() if os.path.realpath(model.path) == here)
        name = next(same, "") or header_of_part(path).text("general.name")
    return replace(ModelFile.at(path), label=name or "model")


def file_at(given: str | Path) -> ModelFile:
    """Return the file at a path, or another program's model of this name. Raises UnknownPair, BadModelFile."""
    path, model = expanded(given), stored(str(given))
    if model and not path.is_file():
        model.check()
        return model.file
    try:
        why = "" if S_ISREG(path.stat().st_mode) else "is not a file"
    except FileNotFoundError:
        why = "does not exist"
    except (OSError, ValueError) as error:  # ValueError: the path contains NUL
        why = f"cannot be read: {getattr(error, 'strerror', error)}"
    if why:
        raise UnknownPair(f"{path} {why}", hint="give the path of a GGUF file that you may read")
    return labelled(path)


def _known_facts(path: str) -> tuple[str, str]:
    """Return `_facts` of a file; they are computed again only if the file has changed."""
    try:
        now = os.stat(path)
    except OSError as error:
        return f"cannot be read: {error.strerror}", ""
    known, state = _remembered(table := data_dir() / "stores.json"), [_VERSION, now.st_size, now.st_mtime_ns]
    if known.get(path, [])[:-2] != state:
        known[path] = [*state, *_facts(Path(path))]
        with suppress(OSError):
            write_atomically(table, json.dumps(known).encode(), lasting=False)
    why_not, about = known[path][-2:]
    return str(why_not), str(about)


@lru_cache(maxsize=1)
def _remembered(table: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        return {path: found for path, found in read_json_object(table).items() if isinstance(found, list)}
    return {}


def _facts(path: Path) -> tuple[str, str]:
    """Return why a file cannot be loaded, and a remark for its user; each is "" if there is none."""
    try:
        header = header_of_part(path)
    except BadModelFile as error:
        return str(error).removeprefix(f"{path} "), ""
    if header.architecture == "clip" or draft_kind(header).is_head:
        return "is a part of another model", ""
    if any(tensor.name.startswith(("v.", "a.", "mm.")) for tensor in header.tensors):
        return "is in a format of Ollama's own: its image encoder is inside", ""
    if f"{header.architecture}.pooling_type" in header.entries:
        return "is a model for embeddings, and writes no text", ""
    template = header.text("tokenizer.chat_template")
    return first_known_crash(header) or "", "" if template else "has no chat template"


def _object(path: str) -> dict[str, Any]:
    """Return the JSON object in a small file, or {} if there is none."""
    with suppress(OSError, ValueError, RecursionError):
        if isinstance(content := json.loads(_content(path)), dict):
            return content
    return {}


def _content(path: str) -> bytes:
    """Return a small file's content. Raises OSError, and ValueError for a large file or no regular file."""
    if not S_ISREG(os.stat(path).st_mode):
        raise ValueError("not a file")
    with open(path, "rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError("too large")
    return content


def _below(folder: str, *patterns: str) -> list[str]:
    """Return the paths below a folder that match a pattern: relative to it, with / between their parts."""
    found = (sorted(glob.iglob(pattern, root_dir=folder)) for pattern in patterns)
    return [path.replace(os.sep, "/") for paths in found for path in paths if path.isprintable()]


def _ollama() -> Iterator[StoredModel]:
    seen = set[str]()
    for folder in map(str, folders_of(OLLAMA)):
        manifests, blobs = os.path.join(folder, "manifests"), os.path.join(folder, "blobs")
        found = _below(manifests, "*/*/*/*")
        paths = {tuple(path.split("/")): path for path in found if os.path.isfile(f"{manifests}/{path}")}
        tags = Counter(place[:-1] for place in paths)
        for (host, space, model, tag), path in paths.items():
            space = "" if space == "library" else f"{space}/"
            name = f"{space}{model}" if host == "registry.ollama.ai" else f"{host}/{space}{model}"
            if f"{name}:{tag}" not in seen:
                seen.add(f"{name}:{tag}")
                aliases = (name,) * (tag == "latest" or tags[tuple(path.split("/"))[:-1]] == 1)
                yield _of_manifest(os.path.join(manifests, path), blobs, f"{name}:{tag}", aliases)


def _of_manifest(path: str, blobs: str, name: str, aliases: tuple[str, ...]) -> StoredModel:
    layers = _object(path).get("layers")
    kinds, trouble = {"model": path}, ""
    if not isinstance(layers, list) or not all(isinstance(layer, dict) for layer in layers):
        trouble, layers = "has a manifest that cannot be read", []
    for layer in reversed(layers):  # the first layer of a kind counts, so it must replace later ones
        kind, digest = str(layer.get("mediaType")), str(layer.get("digest")).replace(":", "-")
        if kind.startswith(_LAYER) and BLOB.fullmatch(digest):
            kinds[kind.removeprefix(_LAYER)] = os.path.join(blobs, digest)
        elif kind.startswith(_LAYER):
            trouble = "has a manifest that cannot be read"
    if not trouble and kinds["model"] == path:
        trouble = "is in a format of Ollama's own, not a GGUF" if "tensor" in kinds else "has no model file"
    elif not trouble and not os.path.exists(kinds["model"]):
        trouble = "is incomplete: its model file is missing"
    elif not trouble and "adapter" in kinds:
        trouble = "has a LoRA adapter: give its files with --target and --lora"
    more = {part: kinds.get(part, "") for part in ("projector", "params", "system")}
    return StoredModel(name, OLLAMA, kinds["model"], aliases, trouble=trouble, **more)


def _in_repos(store: str) -> Iterator[StoredModel]:
    """Yield the models of a program that keeps repositories of the Hub."""
    for folder in map(str, folders_of(store)):
        repos = dict[str, dict[str, str]]()  # by repository: paths by the names of files
        owners = (path.split("=")[1:3] for path in _below(folder, "manifest=*=*=*.json"))  # llama.cpp's
        begins = {f"{owner}_{repo}_": f"{owner}/{repo}" for owner, repo in owners}
        for path in _below(folder, *_PATTERNS[store]):
            *above, file = path.split("/")
            repo, is_latest = "/".join(above), False
            if store == HUGGING_FACE:
                cached, _, revision, *inside = above
                repo, file = cached.removeprefix("models--").replace("--", "/", 1), "/".join([*inside, file])
                is_latest = file in repos.get(repo, ()) and revision == _main(f"{folder}/{cached}")
            if begin := next(filter(file.startswith, begins), ""):  # llama.cpp's cache: REPOSITORY_FILE
                repo, file = begins[begin], file.removeprefix(begin)
            if file not in (files := repos.setdefault(repo, {})) or is_latest:
                files[file] = os.path.join(folder, path)
        for repo, files in repos.items():
            ggufs = {file: path for file, path in files.items() if file.endswith(".gguf")}
            if not ggufs:
                why = "is in MLX's format, not a GGUF"
                yield StoredModel(repo, store, os.path.join(folder, repo), trouble=why)
            yield from _of_repo(store, repo, ggufs)


def _main(repository: str) -> str:
    with suppress(OSError, ValueError):
        return _content(f"{repository}/refs/main").decode().strip()
    return ""


def _of_repo(store: str, repo: str, files: dict[str, str]) -> Iterator[StoredModel]:
    """Yield the models of a repository as ORG/REPO:QUANT, or as ORG/REPO:FILE if two have the same quantisation."""
    names = {file: file.rpartition("/")[2] for file in files}
    models = [
        file
        for file, name in names.items()
        if not NO_MODEL.search(name) and Path(name) == parts_of(Path(name))[0]
    ]
    quants = Counter(quant_in(names[file]).lower() for file in models)
    for file in models:
        name, quant, path = names[file], quant_in(names[file]), files[file]
        full, short = f"{repo}:{name}", f"{repo}:{quant}"
        aliases = (full, *([repo] if len(models) == 1 else []))
        called = short if quant and quants[quant.lower()] == 1 else full
        if not repo:
            called, aliases = name.removesuffix(".gguf"), (name,)
        absent = not os.path.exists(path)  # a link of the Hugging Face cache to a removed file
        trouble = "is incomplete: its model file is missing" if absent else ""
        yield StoredModel(called, store, path, aliases, trouble=trouble)
