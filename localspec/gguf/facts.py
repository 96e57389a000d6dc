"""Read facts about a model from its GGUF header, and find headers on which llama.cpp aborts."""

import math
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from localspec.gguf.header import BLOCKS, INTEGERS, Header, TensorInfo

TOKENIZER = "localspec.trimmed.tokenizer"  # header key with a trimmed draft's original tokenizer.ggml.model


def trained_context(header: Header) -> int | None:
    """Return the trained context length in tokens, with RoPE scaling; None if it is unknown."""
    trained = header.of_model("context_length")
    before = header.of_model("rope.scaling.original_context_length")
    factor = header.get(f"{header.architecture}.rope.scaling.factor")
    reach = int(before * factor) if isinstance(factor, int | float) else 0
    return max(trained, reach) or None


_MAP = "d2t"  # a tensor that is no weight: the token ids of an EAGLE-3 head's reduced vocabulary


def first_known_crash(header: Header) -> str | None:
    """Return the first fault on which llama.cpp aborts, as a phrase to follow the file name, or None."""
    if not header.architecture:
        return "does not name its architecture"
    layers, ahead = header.of_model("block_count"), prediction_layers(header)
    if not 1 <= layers <= 512:  # llama.cpp's limit: LLAMA_MAX_LAYERS
        return f"claims to have {layers} layers"
    if not 0 <= ahead <= layers:
        return f"claims that {ahead} of its {layers} layers are prediction layers"
    if (context := trained_context(header)) is not None and context < 16:  # the first pass needs more
        return f"was trained for a context of {context} tokens"
    for key, entry in header.entries.items():
        if isinstance(value := entry.value, float) and (
            not math.isfinite(value) or (key.endswith("_epsilon") and value < 0)
        ):
            return f"has {value} as {key}"
    for tensor in header.tensors:
        if tensor.type in INTEGERS and tensor.name != _MAP:
            return f"stores the weight {tensor.name} as {BLOCKS[tensor.type][0]}"
        if 0 in tensor.shape:
            return f"has the empty tensor {tensor.name}"
    if (vocabulary := header.vocabulary) is not None:
        if not vocabulary.count:
            return "has an empty vocabulary"
        if len(set(vocabulary.texts())) != vocabulary.count:
            return "has the same token twice"
    return None


# Target architectures whose graphs give layer inputs to a head. With a head on any other target, llama.cpp aborts.
SHOW_LAYERS = {
    *("bailingmoe3", "deepseek4", "gemma4", "gpt-oss", "hunyuan_vl", "lfm2", "lfm2moe", "llama", "mimo2"),
    *("minimax-01", "minimax-m2", "muse-glimmer", "nanbeige", "nemotron_h", "nemotron_h_moe", "qwen3"),
    *("qwen35", "qwen35moe", "qwen3moe", "qwen3next", "qwen4exp"),
}
# Target architectures whose graphs also give the last layer's output. Other graphs return uninitialised memory.
SHOW_OUTPUT = {
    *("bailingmoe3", "deepseek4", "gemma4", "gpt-oss", "mimo2", "nemotron_h", "nemotron_h_moe", "qwen35"),
    *("qwen35moe", "qwen3next"),
}
# Architectures with a graph for prediction layers, without qwen3next, which cannot roll back.
PREDICT = {
    *("bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "deepseek4", "glm-dsa", "glm4moe", "glm5-next"),
    *("hy_v3", "mimo2", "nemotron_h_moe", "qwen35", "qwen35moe", "step35"),
}
CHAINS = {"hy_v3", "mimo2", "step35"}  # architectures that use another prediction layer for each draft token
TAPPED_LAYERS = 3  # number of target layers that an EAGLE-3 head reads
_EAGLE3 = (
    *("fc", "output_norm", "blk.0.ffn_gate", "blk.0.ffn_up", "blk.0.ffn_down", "blk.0.ffn_norm"),
    *(f"blk.0.attn_{name}" for name in ("norm", "norm_2", "q", "k", "v", "output")),
)
_DFLASH = ("fc", "enc.output_norm", "output_norm", "blk.0.attn_norm", "blk.0.attn_q", "blk.0.ffn_down")
_MTP = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm", "attn_norm")
_ASSISTANT = ("token_embd", "output_norm", "nextn.pre_projection", "nextn.post_projection")


class DraftKind(StrEnum):
    """The source of draft tokens."""

    MODEL = "draft-simple"  # a draft model, which is no head
    EAGLE3 = "draft-eagle3"  # a head that reads three layers of the target
    MTP = "draft-mtp"  # prediction layers, inside the target or in their own file
    ASSISTANT = "draft-assistant"  # Gemma 4's head: a small model that reads the target's KV cache
    DFLASH = "draft-dflash"  # a head that drafts a block of tokens in one pass; DSpark is one of this kind
    LOOKUP = "draft-lookup"  # no model: draft tokens are copied from the text

    @property
    def is_head(self) -> bool:
        return self not in (DraftKind.MODEL, DraftKind.LOOKUP)


def draft_kind(header: Header) -> DraftKind:
    kinds = {"eagle3": DraftKind.EAGLE3, "dflash": DraftKind.DFLASH, "gemma4-assistant": DraftKind.ASSISTANT}
    if header.architecture in kinds:
        return kinds[header.architecture]
    has_trunk = any(tensor.name.startswith("blk.0.") for tensor in header.tensors)
    return DraftKind.MTP if prediction_layers(header) and not has_trunk else DraftKind.MODEL


def is_trimmed(header: Header) -> bool:
    """Return whether a draft was trimmed, so that only some of its tokens have output rows."""
    return TOKENIZER in header.entries


def table_path(model: Path) -> Path:
    return model.with_name(f"{model.stem}.tokens.gguf")


def prediction_layers(header: Header) -> int:
    return header.of_model("nextn_predict_layers")


def has_head(header: Header) -> bool:
    return draft_kind(header) is DraftKind.MODEL and not next(_mtp_faults(header), "")


def target_layers(header: Header) -> tuple[int, ...]:
    """Return the target layers whose inputs a head reads. The layer count itself means the last layer's output."""
    found = header.get(f"{header.text('general.architecture')}.target_layers")
    return tuple(map(int, found)) if isinstance(found, tuple) else ()


def has_markov_chain(header: Header) -> bool:
    """Return whether a DFlash head is a DSpark, in which each draft token depends on the one before."""
    return _tensor(header, "markov_w1.weight") is not None


def trunk_layers(header: Header) -> int:
    return header.of_model("block_count") - prediction_layers(header)


def misfit(target: Header, draft: Header) -> str | None:
    """Return why a head cannot draft for a target; None if it can, or if the draft is not a head."""
    faults = _FAULTS.get(draft_kind(draft))
    return next(faults(target, draft), None) if faults else None


def _eagle3_faults(target: Header, head: Header) -> Iterator[str]:
    architecture, width = target.architecture, target.of_model("embedding_length")
    if architecture not in SHOW_LAYERS:
        yield f"llama.cpp exposes no layers of {architecture} models to an EAGLE-3 head"
    yield from _missing(head, _EAGLE3)
    if (count := head.of_model("block_count")) != 1:
        yield f"it has {count} layers, and an EAGLE-3 head has one"
    layers, last = target_layers(head), trunk_layers(target)
    if len(layers) != TAPPED_LAYERS:
        yield f"it reads {len(layers)} layers of its target, and an EAGLE-3 head reads {TAPPED_LAYERS}"
    if list(layers) != sorted(set(layers)):
        yield f"it reads its target's layers in the order {', '.join(map(str, layers))}, not ascending"
    if not all(0 <= layer <= last for layer in layers):
        yield f"it reads layer {max(layers)} of its target, which has {last} layers"
    if last in layers and architecture not in SHOW_OUTPUT:
        yield f"it reads the output of its target's last layer, which llama.cpp hides for {architecture} models"
    if (asked := head.of_model("target_hidden_size")) != width:
        yield f"it was made for a target of width {asked}, and this one has {width}"
    fused, own = _tensor(head, "fc.weight"), head.of_model("embedding_length")
    if fused and fused.shape != (TAPPED_LAYERS * width, own):
        yield f"its fc.weight is {fused.shape[0]} wide, and three target layers are {TAPPED_LAYERS * width}"
    if not (_tensor(head, "token_embd.weight") and _tensor(head, "output.weight")) and own != width:
        yield f"it shares its target's embeddings, which are {width} wide, and its own width is {own}"
    if mapped := _tensor(head, _MAP):
        output = _tensor(head, "output.weight")
        if BLOCKS[mapped.type][0] != "I64" or not output or mapped.shape != output.shape[1:]:
            yield "its map of the vocabulary (d2t) does not match its output"


def _mtp_file_faults(target: Header, head: Header) -> Iterator[str]:
    ours, theirs = (header.architecture for header in (target, head))
    if ours != theirs:
        yield f"it predicts for {theirs} models, and the target is a {ours} model"
    yield from _mtp_faults(head)
    widths = (header.of_model("embedding_length") for header in (target, head))
    for what, (here, there) in {"wide": widths, "layers deep": map(trunk_layers, (target, head))}.items():
        if here != there:
            yield f"it was made for a target {there} {what}, and this one is {here}"


def _mtp_faults(header: Header) -> Iterator[str]:
    architecture, count = header.architecture, prediction_layers(header)
    if architecture not in PREDICT or not count:
        yield f"llama.cpp knows no prediction layers of {architecture} models"
    if count > 1 and architecture not in CHAINS:
        yield f"it has {count} prediction layers, and llama.cpp runs only one in {architecture} models"
    for layer in range(trunk_layers(header), trunk_layers(header) + count):
        yield from _missing(header, tuple(f"blk.{layer}.{name}" for name in _MTP))


def _assistant_faults(target: Header, head: Header) -> Iterator[str]:
    architecture, width = target.architecture, target.of_model("embedding_length")
    if architecture != "gemma4":
        yield f"it assists Gemma 4, and the target is a {architecture} model"
    yield from _missing(head, _ASSISTANT)
    if (asked := head.of_model("embedding_length_out")) != width:
        yield f"it was made for a target of width {asked}, and this one has {width}"


def _dflash_faults(target: Header, head: Header) -> Iterator[str]:
    architecture, width = target.architecture, target.of_model("embedding_length")
    if architecture not in SHOW_LAYERS:
        yield f"llama.cpp exposes no layers of {architecture} models to a DFlash head"
    if head.of_model("hyper_connection.count"):
        yield "it is a DSpark head of DeepSeek 4's architecture, which this localspec cannot run yet"
    yield from _missing(head, _DFLASH)
    layers, last = target_layers(head), trunk_layers(target)
    if not layers or not all(0 <= layer < last for layer in layers):
        yield f"it reads the layers {', '.join(map(str, layers)) or '(none)'} of its target, which has {last}"
    if (own := head.of_model("embedding_length")) != width:
        yield f"it was made for a target of width {own}, and this one has {width}"
    if has_markov_chain(head) and not head.of_model("block_size"):
        yield "its header lacks the block size"


_FAULTS = {
    DraftKind.EAGLE3: _eagle3_faults,
    DraftKind.MTP: _mtp_file_faults,
    DraftKind.ASSISTANT: _assistant_faults,
    DraftKind.DFLASH: _dflash_faults,
}


def _missing(header: Header, names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        if not _tensor(header, f"{name}.weight"):
            yield f"it lacks the tensor {name}.weight"


def _tensor(header: Header, name: str) -> TensorInfo | None:
    return next((tensor for tensor in header.tensors if tensor.name == name), None)
