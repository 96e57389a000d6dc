"""What a header shows that llama.cpp would not survive; the trial in a child process finds the rest."""

import math

from localspec.gguf.ggml_types import BLOCKS, INTEGERS
from localspec.gguf.header import Header

_MOST_LAYERS = 512  # llama-hparams.h: LLAMA_MAX_LAYERS
_MAP = "d2t"  # from the reduced vocabulary of an EAGLE-3 head, and no weight


def first_hazard(header: Header) -> str | None:
    """The first one, as the end of a sentence about the file; None when nothing is wrong."""
    architecture = header.text("general.architecture")
    if not architecture:
        return "does not say what architecture it is"
    layers = header.number(f"{architecture}.block_count")
    if layers is None or not 1 <= layers <= _MOST_LAYERS:
        return f"says that it has {layers} layers"
    if (ahead := header.number(f"{architecture}.nextn_predict_layers") or 0) > layers or ahead < 0:
        return f"says that {ahead} of its {layers} layers are prediction layers"
    for key, entry in header.entries.items():
        if isinstance(entry.value, float) and not math.isfinite(entry.value):
            return f"has {entry.value} as {key}"
        if key.endswith("_epsilon") and isinstance(entry.value, float) and entry.value < 0:
            return f"has {entry.value} as {key}"
    for tensor in header.tensors:
        if tensor.type in INTEGERS and tensor.name != _MAP:
            return f"stores the weight {tensor.name} as {BLOCKS[tensor.type][0]}"
        if 0 in tensor.shape:
            return f"has the empty tensor {tensor.name}"
    return _vocabulary_hazard(header)


def _vocabulary_hazard(header: Header) -> str | None:
    if header.vocabulary is None:
        return None
    if header.vocabulary.count == 0:
        return "has an empty vocabulary"
    if len(set(header.vocabulary.texts())) != header.vocabulary.count:
        return "has the same token twice"
    return None
