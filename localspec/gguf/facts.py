"""Facts about a model from its GGUF header, and headers on which llama.cpp aborts."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from localspec.gguf.header import (
    Header,
    HeaderVocabulary,
    TensorInfo,
)
from localspec.gguf.tensor_types import BLOCKS, INTEGERS

# llama-vocab.cpp: the kind for each tokenizer.ggml.model, and the defaults of keys that are missing
_KINDS = {
    "llama": "SPM",
    "bert": "WPM",
    "gpt2": "BPE",
    "hybriddna": "BPE",
    "whitespace": "BPE",
    "gemma4": "BPE",
    "t5": "UGM",
    "rwkv": "RWKV",
    "plamo2": "PLAMO2",
}
_BOS = {"llama": 1, "bert": 101, "gpt2": 11, "hybriddna": 11, "whitespace": 11, "plamo2": 1}
_EOS = {"llama": 2, "gpt2": 11, "hybriddna": 11, "whitespace": 11, "t5": 1, "plamo2": 2}
_ADDS_BOS = {"SPM", "WPM"}
_ADDS_EOS = {"UGM"}
_PRE_WITHOUT_BOS = {"chatglm-bpe", "glm4", "glm5"}
_PRE_ADDS_BOS = {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"}
_PRE_ADDS_BOS |= {"jina-v5-nano", "tekken", "chameleon"}


TOKENIZER = "localspec.trimmed.tokenizer"  # of a trimmed draft: the value of tokenizer.ggml.model before


@dataclass(frozen=True, slots=True)
class VocabularyFacts:
    """The facts for llama.cpp's compatibility rule."""

    kind: str  # SPM, BPE, ...; "" when llama.cpp would not know the tokenizer
    bos: int  # -1: none
    eos: int
    adds_bos: bool
    adds_eos: bool
    texts: HeaderVocabulary
    end: int = -1  # the token that ends a turn; -1: not in the header
    marks_spaces: bool = False  # a BPE whose texts are no stand-ins for bytes

    @property
    def count(self) -> int:
        return self.texts.count


def trained_context(header: Header) -> int | None:
    """Trained context in tokens, or the reach of its RoPE scaling, which llama.cpp applies itself."""
    trained = header.of_model("context_length")
    before = header.of_model("rope.scaling.original_context_length")
    factor = header.get(f"{header.architecture}.rope.scaling.factor")
    reach = int(before * factor) if isinstance(factor, int | float) else 0
    return max(trained, reach) or None


def vocabulary_of(header: Header) -> VocabularyFacts | None:
    """The facts about its vocabulary; None without one."""
    if header.vocabulary is None:
        return None
    model = header.text(TOKENIZER) or header.text("tokenizer.ggml.model")
    pre = header.text("tokenizer.ggml.pre")
    kind = _KINDS.get(model, "")
    if model == "gemma4":
        pre = "gemma4"
    is_bpe = kind == "BPE"
    bos = -1 if is_bpe and pre in _PRE_WITHOUT_BOS else _BOS.get(model, -1)
    adds_bos = kind in _ADDS_BOS or (is_bpe and pre in _PRE_ADDS_BOS)
    adds_bos = _flag(header, "tokenizer.ggml.add_bos_token", adds_bos) or (is_bpe and pre == "gemma4")
    return VocabularyFacts(
        kind=kind,
        bos=_special(header, "tokenizer.ggml.bos_token_id", bos),
        eos=_special(header, "tokenizer.ggml.eos_token_id", _EOS.get(model, -1)),
        adds_bos=adds_bos,
        adds_eos=_flag(header, "tokenizer.ggml.add_eos_token", kind in _ADDS_EOS),
        texts=header.vocabulary,
        end=_special(
            header, "tokenizer.ggml.eot_token_id", _special(header, "tokenizer.ggml.eos_token_id", -1)
        ),
        marks_spaces=model == "gemma4",
    )


def _special(header: Header, key: str, default: int) -> int:
    assert header.vocabulary is not None
    count = header.vocabulary.count
    value = header.number(key)
    if value is not None and 0 <= value < count:
        return value
    return default if default < count else -1


def _flag(header: Header, key: str, default: bool) -> bool:
    value = header.get(key)
    return value if isinstance(value, bool) else default


_MOST_LAYERS = 512  # llama-hparams.h: LLAMA_MAX_LAYERS
_LEAST_CONTEXT = 16  # tokens: the first passes read as many
_MAP = "d2t"  # from the reduced vocabulary of an EAGLE-3 head, and no weight


def first_hazard(header: Header) -> str | None:
    """The first fault, as the end of a sentence about the file; None without one."""
    if not header.architecture:
        return "does not name its architecture"
    layers, ahead = header.of_model("block_count"), prediction_layers(header)
    if not 1 <= layers <= _MOST_LAYERS:
        return f"says that it has {layers} layers"
    if not 0 <= ahead <= layers:
        return f"says that {ahead} of its {layers} layers are prediction layers"
    if (context := trained_context(header)) is not None and context < _LEAST_CONTEXT:
        return f"was trained for a context of {context} tokens"
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


# Architectures whose graphs show the inputs of their layers; with others llama.cpp ends the process.
SHOW_LAYERS = {
    *("bailingmoe3", "deepseek4", "gemma4", "gpt-oss", "hunyuan_vl", "lfm2", "lfm2moe", "llama", "mimo2"),
    *("minimax-01", "minimax-m2", "muse-glimmer", "nanbeige", "nemotron_h", "nemotron_h_moe", "qwen3"),
    *("qwen35", "qwen35moe", "qwen3moe", "qwen3next", "qwen4exp"),
}
# Those that also show the output of their last layer; for the others llama.cpp returns unwritten memory.
SHOW_OUTPUT = {
    *("bailingmoe3", "deepseek4", "gemma4", "gpt-oss", "mimo2", "nemotron_h", "nemotron_h_moe", "qwen35"),
    *("qwen35moe", "qwen3next"),
}
# Architectures with a graph for their prediction layers, less qwen3next,
# whose state cannot step back over drafts.
PREDICT = {
    *("bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "deepseek4", "glm-dsa", "glm4moe", "glm5-next"),
    *("hy_v3", "mimo2", "nemotron_h_moe", "qwen35", "qwen35moe", "step35"),
}
CHAINS = {"hy_v3", "mimo2", "step35"}  # those that may have several, one for each token of a draft
TAPPED_LAYERS = 3  # of its target, that an EAGLE-3 head reads
_EAGLE3_BLOCK = ("attn_norm", "attn_norm_2", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm")
_EAGLE3 = (
    *("fc", "output_norm", "blk.0.ffn_gate", "blk.0.ffn_up", "blk.0.ffn_down"),
    *(f"blk.0.{name}" for name in _EAGLE3_BLOCK),
)
_DFLASH = ("fc", "enc.output_norm", "output_norm", "blk.0.attn_norm", "blk.0.attn_q", "blk.0.ffn_down")
_MTP = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm", "attn_norm")
_ASSISTANT = ("token_embd", "output_norm", "nextn.pre_projection", "nextn.post_projection")


class DraftKind(StrEnum):
    """How draft tokens come about."""

    MODEL = "draft-simple"  # by a whole model, which decodes by itself
    EAGLE3 = "draft-eagle3"  # by a head that reads three layers of the target
    MTP = "draft-mtp"  # by prediction layers of the target's architecture, inside the target or in a file of their own
    ASSISTANT = "draft-assistant"  # by a head of Gemma 4, which looks into the target's cache
    DFLASH = "draft-dflash"  # by a head that guesses a whole block, DSpark among them
    LOOKUP = "draft-lookup"  # from the text alone

    @property
    def is_head(self) -> bool:
        return self not in (DraftKind.MODEL, DraftKind.LOOKUP)


def draft_kind(header: Header) -> DraftKind:
    """The kind of a draft file."""
    kinds = {"eagle3": DraftKind.EAGLE3, "dflash": DraftKind.DFLASH, "gemma4-assistant": DraftKind.ASSISTANT}
    if header.architecture in kinds:
        return kinds[header.architecture]
    has_trunk = any(tensor.name.startswith("blk.0.") for tensor in header.tensors)
    return DraftKind.MTP if prediction_layers(header) and not has_trunk else DraftKind.MODEL


def is_trimmed(header: Header) -> bool:
    """Whether it speaks only some of its tokens: see gguf/trimmed.py."""
    return TOKENIZER in header.entries


def table_path(model: Path) -> Path:
    """The second file of a trimmed model."""
    return model.with_name(f"{model.stem}.tokens.gguf")


def prediction_layers(header: Header) -> int:
    return header.of_model("nextn_predict_layers")


def has_head(header: Header) -> bool:
    """Whether a target has a head inside that can be run."""
    return draft_kind(header) is DraftKind.MODEL and not next(_mtp_faults(header), "")


def target_layers(header: Header) -> tuple[int, ...]:
    """The layers whose inputs a head reads; the last one of all + 1 is the output of the last."""
    found = header.get(f"{header.text('general.architecture')}.target_layers")
    return tuple(map(int, found)) if isinstance(found, tuple) else ()


def has_markov_chain(header: Header) -> bool:
    """Whether a DFlash head is a DSpark: each guess of a block knows the likeliest one before it."""
    return _tensor(header, "markov_w1.weight") is not None


def trunk_layers(header: Header) -> int:
    """The layers of a model without its prediction layers."""
    return header.of_model("block_count") - prediction_layers(header)


def misfit(target: Header, draft: Header) -> str | None:
    """Why a head cannot draft for a target, as a sentence without its end; None for one that can, or a model."""
    faults = _FAULTS.get(draft_kind(draft))
    return next(faults(target, draft), None) if faults else None


def _eagle3_faults(target: Header, head: Header) -> Iterator[str]:
    architecture, width = target.architecture, target.of_model("embedding_length")
    if architecture not in SHOW_LAYERS:
        yield f"llama.cpp shows no layers of {architecture} models to an EAGLE-3 head"
    yield from _missing(head, _EAGLE3)
    if (count := head.of_model("block_count")) != 1:
        yield f"it has {count} layers, and an EAGLE-3 head has one"
    layers, last = target_layers(head), trunk_layers(target)
    if len(layers) != TAPPED_LAYERS:
        yield f"it reads {len(layers)} layers of its target, and an EAGLE-3 head reads {TAPPED_LAYERS}"
    if list(layers) != sorted(set(layers)):
        yield f"it reads its target's layers in the order {', '.join(map(str, layers))}"
    if not all(0 <= layer <= last for layer in layers):
        yield f"it reads layer {max(layers)} of its target, which has {last}"
    if last in layers and architecture not in SHOW_OUTPUT:
        yield f"it reads the output of its target's last layer, which llama.cpp does not show of {architecture} models"
    if (asked := head.of_model("target_hidden_size")) != width:
        yield f"it was made for a target of width {asked}, and this one has {width}"
    fused, own = _tensor(head, "fc.weight"), head.of_model("embedding_length")
    if fused and fused.shape != (TAPPED_LAYERS * width, own):
        yield f"its fc.weight is {fused.shape[0]} wide, and three layers of the target {TAPPED_LAYERS * width}"
    if not (_tensor(head, "token_embd.weight") and _tensor(head, "output.weight")) and own != width:
        yield f"it shares its target's embeddings, which are {width} wide, and it is {own}"
    if mapped := _tensor(head, "d2t"):
        output = _tensor(head, "output.weight")
        if BLOCKS[mapped.type][0] != "I64" or not output or mapped.shape != output.shape[1:]:
            yield "its map of the vocabulary (d2t) does not go with its output"


def _mtp_file_faults(target: Header, head: Header) -> Iterator[str]:
    ours, theirs = (header.architecture for header in (target, head))
    if ours != theirs:
        yield f"it predicts for {theirs} models, and the target is a {ours}"
    yield from _mtp_faults(head)
    for what, name in (("wide", "embedding_length"), ("layers deep", "block_count")):
        here, there = target.of_model(name), head.of_model(name)
        if name == "block_count":
            here, there = trunk_layers(target), trunk_layers(head)
        if here != there:
            yield f"it was made for a target {there} {what}, and this one is {here}"


def _mtp_faults(header: Header) -> Iterator[str]:
    architecture, count = header.architecture, prediction_layers(header)
    if architecture not in PREDICT or not count:
        yield f"llama.cpp knows no prediction layers of {architecture} models"
    if count > 1 and architecture not in CHAINS:
        yield f"it has {count} prediction layers, and llama.cpp runs one of {architecture} models"
    for layer in range(trunk_layers(header), trunk_layers(header) + count):
        yield from _missing(header, tuple(f"blk.{layer}.{name}" for name in _MTP))


def _assistant_faults(target: Header, head: Header) -> Iterator[str]:
    architecture, width = target.architecture, target.of_model("embedding_length")
    if architecture != "gemma4":
        yield f"it assists Gemma 4, and the target is a {architecture}"
    yield from _missing(head, _ASSISTANT)
    if (asked := head.of_model("embedding_length_out")) != width:
        yield f"it was made for a target of width {asked}, and this one has {width}"


def _dflash_faults(target: Header, head: Header) -> Iterator[str]:
    architecture, width = target.architecture, target.of_model("embedding_length")
    if architecture not in SHOW_LAYERS:
        yield f"llama.cpp shows no layers of {architecture} models to a DFlash head"
    if head.of_model("hyper_connection.count"):
        yield "it is a DSpark head of DeepSeek 4's architecture, which this localspec cannot run yet"
    yield from _missing(head, _DFLASH)
    layers, last = target_layers(head), trunk_layers(target)
    if not layers or not all(0 <= layer < last for layer in layers):
        yield f"it reads the layers {', '.join(map(str, layers)) or 'of none'} of its target, which has {last}"
    if (own := head.of_model("embedding_length")) != width:
        yield f"it was made for a target of width {own}, and this one has {width}"
    if has_markov_chain(head) and not head.of_model("block_size"):
        yield "it does not say how long its blocks are"


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
