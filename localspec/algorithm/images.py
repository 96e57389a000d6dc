"""Images in prompts: each embedding row of an image is one token of the prompt, with an id that no vocabulary has.

The ids of an image's rows depend on its content. So prompts with different images have different tokens, and a cache
that compares tokens never confuses two images. Drafters and rules never see these tokens: `without_images` replaces
each chunk of an image by one placeholder.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

from localspec.algorithm.protocols import Decoder
from localspec.sampler.passes import ForwardPass

FIRST_ID = 2**31  # smallest id of a row of an image; ids of a vocabulary are smaller


class ImageChunk(Protocol):
    """Rows of an image that the target decodes together."""

    count: int  # number of rows
    positions: int  # number of positions that the rows take; with M-RoPE, fewer positions than rows
    placeholder: int  # token of the vocabulary that replaces the chunk in the text that drafters see

    @property
    def is_encoded(self) -> bool: ...

    def encode(self) -> object:
        """Compute the rows of the image, which takes seconds on a CPU. Raises BackendFailure."""

    def decode(self, context: object, position: int, sequence: int) -> int:
        """Append the rows to the KV cache of a context of llama.cpp; return a code as llama_decode does."""


class ImageRow(int):
    chunk: ImageChunk
    index: int  # index of the row in its chunk

    @classmethod
    def of(cls, chunk: ImageChunk, ids: Sequence[int]) -> "tuple[ImageRow, ...]":
        rows = tuple(cls(id_ % FIRST_ID + FIRST_ID) for id_ in ids)
        for index, row in enumerate(rows):
            row.chunk, row.index = chunk, index
        return rows


def chunks_of(tokens: Sequence[int]) -> Iterator[tuple[int, ImageChunk]]:
    """Yield each chunk of an image in a text, with the index of its first row."""
    for index, token in enumerate(tokens):
        if isinstance(token, ImageRow) and not token.index:
            yield index, token.chunk


def stretches(tokens: Sequence[int], begin: int, end: int) -> Iterator[tuple[int, int, ImageChunk | None]]:
    """Split a part of a text at its images: yield begin and end of each stretch, and the chunk of an image or None."""
    offset = begin
    for index, chunk in chunks_of(tokens[begin:end]):
        if begin < (first := offset + index):
            yield begin, first, None
        begin = first + chunk.count
        yield first, begin, chunk
    if begin < end:
        yield begin, end, None


def next_piece(tokens: Sequence[int], most: int) -> Sequence[int]:
    """Return the first tokens of a text for one pass: a chunk of an image, or at most `most` tokens before an image."""
    if tokens and isinstance(first := tokens[0], ImageRow):
        return tokens[: first.chunk.count - first.index]
    end = next((index for index, token in enumerate(tokens[:most]) if isinstance(token, ImageRow)), most)
    return tokens[:end]


def without_images(tokens: Sequence[int]) -> list[int]:
    """Return a text with one placeholder for each chunk of an image."""
    if max(tokens, default=0) < FIRST_ID:  # a faster way for texts without images
        return list(tokens)
    return [
        token.chunk.placeholder if isinstance(token, ImageRow) else token
        for token in tokens
        if not (isinstance(token, ImageRow) and token.index)
    ]


def observed(batch: ForwardPass, prompt: Sequence[int]) -> ForwardPass:
    """Return a pass over a part of a prompt as drafters observe it: with placeholders in place of images."""
    tokens, hidden = without_images(batch.tokens), batch.hidden
    if hidden is not None and len(tokens) < len(batch.tokens):
        hidden = hidden[-1:]  # one row is enough, because a pass over an image has one placeholder
    return batch._replace(start=len(without_images(prompt[: batch.start])), tokens=tokens, hidden=hidden)


class TextDecoder:
    """The part of a `Decoder` that the loop uses after a prompt with images. Lengths count placeholders, not rows."""

    def __init__(self, target: Decoder, lacking: int) -> None:
        """`lacking`: how many tokens fewer the prompt has with placeholders than with rows of images."""
        self._target, self._lacking = target, lacking

    @property
    def length(self) -> int:
        return self._target.length - self._lacking

    @property
    def busy_seconds(self) -> float:
        return self._target.busy_seconds

    def decode(self, tokens: Sequence[int], rows: int) -> ForwardPass:
        batch = self._target.decode(tokens, rows)
        return batch._replace(start=batch.start - self._lacking)

    def rollback(self, keep: int) -> None:
        self._target.rollback(keep + self._lacking)
