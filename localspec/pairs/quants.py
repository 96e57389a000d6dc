"""The models of one repository: told apart by quantisation, parts put together, companions left out."""

import re
from pathlib import PurePosixPath

from localspec.errors import UnknownPair
from localspec.gguf.parts import parts_of
from localspec.hub.repository import Listing, RemoteFile
from localspec.pairs.registry import HubFile, stays_inside
from localspec.units import size_text

_QUANT = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|TQ\d_\d|MXFP4\w*|NVFP4|BF16|F16|F32|FP16|FP32))(?=[-./]|$)",
    re.IGNORECASE,
)
# Parts of models for other ways of drafting and seeing, and what quantising is steered by.
_NO_MODEL = re.compile(r"^(?:mtp-|eagle3-|dflash-|dspark-)|mmproj|imatrix", re.IGNORECASE)


class SeveralModels(UnknownPair):
    """A repository of several models, of which none or more than one was meant."""

    def __init__(self, repo: str, models: tuple[HubFile, ...], wanted: str) -> None:
        self.repo, self.models = repo, models
        known = ", ".join(dict.fromkeys(quant_of(model) or model.file for model in models))
        what = f"has no {wanted}" if wanted else f"holds {len(models)} models"
        first = (
            quant_of(next((m for m in models if quant_of(m).upper() == "Q4_K_M"), models[0]))
            or models[0].file
        )
        super().__init__(f"{repo} {what}: {known}", hint=f"name one of them, for example {repo}:{first}")


def models_in(listing: Listing) -> tuple[HubFile, ...]:
    """Its GGUF models, the smallest first; a model in several files is one. Raises UnknownPair for none."""
    files = {file.file: file for file in listing.files if _is_model(file)}
    models = [
        model
        for name, file in files.items()
        if name == _first(name) and (model := _whole(file, files)) is not None
    ]
    if not models:
        raise UnknownPair(
            f"{listing.repo} has no GGUF model", hint="look for a repository whose name ends in -GGUF"
        )
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


def _names(file: str) -> list[str]:
    """The files of the model that a file belongs to."""
    path = PurePosixPath(file)
    return [str(path.with_name(part.name)) for part in parts_of(path)]


def _first(file: str) -> str:
    return _names(file)[0]


def _whole(first: RemoteFile, files: dict[str, RemoteFile]) -> HubFile | None:
    """A model with all its files; None where the repository lacks one."""
    names = _names(first.file)
    if not all(name in files for name in names):
        return None
    rest = tuple(_hub_file(files[name], first.sha256 or "") for name in names[1:])
    return HubFile(first.repo, first.file, first.commit, first.bytes, first.sha256 or "", rest=rest)


def _hub_file(file: RemoteFile, first_sha256: str) -> HubFile:
    return HubFile(
        file.repo, file.file, file.commit, file.bytes, file.sha256 or "", first_sha256=first_sha256
    )
