"""LoRA adapters, which a user names as FILE[:SCALE]: whether one fits a target, from the headers alone."""

import math
from pathlib import Path

from localspec.display import printable
from localspec.errors import BadModelFile, BadSetting
from localspec.files import expanded
from localspec.gguf.header import Header, TensorInfo, header_at

Adapter = tuple[Path, float]  # the file, and how much of it is added

_HINT = "use an adapter that was made for this model, converted to GGUF"
_EMBEDDING = "token_embd.weight"


def adapters_of(text: str) -> tuple[Adapter, ...]:
    """The adapters in a text like FILE,FILE:0.5. Raises BadSetting."""
    return tuple(_adapter(part.strip()) for part in text.split(",") if part.strip())


def _adapter(text: str) -> Adapter:
    path, colon, scale = text.rpartition(":")
    try:
        found = (expanded(path), float(scale)) if colon and path else (expanded(text), 1.0)
    except ValueError:  # the colon of a path
        found = (expanded(text), 1.0)
    if not math.isfinite(found[1]):
        raise BadSetting(f"{scale} is not a scale of an adapter", hint="give a number, as in FILE:0.5")
    return found


def check_adapter(path: Path, target: Header) -> None:
    """Raises BadModelFile unless llama.cpp can add this adapter to the target; llama-adapter.cpp has the rules."""
    adapter = header_at(path)
    if adapter.text("general.type") != "adapter" or adapter.text("adapter.type") != "lora":
        raise BadModelFile(f"{path.name} is not a LoRA adapter", hint=_HINT)
    if "adapter.alora.invocation_tokens" in adapter.entries:
        raise BadModelFile(
            f"{path.name} is an activated LoRA, which begins within a text", hint="use one that is always on"
        )
    ours, theirs = (printable(header.text("general.architecture")) for header in (adapter, target))
    if ours != theirs:
        raise _of_another_model(path, f"its architecture is {ours}, the target's is {theirs}")
    matrices = {tensor.name: tensor for tensor in target.tensors}
    parts = {tensor.name: tensor for tensor in adapter.tensors}
    for name in dict.fromkeys(tensor.rpartition(".lora_")[0] for tensor in parts if ".lora_" in tensor):
        a, b = parts.get(f"{name}.lora_a"), parts.get(f"{name}.lora_b")
        if a is None or b is None:
            raise BadModelFile(f"{path.name} has only half of {printable(name)}", hint=_HINT)
        if name not in matrices:
            raise _of_another_model(path, f"the target has no {printable(name)}")
        if not _fits(name, a, b, matrices[name]):
            raise _of_another_model(path, f"{printable(name)} has another shape in the target")


def _fits(name: str, a: TensorInfo, b: TensorInfo, matrix: TensorInfo) -> bool:
    """Whether b times a can be added to a matrix; for the embedding they are the other way round."""
    if min(len(a.shape), len(b.shape), len(matrix.shape)) < 2:
        return False
    if name == _EMBEDDING:
        return (b.shape[1], a.shape[1]) == matrix.shape[:2]
    return (a.shape[0], b.shape[1]) == matrix.shape[:2] and a.shape[1] == b.shape[0]


def _of_another_model(path: Path, how: str) -> BadModelFile:
    return BadModelFile(f"{path.name} is an adapter for another model: {how}", hint=_HINT)
