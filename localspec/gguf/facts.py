"""What a GGUF header says about a model, and the contents on which llama.cpp aborts."""

import math
from dataclasses import dataclass
from pathlib import Path

from localspec.display import printable
from localspec.errors import BadModelFile
from localspec.gguf.header import (
    BLOCKS,
    INTEGERS,
    Header,
    HeaderVocabulary,
    header_at,
)
from localspec.gguf.trimmed import TOKENIZER

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


@dataclass(frozen=True, slots=True)
class VocabularyFacts:
    """What llama.cpp's compatibility rule looks at."""

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


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One model, from its header alone."""

    name: str
    architecture: str
    vocabulary: VocabularyFacts | None
    context: int | None  # tokens it was trained for
    layers: int | None
    has_chat_template: bool
    parameters: int
    weight_bytes: int

    @classmethod
    def from_header(cls, header: Header) -> "ModelFacts":
        architecture = header.text("general.architecture")
        return cls(
            name=printable(header.text("general.name")),
            architecture=printable(architecture),
            vocabulary=_vocabulary(header),
            context=trained_context(header),
            layers=header.number(f"{architecture}.block_count"),
            has_chat_template=bool(header.text("tokenizer.chat_template")),
            parameters=sum(math.prod(tensor.shape) for tensor in header.tensors),
            weight_bytes=header.weight_bytes,
        )


def trained_context(header: Header) -> int | None:
    """Tokens that the model was trained for, or that its RoPE scaling reaches; llama.cpp applies that by itself."""
    architecture = header.text("general.architecture")
    trained = header.number(f"{architecture}.context_length")
    before = header.number(f"{architecture}.rope.scaling.original_context_length")
    factor = header.get(f"{architecture}.rope.scaling.factor")
    if before is None or not isinstance(factor, int | float):
        return trained
    return max(trained or 0, int(before * factor))


def facts_of_file(path: Path) -> ModelFacts:
    """Facts about a file on this machine. Raises BadModelFile."""
    return ModelFacts.from_header(header_at(path))


def _vocabulary(header: Header) -> VocabularyFacts | None:
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
_MAP = "d2t"  # from the reduced vocabulary of an EAGLE-3 head, and no weight


def first_hazard(header: Header) -> str | None:
    """The first one, as the end of a sentence about the file; None when nothing is wrong."""
    architecture = header.text("general.architecture")
    if not architecture:
        return "does not name its architecture"
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


def refuse_hazards(path: Path) -> None:
    """Raise BadModelFile for a header on which llama.cpp is known to abort."""
    if hazard := first_hazard(header_at(path)):
        raise BadModelFile(f"{path.name} {printable(hazard)}", hint="fetch it again, or use another file")
