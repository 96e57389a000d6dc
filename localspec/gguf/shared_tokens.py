"""Tokens of two vocabularies with the same bytes, and the share of a text that they cover."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from localspec.gguf.facts import VocabularyFacts

_BYTE = re.compile(rb"<0x([0-9A-F]{2})>")
_LONGEST = 24  # bytes of a token that the sample is cut into

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

    draft_ids: np.ndarray  # int32 [n]
    target_ids: np.ndarray  # int32 [n], no token twice
    coverage: float  # of the tokens that the draft writes a text of several kinds with

    @property
    def count(self) -> int:
        return len(self.draft_ids)


def comparable(vocabulary: VocabularyFacts) -> bool:
    """Whether the bytes of its tokens are known."""
    return vocabulary.kind in ("BPE", "SPM")


def in_words(shared: SharedTokens) -> str:
    """What a draft of another vocabulary can say."""
    return f"in {shared.count:,} tokens that both vocabularies have, {shared.coverage:.0%} of what it writes"


@lru_cache(maxsize=4)  # a second for the largest vocabularies, and a pair is checked before it is opened
def shared_tokens(target: VocabularyFacts, draft: VocabularyFacts) -> SharedTokens:
    """What target and draft have in common, their end tokens included whatever these are called."""
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
    """A text cut into the longest tokens from its beginning on, nearly as a tokenizer cuts it."""
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
    """Every token with its bytes; those that stand for one byte where no other token does come last."""
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
    """From GPT-2's printable stand-ins for bytes; a text with other characters is as it stands: an added token."""
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
