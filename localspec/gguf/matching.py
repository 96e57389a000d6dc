"""Check from the headers whether a draft fits a target: by llama.cpp's rule, or by shared tokens.

llama.cpp's rule (common_speculative_are_compatible): the same kind of vocabulary, the same begin and end
tokens if the models add them, sizes at most 128 apart, and the same text for every token from id 5 on.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.display import printable
from localspec.errors import ANOTHER_COPY, BadModelFile, BadSetting, IncompatiblePair
from localspec.files import expanded
from localspec.gguf.facts import TOKENIZER, DraftKind, draft_kind, first_known_crash, is_trimmed, misfit
from localspec.gguf.header import Header, HeaderVocabulary

if TYPE_CHECKING:  # numpy is imported late, because its import is slow
    import numpy as np

Adapter = tuple[Path, float]  # the file of a LoRA adapter, and the factor of its weights

_HINT = "use an adapter that was made for this model, converted to GGUF"


def adapters_of(text: str) -> tuple[Adapter, ...]:
    adapters = []
    for part in filter(None, map(str.strip, text.split(","))):
        path, _, scale = part.rpartition(":")
        try:
            file, factor = (expanded(path), float(scale)) if path else (expanded(part), 1.0)
        except ValueError:  # without a number behind it, the colon belongs to the path
            file, factor = expanded(part), 1.0
        if not file.is_file():
            raise BadSetting(f"there is no adapter file {file}", hint="name a GGUF file: --lora FILE[:SCALE]")
        if not abs(factor) <= 1e9:  # also true for NaN
            raise BadSetting(f"{scale} is not a valid adapter scale", hint="give a number, as in FILE:0.5")
        adapters.append((file, factor))
    return tuple(adapters)


def check_adapter(name: str, adapter: Header, target: Header) -> None:
    """Raise BadModelFile unless a file is a LoRA adapter for the target's architecture."""
    if adapter.text("general.type") != "adapter" or adapter.text("adapter.type") != "lora":
        raise BadModelFile(f"{name} is not a LoRA adapter", hint=_HINT)
    if "adapter.alora.invocation_tokens" in adapter.entries:
        what = f"{name} is an activated LoRA adapter (aLoRA), and localspec cannot use adapters of this kind"
        raise BadModelFile(what, hint="use an ordinary LoRA adapter")
    ours, theirs = (printable(header.architecture) for header in (adapter, target))
    if ours != theirs:
        why = f"its architecture is {ours}, the target's is {theirs}"
        raise BadModelFile(f"{name} is an adapter for another model: {why}", hint=_HINT)


# From llama-vocab.cpp: by tokenizer.ggml.model, the kind of vocabulary and the defaults of missing keys.
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
_PRE_ADDS_BOS = {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"}
_PRE_ADDS_BOS |= {"jina-v5-nano", "tekken", "chameleon"}


@dataclass(frozen=True, slots=True)
class VocabularyFacts:
    """The facts about a vocabulary that llama.cpp's compatibility rule compares."""

    kind: str  # SPM, BPE, ...; "" if llama.cpp does not know the tokenizer
    bos: int  # the token that begins a text; -1 if there is none
    eos: int
    adds_bos: bool
    adds_eos: bool
    texts: HeaderVocabulary
    end: int = -1  # the token that ends a turn; -1 if the header has none
    escapes_spaces: bool = False  # whether a BPE vocabulary has plain texts, without GPT-2's coded bytes

    @property
    def count(self) -> int:
        return self.texts.count


def vocabulary_of(header: Header) -> VocabularyFacts | None:
    if header.vocabulary is None:
        return None
    model = header.text(TOKENIZER) or header.text("tokenizer.ggml.model")
    pre = header.text("tokenizer.ggml.pre")
    kind = _KINDS.get(model, "")
    if model == "gemma4":
        pre = "gemma4"
    is_bpe = kind == "BPE"
    bos = -1 if is_bpe and pre in ("chatglm-bpe", "glm4", "glm5") else _BOS.get(model, -1)
    adds_bos = kind in ("SPM", "WPM") or (is_bpe and pre in _PRE_ADDS_BOS)
    adds_bos = header.flag("tokenizer.ggml.add_bos_token", adds_bos) or (is_bpe and pre == "gemma4")
    return VocabularyFacts(
        kind=kind,
        bos=header.token("tokenizer.ggml.bos_token_id", bos),
        eos=header.token("tokenizer.ggml.eos_token_id", _EOS.get(model, -1)),
        adds_bos=adds_bos,
        adds_eos=header.flag("tokenizer.ggml.add_eos_token", kind == "UGM"),
        texts=header.vocabulary,
        end=header.token("tokenizer.ggml.eot_token_id", header.token("tokenizer.ggml.eos_token_id", -1)),
        escapes_spaces=model == "gemma4",
    )


_BYTE = re.compile(rb"<0x([0-9A-F]{2})>")
_LONGEST = 24  # maximum bytes of a token that is looked for in SAMPLE

SAMPLE = """\
The ferry left at ten past six, two hours late, with nineteen passengers and a dog. "You will want the other \
harbour," she told the engineer; ours has been too shallow since the storm of 1987. He thanked her in three \
languages and asked what a room cost: 42.50 for a single, 61.00 with breakfast.

1. **Measure first.** Whatever you change, write down what it was before.
2. Keep the receipts, the photographs and a copy of the contract.

def hours(litres: float, rate: float = 3.2) -> float:
    return round(litres / rate / 60, 1)

for name, litres in {"cellar": 1200, "yard": 450}.items():
    print(f"{name}: {hours(litres)} h")

{"id": 17, "name": "Okafor", "tags": ["office", "harbour"], "active": true, "address": {"city": "Oslo"}}
"""


@dataclass(frozen=True, slots=True)
class SharedTokens:
    """The tokens that draft and target share: draft_ids[i] and target_ids[i] have the same bytes."""

    draft_ids: "np.ndarray"  # int32 [shared tokens]
    target_ids: "np.ndarray"  # int32 [shared tokens], without repeats
    coverage: float  # shared tokens / all tokens when the draft tokenizes SAMPLE

    @property
    def count(self) -> int:
        return len(self.draft_ids)


def in_words(shared: SharedTokens) -> str:
    return f"only the {shared.count:,} tokens that both have, which are {shared.coverage:.0%} of a usual text"


@lru_cache(maxsize=4)  # cached, because a call takes up to a second, and a load makes two calls
def shared_tokens(target: VocabularyFacts, draft: VocabularyFacts) -> SharedTokens:
    """Return the tokens that have the same bytes in target and draft. Their end tokens count as equal, too."""
    import numpy as np

    theirs: dict[bytes, int] = {}
    for token, raw in _normal_first(target):
        theirs.setdefault(raw, token)
    found, written = {}, set()
    for token, raw in _normal_first(draft):
        if (same := theirs.get(raw)) is not None and same not in written:
            found[token] = same
            written.add(same)
    if draft.end not in found and target.end not in written and min(draft.end, target.end) >= 0:
        found[draft.end] = target.end
    pieces = {raw: token for token, raw in reversed(_normal_first(draft)) if len(raw) <= _LONGEST}
    used = list(_cut(SAMPLE.encode(), pieces))
    coverage = sum(token in found for token in used) / len(used) if used else 0.0
    return SharedTokens(np.array(list(found), np.int32), np.array(list(found.values()), np.int32), coverage)


def _cut(text: bytes, pieces: dict[bytes, int]) -> Iterator[int]:
    """Yield nearly the tokens that a tokenizer would give: at each place of a text, the longest token that fits."""
    at = 0
    while at < len(text):
        for end in range(min(at + _LONGEST, len(text)), at, -1):
            if (token := pieces.get(text[at:end])) is not None:
                yield token
                break
        else:
            end = at + 1
        at = end


def _normal_first(vocabulary: VocabularyFacts) -> list[tuple[int, bytes]]:
    """Return the id and bytes of every token; byte-fallback tokens like <0x0A> come last."""
    has_stand_ins = vocabulary.kind == "BPE" and not vocabulary.escapes_spaces
    normal, fallback = list[tuple[int, bytes]](), list[tuple[int, bytes]]()
    for token, text in enumerate(vocabulary.texts.texts()):
        byte = _BYTE.fullmatch(text)
        if has_stand_ins:
            try:
                raw = text.decode("utf-8").translate(_STAND_INS).encode("latin-1")
            except UnicodeError:  # an added token: its text is not in GPT-2's code
                raw = text
        else:
            raw = bytes([int(byte[1], 16)]) if byte else text.replace("\u2581".encode(), b" ")
        (fallback if byte else normal).append((token, raw))
    return normal + fallback


# GPT-2 writes the i-th of these bytes as character 256 + i. Each byte's own character becomes 0xFFFF, an error.
_OTHERS = [*range(33), *range(127, 161), 173]
_STAND_INS = {256 + i: byte for i, byte in enumerate(_OTHERS)} | dict.fromkeys(_OTHERS, 0xFFFF)


MAX_SIZE_DIFFERENCE = 128  # the sizes of two vocabularies may differ by at most this number of tokens
LEAST_COVERAGE = 0.5  # a draft needs at least this SharedTokens.coverage


def check(
    headers: Sequence[Header],
    names: Sequence[str] = ("the target", "the draft"),
    adapters: Iterable[tuple[str, Header]] = (),
) -> SharedTokens | None:
    """Check a pair; return the shared tokens, or None if target and draft have the same vocabulary."""
    for header, name in zip(headers, names, strict=False):
        _refuse_file(header, name)
    target, kinds = headers[0], [draft_kind(header) for header in headers]
    if kinds[0].is_head:
        raise BadModelFile(
            f"{names[0]} is a prediction head: it drafts for a target and cannot run without it",
            hint="give it as the draft of its target: --target FILE --draft HEAD",
        )
    for adapter in adapters:
        check_adapter(*adapter, target)
    if len(headers) == 1:
        return None
    draft = headers[1]
    ours, theirs = vocabulary_of(target), vocabulary_of(draft)
    if not (why := misfit(target, draft) or difference(ours, theirs)):
        return None
    is_model = kinds[1] is DraftKind.MODEL and not is_trimmed(draft)
    # In these kinds of vocabularies, texts show the bytes of each token.
    if is_model and ours and theirs and {ours.kind, theirs.kind} <= {"BPE", "SPM"}:
        shared = shared_tokens(ours, theirs)
        if shared.coverage >= LEAST_COVERAGE:
            return shared
        why = (
            f"their vocabularies differ, and only {shared.coverage:.0%} of the tokens that the draft writes "
            f"are also in the target's ({LEAST_COVERAGE:.0%} are needed)"
        )
    raise IncompatiblePair(
        f"{names[1]} cannot draft for {names[0]}: {why}",
        hint="choose a draft of the target's own family; `localspec pairs` lists pairs that fit",
    )


_RANK = 4  # LLAMA_POOLING_TYPE_RANK


def check_small(header: Header, name: str, pooling: str) -> None:
    """Refuse a file that makes no vectors or, with `pooling` "rank", no scores. Raises BadModelFile."""
    check([header], [name])
    own, scores = header.of_model("pooling_type"), any(each.name.startswith("cls") for each in header.tensors)
    if pooling == "rank" and not scores:
        raise BadModelFile(f"{name} cannot score documents: it is not a reranker", hint="choose a reranker")
    if not pooling and own == _RANK:
        raise BadModelFile(f"{name} is a reranker", hint="use it with --rerank, or localspec.rerank")
    if not pooling and not own:
        hint = "choose a model for embeddings, or set its pooling (--pooling): none, mean, cls or last"
        raise BadModelFile(f"{name} does not say how it makes one vector of a text (its pooling)", hint=hint)


def _refuse_file(header: Header, name: str) -> None:
    """Raise BadModelFile if a file is not a whole model, or if llama.cpp is known to abort on it."""
    if (parts := header.number("split.count") or 0) > 1:
        raise BadModelFile(
            f"{name} is one of {parts} parts of a model",
            hint="download all of them into one folder, and name the first by its path",
        )
    if not header.architecture or not header.tensors:
        raise BadModelFile(f"{name} is not a model", hint="choose another file")
    if header.architecture == "clip":
        what = f"{name} is a projector, with which a model reads images"
        raise BadModelFile(what, hint="run the model, and give this file with --mmproj FILE")
    if hazard := first_known_crash(header):
        raise BadModelFile(f"{name} {printable(hazard)}", hint=ANOTHER_COPY)
    if header.vocabulary is None:
        raise BadModelFile(
            f"{name} has no vocabulary of its own, so it cannot run alone",
            hint="if it is a head (mtp-, eagle3-, dflash-), give it as the draft of its target",
        )


def difference(ours: VocabularyFacts | None, theirs: VocabularyFacts | None) -> str:
    """Return the first difference between the vocabularies of target and draft, or ""."""
    for name, vocabulary in (("target", ours), ("draft", theirs)):
        if vocabulary is None:
            return f"the {name} has no vocabulary"
        if not vocabulary.kind:
            return f"the {name} has a tokenizer that llama.cpp does not know"
    assert ours is not None
    assert theirs is not None
    if ours.kind != theirs.kind:
        return f"the target's vocabulary is {ours.kind}, the draft's is {theirs.kind}"
    for which, added, tokens in (
        ("begin", (ours.adds_bos, theirs.adds_bos), (ours.bos, theirs.bos)),
        ("end", (ours.adds_eos, theirs.adds_eos), (ours.eos, theirs.eos)),
    ):
        if added[0] != added[1]:
            return f"only the {'target' if added[0] else 'draft'} adds its {which} token"
        if added[0] and tokens[0] != tokens[1]:
            return f"the {which} token is {tokens[0]} in the target and {tokens[1]} in the draft"
    if abs(ours.count - theirs.count) > MAX_SIZE_DIFFERENCE:
        return (
            f"the target has {ours.count:,} tokens, the draft {theirs.count:,}, "
            f"but the sizes may differ by at most {MAX_SIZE_DIFFERENCE}"
        )
    for token, texts in enumerate(zip(ours.texts.texts(), theirs.texts.texts(), strict=False)):
        if texts[0] != texts[1] and token >= 5:  # llama.cpp ignores differences before token 5
            # As in llama.cpp, a text ends at a zero byte, and an empty text is [EMPTY_] with the token's id.
            one, other = (text.split(b"\0", 1)[0] if text else b"[EMPTY_%d]" % token for text in texts)
            if one != other:
                target, draft = (repr(text.decode("utf-8", "replace")[:40]) for text in texts)
                return f"token {token} is {target} in the target and {draft} in the draft"
    return ""
