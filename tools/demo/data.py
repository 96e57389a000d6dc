"""Rows of tokens for training: documents packed end to end, what is learned of them, and positions."""

from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from tools.demo import vocabulary
from tools.demo.corpus.mix import Document, documents

QUESTION_SHARE = 0.2
"""Share of the users' questions that is learned: no need to guess them, but they teach how people ask."""
PLAIN_SHARE = 0.7
JUMP_SHARE = 0.3
"""Share of rows in which positions jump once, so that long distances are not new at run time."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Tokens (one more than is read), whether each next one is learned, and positions."""

    tokens: Tensor
    learned: Tensor
    positions: Tensor


def pieces(document: Document) -> list[tuple[str, float]]:
    """The document in ChatML, with the chance that a piece is learned."""
    if document.text:
        return [(document.text + vocabulary.END_OF_TEXT, PLAIN_SHARE)]
    start, end = vocabulary.IM_START, vocabulary.IM_END
    found = [(f"{start}system\n{document.system}{end}\n", 0.0)] if document.system else []
    for turn in document.turns:
        found += [(f"{start}user\n{turn.asks}{end}\n", QUESTION_SHARE), (f"{start}assistant\n", 0.0)]
        found += [(f"{turn.says}{end}", 1.0), ("\n", 0.0)]
    return found


def make_rows(seed: int, part: int, height: int, length: int, context: int) -> Rows:
    """The rows of one part of the corpus; each row begins with a new document."""
    tokenizer, stream, rng = vocabulary.load(), documents(seed, part), Random(f"learned/{seed}/{part}")
    tokens: list[list[int]] = []
    learned: list[list[bool]] = []
    row: list[int] = []
    marks: list[bool] = []
    while len(tokens) < height:
        cut = pieces(next(stream))
        for (_, share), encoded in zip(cut, tokenizer.encode_batch([text for text, _ in cut]), strict=True):
            row += encoded.ids
            marks += [rng.random() < share] * len(encoded.ids)
        if len(row) > length:
            tokens.append(row[: length + 1])
            learned.append(marks[1 : length + 1])
            row, marks = [], []
    return Rows(torch.tensor(tokens), torch.tensor(learned), positions(seed, part, height, length, context))


def positions(seed: int, part: int, height: int, length: int, context: int) -> Tensor:
    """Positions that count up, in some rows with one jump."""
    rng = Random(f"positions/{seed}/{part}")
    found = torch.arange(length).repeat(height, 1)
    for row in found:
        if rng.random() < JUMP_SHARE:
            row[rng.randrange(1, length) :] += rng.randrange(context - length)
    return found
