"""Checks from headers whether a draft can draft for a target.

A draft of the target's vocabulary follows llama.cpp's rule; a draft of another vocabulary uses the shared tokens.
common/speculative.cpp, common_speculative_are_compatible: same kind of vocabulary, same begin and end tokens
where they are added, sizes that differ by at most 128, and the same text for every token from id 5 on.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.display import printable
from localspec.errors import ANOTHER_COPY, BadModelFile, BadSetting, IncompatiblePair
from localspec.files import expanded
from localspec.gguf.facts import VocabularyFacts, draft_kind, first_hazard, is_trimmed, misfit, vocabulary_of
from localspec.gguf.header import Header, TensorInfo

if TYPE_CHECKING:  # pairs are listed without it
    import numpy as np

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
    if not found[0].is_file():
        raise BadSetting(f"there is no adapter file {found[0]}", hint="name a GGUF file: --lora FILE[:SCALE]")
    if not math.isfinite(found[1]):
        raise BadSetting(f"{scale} is not a scale of an adapter", hint="give a number, as in FILE:0.5")
    return found


def check_adapter(name: str, adapter: Header, target: Header) -> None:
    """Raises BadModelFile unless llama.cpp can add this adapter to the target; llama-adapter.cpp has the rules."""
    if adapter.text("general.type") != "adapter" or adapter.text("adapter.type") != "lora":
        raise BadModelFile(f"{name} is not a LoRA adapter", hint=_HINT)
    if "adapter.alora.invocation_tokens" in adapter.entries:
        raise BadModelFile(
            f"{name} is an activated LoRA, which begins within a text", hint="use one that is always on"
        )
    ours, theirs = (printable(header.architecture) for header in (adapter, target))
    if ours != theirs:
        raise _of_another_model(name, f"its architecture is {ours}, the target's is {theirs}")
    matrices = {tensor.name: tensor for tensor in target.tensors}
    parts = {tensor.name: tensor for tensor in adapter.tensors}
    for matrix in dict.fromkeys(tensor.rpartition(".lora_")[0] for tensor in parts if ".lora_" in tensor):
        a, b = parts.get(f"{matrix}.lora_a"), parts.get(f"{matrix}.lora_b")
        if a is None or b is None:
            raise BadModelFile(f"{name} has only half of {printable(matrix)}", hint=_HINT)
        if matrix not in matrices:
            raise _of_another_model(name, f"the target has no {printable(matrix)}")
        if not _fits(matrix, a, b, matrices[matrix]):
            raise _of_another_model(name, f"{printable(matrix)} has another shape in the target")


def _fits(name: str, a: TensorInfo, b: TensorInfo, matrix: TensorInfo) -> bool:
    """Whether b times a can be added to a matrix; for the embedding they are the other way round."""
    if min(len(a.shape), len(b.shape), len(matrix.shape)) < 2:
        return False
    if name == _EMBEDDING:
        return (b.shape[1], a.shape[1]) == matrix.shape[:2]
    return (a.shape[0], b.shape[1]) == matrix.shape[:2] and a.shape[1] == b.shape[0]


def _of_another_model(name: str, how: str) -> BadModelFile:
    return BadModelFile(f"{name} is an adapter for another model: {how}", hint=_HINT)


_BYTE = re.compile(rb"<0x([0-9A-F]{2})>")
_LONGEST = 24  # bytes of a token that the sample is cut into
_KNOWN_BYTES = {"BPE", "SPM"}  # vocabularies the bytes of whose tokens are known

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
    """Tokens that two vocabularies have in common: draft_ids[i] and target_ids[i] are the same bytes."""

    draft_ids: "np.ndarray"  # int32 [n]
    target_ids: "np.ndarray"  # int32 [n], no token twice
    coverage: float  # of the tokens that the draft writes a text of several kinds with

    @property
    def count(self) -> int:
        return len(self.draft_ids)


def in_words(shared: SharedTokens) -> str:
    """The tokens that a draft of another vocabulary can write."""
    return f"only in the {shared.count:,} tokens that both have; these are {shared.coverage:.0%} of what it writes"


@lru_cache(maxsize=4)  # a second for the largest vocabularies, and a pair is checked before it is opened
def shared_tokens(target: VocabularyFacts, draft: VocabularyFacts) -> SharedTokens:
    """The shared tokens of target and draft, with their end tokens under any name."""
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
    """A text cut into the longest tokens from its beginning, nearly as a tokenizer does."""
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
    """Every token with its bytes; byte-fallback tokens come last."""
    of = _bytes_of_bpe if vocabulary.kind == "BPE" and not vocabulary.marks_spaces else _bytes_of_spm
    texts = list(vocabulary.texts.texts())
    return sorted(
        ((token, of(text)) for token, text in enumerate(texts)),
        key=lambda known: bool(_BYTE.fullmatch(texts[known[0]])),
    )


def _bytes_of_spm(text: bytes) -> bytes:
    if byte := _BYTE.fullmatch(text):
        return bytes([int(byte[1], 16)])
    return text.replace("\u2581".encode(), b" ")


def _bytes_of_bpe(text: bytes) -> bytes:
    """The bytes of GPT-2's printable stand-ins; a text with other characters is an added token and stays."""
    try:
        return text.decode("utf-8").translate(_STAND_INS).encode("latin-1")
    except UnicodeError:
        return text


def _stand_ins() -> dict[int, int]:
    """Character to byte, as GPT-2's tokenizer has it; characters that it does not use go beyond latin-1."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {256 + i: byte for i, byte in enumerate(others)} | dict.fromkeys(others, 0xFFFF)


_STAND_INS = _stand_ins()


MAX_SIZE_DIFFERENCE = 128  # tokens
LEAST_COVERAGE = 0.5  # of the text of a draft of another vocabulary: with less it would mostly be wrong
FIRST_COMPARED = 5  # token id
_SHOWN = 40  # characters of a token's text


def check(
    headers: Sequence[Header],
    names: Sequence[str] = ("the target", "the draft"),
    adapters: Iterable[tuple[str, Header]] = (),
) -> SharedTokens | None:
    """The tokens that a draft of another vocabulary shares with its target; None for one vocabulary, or no draft.

    `headers`: of the target, and of the draft if there is one. Raises BadModelFile for a file that cannot be loaded,
    IncompatiblePair naming the difference.
    """
    for header, name in zip(headers, names, strict=False):
        _refuse_file(header, name)
    target, name = headers[0], names[0]
    if draft_kind(target).is_head:
        raise BadModelFile(
            f"{name} is a prediction head: it drafts for another model and runs with it alone",
            hint="give it as the draft of its target: --target FILE --draft HEAD",
        )
    for adapter in adapters:
        check_adapter(*adapter, target)
    return _common_tokens(target, headers[1], name, names[1]) if len(headers) > 1 else None


def _refuse_file(header: Header, name: str) -> None:
    """Raises BadModelFile for a file that is not a whole model, or on which llama.cpp is known to abort."""
    if (parts := header.number("split.count") or 0) > 1:
        raise BadModelFile(
            f"{name} is one of {parts} parts of a model",
            hint="fetch all of them into one folder, and name the first by its path",
        )
    if not header.architecture or not header.tensors:
        raise BadModelFile(f"{name} holds no model", hint="choose another file")
    if hazard := first_hazard(header):
        raise BadModelFile(f"{name} {printable(hazard)}", hint=ANOTHER_COPY)
    if header.vocabulary is None:
        raise BadModelFile(
            f"{name} has no vocabulary of its own, so it cannot run alone",
            hint="files called mtp-, eagle3- or dflash- are heads: give one as the draft of its target",
        )


def _common_tokens(target: Header, draft: Header, target_name: str, draft_name: str) -> SharedTokens | None:
    ours, theirs = vocabulary_of(target), vocabulary_of(draft)
    why = misfit(target, draft) or next(iter(differences(ours, theirs)), None)
    if why is None:
        return None
    is_model = not draft_kind(draft).is_head and not is_trimmed(draft)
    if is_model and ours and theirs and {ours.kind, theirs.kind} <= _KNOWN_BYTES:
        shared = shared_tokens(ours, theirs)
        if shared.coverage >= LEAST_COVERAGE:
            return shared
        why = (
            f"their vocabularies differ, and only {shared.coverage:.0%} of the tokens that it writes are the "
            f"target's too ({LEAST_COVERAGE:.0%} are needed)"
        )
    raise IncompatiblePair(
        f"{draft_name} cannot draft for {target_name}: {why}",
        hint="choose a draft of the target's own family; `localspec pairs` lists pairs that fit",
    )


def differences(ours: VocabularyFacts | None, theirs: VocabularyFacts | None) -> list[str]:
    """The differences between the vocabularies of a target and a draft."""
    for name, vocabulary in (("target", ours), ("draft", theirs)):
        if vocabulary is None:
            return [f"the {name} has no vocabulary"]
        if not vocabulary.kind:
            return [f"the {name} has a tokenizer that llama.cpp does not know"]
    assert ours is not None
    assert theirs is not None
    if ours.kind != theirs.kind:
        return [f"the target's vocabulary is {ours.kind}, the draft's is {theirs.kind}"]
    found = _ends("begin", ours.adds_bos, theirs.adds_bos, ours.bos, theirs.bos)
    found += _ends("end", ours.adds_eos, theirs.adds_eos, ours.eos, theirs.eos)
    if abs(ours.count - theirs.count) > MAX_SIZE_DIFFERENCE:
        found.append(
            f"the target knows {ours.count:,} tokens, the draft {theirs.count:,}, "
            f"and more than {MAX_SIZE_DIFFERENCE} apart is too far"
        )
    if difference := first_difference(ours, theirs):
        token, text, other = difference
        found.append(f"token {token} is {_quoted(text)} in the target and {_quoted(other)} in the draft")
    return found


def first_difference(ours: VocabularyFacts, theirs: VocabularyFacts) -> tuple[int, bytes, bytes] | None:
    """The first token from id 5 on whose texts differ, with both texts; None for equal texts."""
    if ours.texts == theirs.texts:
        return None
    pairs = zip(ours.texts.texts(), theirs.texts.texts(), strict=False)
    for token, (text, other) in enumerate(pairs):
        if (
            text != other
            and token >= FIRST_COMPARED
            and _as_compared(text, token) != _as_compared(other, token)
        ):
            return token, text, other
    return None


def _as_compared(text: bytes, token: int) -> bytes:
    """A token's text as llama.cpp compares it: up to a zero byte, and an empty one has a name."""
    return text.split(b"\0", 1)[0] if text else b"[EMPTY_%d]" % token


def _ends(which: str, ours_added: bool, theirs_added: bool, ours: int, theirs: int) -> list[str]:
    if ours_added != theirs_added:
        article = "an" if which == "end" else "a"
        one, other = ("target", "draft") if ours_added else ("draft", "target")
        return [f"the {one} puts {article} {which} token, the {other} does not"]
    if ours_added and ours != theirs:
        return [f"the {which} token is {ours} in the target and {theirs} in the draft"]
    return []


def _quoted(text: bytes) -> str:
    shown = text.decode("utf-8", "replace")
    return repr(shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "...")
