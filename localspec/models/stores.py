"""Find the models of other programs: Ollama, LM Studio, the Hugging Face cache, and llama.cpp.

Their files are read, never written. They may change meanwhile, and anything in them may be broken.
"""

import glob
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from stat import S_ISREG
from typing import Any

from localspec.errors import BadModelFile, BadSetting
from localspec.files import file_of, recalled, remember
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
    size_at,
)
from localspec.options import check, data_dir

NO_MODEL = re.compile(  # heads, drafts, image encoders, and importance matrices
    r"^(?:mtp-|eagle3-|dflash-|dspark-)|mmproj|imatrix|[-_.]draft(?:[-_.]|$)", re.IGNORECASE
)
HASH = re.compile(r"(?:sha256-)?[0-9a-f]{64}")  # names of files that are called by their content
_MOST_BYTES = 1_000_000  # a larger manifest is not one of Ollama
_VERSION = "1"  # raise it when `_facts` finds something else in a file
_SAMPLER = (
    *("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n"),
    *("presence_penalty", "frequency_penalty", "seed", "stop"),
)
_LAYER = "application/vnd.ollama.image."


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model of another program."""

    name: str  # the name that the program's users know
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
        return self.trouble or _known_facts(Path(self.path))[0]

    def check(self) -> None:
        """Raise BadModelFile if llama.cpp cannot load the model."""
        if why := self.why_not:
            hint = "look for the same model as a GGUF: `localspec pairs`, or ORG/REPO-GGUF on Hugging Face"
            raise BadModelFile(f"{self.name}, found in {self.store}, {why}", hint=hint)

    @property
    def about(self) -> str:
        text = self.trouble or next(filter(None, _known_facts(Path(self.path))), "")
        return f"found in {self.store}" + f"; it {text}" * bool(text)

    @property
    def options(self) -> dict[str, Any]:
        """The system message and the sampler's options of Ollama, by their names in localspec's options."""
        found = {name: value for name, value in self._params().items() if name in _SAMPLER}
        with suppress(OSError, ValueError):
            if self.system and (text := _content(Path(self.system)).decode("utf-8")):
                found["system"] = text
        return {name: value for name, value in found.items() if _is_valid(name, value)}

    @property
    def context(self) -> int | None:
        """Ollama's num_ctx, which localspec shows and does not take."""
        value = self._params().get("num_ctx")
        return value if isinstance(value, int) else None

    def _params(self) -> Mapping[str, Any]:
        with suppress(OSError, ValueError, RecursionError):
            if self.params and isinstance(params := json.loads(_content(Path(self.params))), dict):
                return params
        return {}


def stored_models() -> tuple[StoredModel, ...]:
    """Return the models of all programs. A name that two of them have gets the program as its prefix."""
    found = dict[str, StoredModel]()
    for models in (_ollama(), _lm_studio(), _hugging_face(), _llama_cpp()):
        for model in models:
            own = f"{model.store.lower().replace(' ', '-')}:{model.name}"
            name = own if model.name.lower() in found else model.name
            found.setdefault(name.lower(), replace(model, name=name, aliases=(*model.aliases, own)))
    return tuple(found.values())


def stored(name: str) -> StoredModel | None:
    """Return the model that a name of another program means, or None."""
    wanted, models = name.strip().lower(), stored_models()
    called = (model for model in models if model.name.lower() == wanted)
    others = (model for model in models if wanted in [alias.lower() for alias in model.aliases])
    return next(chain(called, others), None) if wanted else None


def labelled(path: Path) -> ModelFile:
    """Return a file of this machine; a file that is called by its hash gets the model's name as its label."""
    if not HASH.fullmatch(path.name):
        return ModelFile.at(path)
    with suppress(OSError, BadModelFile):
        same = (model for model in stored_models() if _is_same(model.path, path))
        name = next((model.name for model in same), "") or header_of_part(path).text("general.name")
        return replace(ModelFile.at(path), label=name or "model")
    return replace(ModelFile.at(path), label="model")


def _is_same(one: str, other: Path) -> bool:
    with suppress(OSError):  # one of them may be gone
        return os.path.samefile(one, other)
    return False


def _is_valid(name: str, value: object) -> bool:
    with suppress(BadSetting):
        check(name, value)
        return True
    return False


def _known_facts(path: Path) -> tuple[str, str]:
    """Return `_facts` of a file; they are computed again only if the file has changed."""
    try:
        now = path.stat()
        return _facts_of(path, f"{now.st_size}:{now.st_mtime_ns}")
    except OSError as error:
        return f"cannot be read: {error.strerror}", ""


@lru_cache(maxsize=4096)
def _facts_of(path: Path, state: str) -> tuple[str, str]:
    file = file_of(data_dir() / "stores", _VERSION, f"{path}:{state}")
    return recalled(file, tuple[str, str]) or remember(file, _facts(path))


def _facts(path: Path) -> tuple[str, str]:
    """Return why a file cannot be loaded, and what its user should know; "" for nothing."""
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


def _content(path: Path) -> bytes:
    """Return a small file's content. Raises OSError, and ValueError for a large one or none of the disk."""
    if not S_ISREG(path.stat().st_mode):
        raise ValueError("not a file")
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError("too large")
    return content


def _below(folder: Path, *patterns: str) -> list[Path]:
    found = (glob.glob(os.path.join(glob.escape(str(folder)), pattern)) for pattern in patterns)
    return [Path(path) for paths in found for path in sorted(paths) if path.isprintable()]


def _ollama() -> Iterator[StoredModel]:
    seen = set[str]()
    for folder in folders_of(OLLAMA):
        paths = [path for path in _below(folder / "manifests", "*/*/*/*") if path.is_file()]
        tags = Counter(path.parent for path in paths)
        for path in paths:
            host, space, model, tag = path.parts[-4:]
            space = "" if space == "library" else f"{space}/"
            name = f"{space}{model}" if host == "registry.ollama.ai" else f"{host}/{space}{model}"
            if f"{name}:{tag}" not in seen:
                seen.add(f"{name}:{tag}")
                aliases = (name,) * (tag == "latest" or tags[path.parent] == 1)
                yield _of_manifest(path, folder / "blobs", f"{name}:{tag}", aliases)


def _of_manifest(path: Path, blobs: Path, name: str, aliases: tuple[str, ...]) -> StoredModel:
    broken = StoredModel(name, OLLAMA, str(path), aliases, trouble="has a manifest that cannot be read")
    try:
        layers = _layers(path, path.stat().st_mtime_ns)
    except (OSError, ValueError, RecursionError):
        return broken
    kinds = {kind: str(blobs / digest.replace(":", "-")) for kind, digest in reversed(layers)}
    if not (model := kinds.get("model")):
        own = "is in a format of Ollama's own, not a GGUF" if "tensor" in kinds else "has no model file"
        return replace(broken, trouble=own)
    trouble = ""
    if size_at(Path(model)) is None:
        trouble = "is incomplete: its model file is missing"
    elif "adapter" in kinds:
        trouble = "has a LoRA adapter: give its files with --target and --lora"
    more = {part: kinds.get(part, "") for part in ("projector", "params", "system")}
    return StoredModel(name, OLLAMA, model, aliases, trouble=trouble, **more)


@lru_cache(maxsize=4096)
def _layers(manifest: Path, _mtime_ns: int) -> tuple[tuple[str, str], ...]:
    """Return kind and digest of each layer of Ollama's manifest. Raises OSError, ValueError, RecursionError."""
    found = json.loads(_content(manifest))
    layers = found.get("layers") if isinstance(found, dict) else None
    if not isinstance(layers, list) or not all(isinstance(layer, dict) for layer in layers):
        raise ValueError("no manifest")
    named = [(str(layer.get("mediaType")), str(layer.get("digest"))) for layer in layers]
    ours = [(kind, digest) for kind, digest in named if kind.startswith(_LAYER)]
    if not all(re.fullmatch(r"sha256[:-][0-9a-f]{64}", digest) for _, digest in ours):
        raise ValueError("no digest")
    return tuple((kind.removeprefix(_LAYER), digest) for kind, digest in ours)


def _lm_studio() -> Iterator[StoredModel]:
    for folder in folders_of(LM_STUDIO):
        repos = dict[str, list[Path]]()
        for path in _below(folder, "*/*/*.gguf", "*/*/*.safetensors"):
            repos.setdefault("/".join(path.parts[-3:-1]), []).append(path)
        for repo, paths in repos.items():
            if not any(path.suffix == ".gguf" for path in paths):
                yield StoredModel(
                    repo, LM_STUDIO, str(folder / repo), trouble="is in MLX's format, not a GGUF"
                )
            yield from _of_repo(LM_STUDIO, repo, [path for path in paths if path.suffix == ".gguf"])


def _hugging_face() -> Iterator[StoredModel]:
    for folder in folders_of(HUGGING_FACE):
        repos = dict[str, dict[str, Path]]()
        for path in _below(folder, *(f"models--*--*/snapshots/*/{below}*.gguf" for below in ("", "*/"))):
            repo, _, snapshot, *file = path.relative_to(folder).parts
            files = repos.setdefault("/".join(repo.removeprefix("models--").split("--", 1)), {})
            if "/".join(file) not in files or snapshot == _main(folder / repo):
                files["/".join(file)] = path
        for repo, files in repos.items():
            yield from _of_repo(HUGGING_FACE, repo, list(files.values()))


def _main(repository: Path) -> str:
    with suppress(OSError, ValueError):
        return _content(repository / "refs" / "main").decode().strip()
    return ""


def _llama_cpp() -> Iterator[StoredModel]:
    for folder in folders_of(LLAMA_CPP):
        repos = dict[str, str]()  # by the beginning of its files' names
        for path in _below(folder, "manifest=*=*=*.json"):
            _, owner, repo, *_ = path.name.split("=")
            repos[f"{owner}_{repo}_"] = f"{owner}/{repo}"
        files = _below(folder, "*.gguf")
        for begin, repo in repos.items():
            yield from _of_repo(
                LLAMA_CPP, repo, [path for path in files if path.name.startswith(begin)], begin
            )
        for path in files:
            is_model = not NO_MODEL.search(path.name) and path == parts_of(path)[0]
            if is_model and not path.name.startswith(tuple(repos)):
                yield StoredModel(path.stem, LLAMA_CPP, str(path), (path.name,))


def _of_repo(store: str, repo: str, paths: list[Path], begin: str = "") -> Iterator[StoredModel]:
    """Yield the models of one repository: ORG/REPO:QUANT, or ORG/REPO:FILE where two have one quantisation."""
    names = {path: path.name.removeprefix(begin) for path in paths}
    models = [path for path in paths if not NO_MODEL.search(names[path]) and path == parts_of(path)[0]]
    quants = [quant_in(names[path]).lower() for path in models]
    for path, quant in zip(models, quants, strict=True):
        full, short = f"{repo}:{names[path]}", f"{repo}:{quant_in(names[path])}"
        is_clear = quant and quants.count(quant) == 1
        aliases = (full, *([repo] if len(models) == 1 else []))
        absent = size_at(path) is None  # a link of the Hugging Face cache whose file was removed
        trouble = "is incomplete: its model file is missing" if absent else ""
        yield StoredModel(short if is_clear else full, store, str(path), aliases, trouble=trouble)
