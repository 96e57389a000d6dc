"""The projector of a pair: the file with which its target reads images."""

import re
from collections.abc import Sequence
from pathlib import Path

from localspec.errors import BadModelFile, BadSetting, UnknownPair
from localspec.files import expanded
from localspec.gguf.header import Header, header_of_part
from localspec.models import hub
from localspec.models.local_models import PROJECTOR, ModelFile, projectors_of
from localspec.models.registry import Pair

_GIVE = "give a projector with --mmproj FILE"
NONE = "none"  # the value of `mmproj` that loads no projector
_PRECISIONS = ("f16", "bf16", "q8_0", "f32", "")  # in the names of projectors, the preferred precision first
# By type of projector: the beginnings of the names of the architectures that can use it.
# llama.cpp would load it with any model of the same width, which would then describe images that nobody sent.
_ARCHITECTURES = {
    "gemma3": ("gemma3",), "gemma3nv": ("gemma3n",), "gemma4v": ("gemma4",), "gemma4uv": ("gemma4",),
    "qwen2vl_merger": ("qwen2vl",), "qwen2.5vl_merger": ("qwen2vl",), "qwen3vl_merger": ("qwen3vl", "qwen35"),
}  # fmt: skip
_UNSUPPORTED = ("deepseek4v", "hunyuanvl")  # types in which an image's tokens depend on earlier text
# By type of projector: the largest number of rows of an image that need one pass, because they attend to each other.
ROWS_AT_ONCE = {"gemma3": 256, "gemma3nv": 256, "gemma4v": 1120, "gemma4uv": 1120}


def projector_of(pair: Pair, wanted: str | None = None) -> Path | None:
    """Return the projector for a pair's target; None if there is none. Raises BadSetting for a wrong `wanted`.

    `wanted`: the path of a projector, or NONE. Without it, take a projector that was downloaded with the target, or one
    in the target's folder under the usual name.
    """
    if wanted == NONE:
        return None
    if wanted:
        path = expanded(wanted).absolute()
        if not path.is_file():
            raise BadSetting(f"{path} does not exist", hint="give the path of an mmproj file")
        if why := misfit(header_of_part(path), pair.target.header):
            raise BadSetting(f"{path.name} {why}", hint="use the projector that was published with the model")
        return path
    if not (target := pair.target.path):
        return None
    header = pair.target.header
    found = [path for path in target.parent.iterdir() if PROJECTOR.search(path.name)] + projectors_of(
        pair.target.repo
    )
    found += [Path(pair.found.projector)] if pair.found and pair.found.projector else []
    words = set(re.split(r"[-_.]", target.name.lower()))
    # The best file has the most words of the target's name in its own.
    fits = [path for path in sorted(found) if _fits(path, header)]
    return max(fits, key=lambda path: len(words & {*re.split(r"[-_.]", path.name.lower())}), default=None)


def _fits(path: Path, target: Header) -> bool:
    try:
        return not misfit(header_of_part(path), target)
    except BadModelFile:
        return False


def misfit(projector: Header, target: Header) -> str:
    """Return why a target cannot use a projector, as a phrase to follow its name; "" if no reason is known."""
    kind, name = kind_of(projector), target.architecture
    if not kind or kind in _UNSUPPORTED:
        return f"is a projector that localspec cannot use: {kind}" if kind else "is not an image projector"
    listed = name.startswith(tuple(begin for begins in _ARCHITECTURES.values() for begin in begins))
    if not name.startswith(_ARCHITECTURES.get(kind, ("\0" if listed else name,))):
        return f"is a projector ({kind}) of another model than {name}"
    made, wanted = projector.number("clip.vision.projection_dim"), target.of_model("embedding_length")
    return "" if made in (wanted, None) else f"fits models of width {made}, but this model has {wanted}"


def kind_of(header: Header) -> str:
    """Return the type of an image projector; "" if the file is no image projector."""
    kinds = header.text("clip.vision.projector_type") or header.text("clip.projector_type")
    return kinds if header.architecture == "clip" and header.flag("clip.has_vision_encoder", True) else ""


def check_projector(headers: Sequence[Header], names: Sequence[str]) -> None:
    """Raise BadModelFile if a file is not an image projector."""
    if not kind_of(headers[0]):
        raise BadModelFile(f"{names[0]} is not an image projector", hint=_GIVE)


def memory_of(header: Header) -> int:
    """Estimate the bytes of a projector and of the activations for its largest image."""
    names = ("image_size", "patch_size", "feed_forward_length")
    size, patch, width = (header.number(f"clip.vision.{name}") or 0 for name in names)
    return header.file_bytes + 3 * 4 * (size // max(patch, 1)) ** 2 * width


def published(pair: Pair) -> ModelFile:
    """Return the projector that was published with the pair's target, as the Hub lists it now. Raises UnknownPair."""
    file = pair.target
    listed = hub.listing(file.repo, file.revision) if file.repo else ()
    found = [each for each in listed if PROJECTOR.search(Path(each.file).name)]

    def rank(file: str) -> int:
        words = {*re.split(r"[-_.]", file.lower()), ""}
        return next(place for place, precision in enumerate(_PRECISIONS) if precision in words)

    if not found:
        where = f"{file.repo} has no projector" if file.repo else f"{file.name} is a file of yours"
        raise UnknownPair(f"{where}, so {pair.name} reads no images", hint=_GIVE)
    best = min(found, key=lambda each: rank(each.file))
    return ModelFile.listed(best).pinned()
