"""The place where two replies part, the closeness of the target's choice there, and a pair run by hand."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from localspec.algorithm.protocols import Decoder, Drafter
from localspec.chat.loaded_pair import LoadedPair
from localspec.sampler.passes import NO_TEXT, Candidates, Row

AS_FAR_BACK = 200  # tokens before a divergence on which batch widths are compared


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first token that differs."""

    index: int  # tokens that were equal
    plain: int | None  # token without drafting; None after the end of that reply
    speculative: int | None  # token with drafting; None after the end of that reply
    top_two_gap: float | None  # between the two largest logits of the target's row there; None: not measured


def first_difference(plain: Sequence[int], speculative: Sequence[int]) -> int | None:
    """The first index at which two token sequences differ; None when they are equal."""
    for index, (one, other) in enumerate(zip(plain, speculative, strict=False)):
        if one != other:
            return index
    return None if len(plain) == len(speculative) else min(len(plain), len(speculative))


def diverged(plain: Sequence[int], speculative: Sequence[int], gap: float | None) -> Divergence | None:
    """The divergence of two replies, with a gap measured elsewhere; None when they are equal."""
    index = first_difference(plain, speculative)
    if index is None:
        return None
    one, other = (reply[index] if index < len(reply) else None for reply in (plain, speculative))
    return Divergence(index, one, other, gap)


def top_two_gap(row: Row) -> float:
    """The distance between the two largest logits of a row."""
    logits = row.logits if isinstance(row, Candidates) else row
    second, first = np.partition(logits, -2)[-2:]
    return float(first - second)


def likeliest_token(row: Row) -> int:
    """The token of the largest logit, of equal ones the lowest id."""
    if isinstance(row, Candidates):
        return int(row.ids[row.logits == row.logits.max()].min())
    return int(row.argmax())


def row_after(decoder: Decoder, tokens: Sequence[int]) -> Row:
    """The target's row after a text, read from an empty cache, the last token alone as in plain decoding."""
    decoder.rollback(0)
    for _ in decoder.prefill(tokens[:-1]):
        pass
    (row,) = decoder.decode(tokens[-1:], rows=1).rows
    return copied(row)


def width_difference_on(pair: LoadedPair, tokens: Sequence[int]) -> float:
    """D: the largest logit difference between batch widths at the last 200 of these tokens."""
    return width_gap(pair.target, tokens[-AS_FAR_BACK:])


def copied(row: Row) -> Row:
    """A row that stays after the next decode."""
    if isinstance(row, Candidates):
        return Candidates(row.ids.copy(), row.logits.copy())
    return np.array(row)


def begin(pair: LoadedPair, prompt: Sequence[int]) -> None:
    """The target reads the prompt but for its last token, and the drafters follow."""
    forget(pair.target, pair.drafters)
    for batch in pair.target.prefill(prompt[:-1]):
        for drafter in pair.drafters:
            drafter.observe(batch, len(batch.tokens))


def forget(target: Decoder, drafters: Sequence[Drafter]) -> None:
    """Empty all caches."""
    target.rollback(0)
    for drafter in drafters:
        drafter.observe(NO_TEXT, 0)


WIDTHS = (1, 2, 5, 9)


def width_gap(decoder: Decoder, tokens: Sequence[int]) -> float:
    """D: the largest logit difference between batch widths 1, 2, 5 and 9 on the same prefixes of `tokens`.

    Decodes the tokens from an empty cache once for each width and leaves the cache empty; needs 9 rows.
    """
    reference = _rows(decoder, tokens, WIDTHS[0])
    return max(float(np.abs(_rows(decoder, tokens, width) - reference).max()) for width in WIDTHS[1:])


def _rows(decoder: Decoder, tokens: Sequence[int], width: int) -> np.ndarray:
    """The row after every token, float32 [tokens, vocab], decoded `width` tokens at a time."""
    decoder.rollback(0)
    rows: list[np.ndarray] = []
    for start in range(0, len(tokens), width):
        batch = tokens[start : start + width]
        rows.extend(np.array(row) for row in decoder.decode(batch, len(batch)).rows)
    decoder.rollback(0)
    return np.stack(rows)
