"""Embeds a small llama in a larger shape that computes the same function at the larger shape's cost.

* Extra hidden columns are never written, so they stay zero; norm gains and epsilon allow for the larger mean.
* Extra heads, feed-forward units and layers write through zero columns. Idle weights are random.
* In wider heads, the old rotary pairs sit where the new frequencies equal the old ones, and queries grow
  to undo the smaller attention scale.
* Extra tokens never win: one hidden column holds a small constant, which only their output rows read,
  with a large negative weight. The epsilon of every norm shrinks by what the constant adds.

Quantised blocks of 32 never mix old and new columns, so Q8_0 out of Q8_0 keeps its values.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import ceil, sqrt
from pathlib import Path
from typing import TypeAlias

import numpy as np

from localspec.errors import BadSetting
from localspec.gguf.header import ARRAY, Entry, HeaderVocabulary, header_at
from localspec.gguf.trimmed import UINT32, laid_out, tensor_at, text_entry, write_streamed

F32, F16, Q8_0 = 0, 1, 8  # see header.BLOCKS
FLOAT32, INT32 = 6, 5  # types of values in a header
UNUSED = 5  # the type of a token that no text has
REPEL = 60_000.0  # how strongly extra tokens are pushed away; still a half-precision number
CONSTANT_SIZE = (
    0.03  # of the constant column after the last norm, before division by the old root mean square
)
POOL_ROWS = 64  # random rows that are made once for each tensor and repeated
SPREAD = 0.02  # of random weights

Coder: TypeAlias = Callable[[np.ndarray, int], np.ndarray]
Maker: TypeAlias = Callable[[], np.ndarray]


class UnfitError(BadSetting):
    """The model cannot be embedded in the wanted shape."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a llama."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    ffn: int
    vocab: int

    @property
    def parameters(self) -> int:
        """Weights in its matrices."""
        attention = 2 * self.width * self.head_width * (self.heads + self.kv_heads)
        return self.vocab * self.width + self.layers * (attention + 3 * self.width * self.ffn)


@dataclass(frozen=True, slots=True)
class Places:
    """Where the old rows and columns stand in the new tensors."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    output: np.ndarray  # columns of the output matrix that read the old heads
    kv_source: np.ndarray  # old row for each of `key` and `value`: their heads may be there more than once
    constant: int | None  # the hidden column that holds the constant, if there are extra tokens


def place(old: Shape, new: Shape) -> Places:
    """Find a place for every old head, column and unit. Raises UnfitError."""
    check(old, new)
    old_group, group = old.heads // old.kv_heads, new.heads // new.kv_heads
    copies = ceil(old_group / group)
    head = np.arange(old.heads)
    kv, inside = head // old_group, head % old_group
    new_heads = (kv * copies + inside // group) * group + inside % group
    new_kv = np.arange(old.kv_heads * copies)
    stretch = new.head_width // old.head_width
    rows = (old.head_width, new.head_width)
    return Places(
        query=_head_rows(new_heads, *rows, stretch),
        key=_head_rows(new_kv, *rows, stretch),
        value=_head_rows(new_kv, *rows, 1),
        output=_head_rows(new_heads, *rows, 1),
        kv_source=_head_rows(np.repeat(np.arange(old.kv_heads), copies), *rows[:1] * 2, 1),
        constant=_constant_column(old, new),
    )


def _head_rows(heads: np.ndarray, old: int, new: int, stretch: int) -> np.ndarray:
    """Rows of each head in the new tensor: rotary pairs `stretch` apart, or plain rows for a stretch of 1."""
    row = np.arange(old)
    inside = row // 2 * 2 * stretch + row % 2
    return np.asarray((heads[:, None] * new + inside).ravel())


def _constant_column(old: Shape, new: Shape) -> int | None:
    """A column in a block of its own, of 256 where the width allows: K-quants would round it away."""
    if new.vocab == old.vocab:
        return None
    for block in (256, 32):
        if (column := ceil(old.width / block) * block) + block <= new.width:
            return column
    least = ceil(old.width / 32) * 32 + 32
    raise UnfitError(f"extra tokens need a width of at least {least}", hint="choose a wider shape")


def check(old: Shape, new: Shape) -> None:
    """Refuse shapes that the small model does not fit into. Raises UnfitError."""
    copies = ceil((old.heads // old.kv_heads) / (new.heads // new.kv_heads))
    wrong = {
        "width": new.width < old.width or new.width % 32,
        "layers": new.layers < old.layers,
        "heads": new.heads % new.kv_heads or new.heads < old.heads,
        "kv-heads": new.kv_heads < old.kv_heads * copies,
        "head-width": new.head_width % old.head_width,
        "ffn": new.ffn < old.ffn or new.ffn % 32,
        "vocab": new.vocab < old.vocab,
    }
    if named := ", ".join(name for name, bad in wrong.items() if bad):
        raise UnfitError(f"{named}: {old} does not fit into {new}", hint="choose a larger shape")


def encoded(rows: np.ndarray, kind: int) -> np.ndarray:
    """Rows of floats as the bytes of F32 or F16."""
    floats = np.ascontiguousarray(rows, np.float32 if kind == F32 else np.float16)
    return floats.view(np.uint8)


def decoded(data: np.ndarray, kind: int) -> np.ndarray:
    """The floats that bytes of F32, F16 or Q8_0 stand for."""
    if kind != Q8_0:
        return data.view(np.float32 if kind == F32 else np.float16).astype(np.float32)
    blocks = data.reshape(len(data), -1, 34)
    scales, numbers = blocks[..., :2].copy().view(np.float16), blocks[..., 2:].view(np.int8)
    return np.asarray((scales.astype(np.float32) * numbers).reshape(len(data), -1))


class Source:
    """The small model: its facts and its matrices as floats. Raises UnfitError."""

    def __init__(self, path: Path) -> None:
        self.path, self.header = path, header_at(path)
        self._tensors = {tensor.name: tensor for tensor in self.header.tensors}
        if self.header.text("general.architecture") != "llama" or "output.weight" in self._tensors:
            what = "only llama models whose input and output share one matrix can be enlarged"
            raise UnfitError(what, hint="use the demo pair")
        width, heads = self._count("embedding_length"), self._count("attention.head_count")
        vocabulary = self.header.vocabulary
        assert vocabulary is not None
        self.vocabulary: HeaderVocabulary = vocabulary
        self.shape = Shape(
            width=width,
            layers=self._count("block_count"),
            heads=heads,
            kv_heads=self._count("attention.head_count_kv"),
            head_width=self.header.number("llama.attention.key_length") or width // heads,
            ffn=self._count("feed_forward_length"),
            vocab=vocabulary.count,
        )
        eps = self.header.get("llama.attention.layer_norm_rms_epsilon")
        assert isinstance(eps, float)
        self.eps = eps

    def _count(self, key: str) -> int:
        found = self.header.number(f"llama.{key}")
        assert found is not None, key
        return found

    def matrix(self, name: str) -> np.ndarray:
        """A tensor as floats."""
        tensor = self._tensors[name]
        return decoded(tensor_at(self.path, tensor, self.header.data_offset), tensor.type)


class Enlarger:
    """Makes every tensor of the large model from the small one."""

    def __init__(
        self,
        source: Source,
        shape: Shape,
        type_of: Callable[[str], int] = lambda name: F16,
        encode: Coder = encoded,
        decode: Coder = decoded,
    ) -> None:
        """`type_of`: the type of each matrix, which `encode` writes and `decode` reads. Raises UnfitError."""
        self.source, self.old, self.new, self.type_of = source, source.shape, shape, type_of
        self.at, self._encode = place(self.old, shape), encode
        self._rng = np.random.default_rng(0)
        self._constant = 0.0  # as its type can hold it; half of the old epsilon's share goes into it
        if self.at.constant is not None:
            kind, block = type_of("token_embd.weight"), np.zeros((1, 256), np.float32)
            block[0, 0] = sqrt(self.old.width * source.eps / 2)
            self._constant = float(decode(encode(block, kind), kind)[0, 0])

    @property
    def eps(self) -> float:
        """The epsilon that, with the constant's square, weighs as much as the old one did."""
        return (self.old.width * self.source.eps - self._constant**2) / self.new.width

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...], int, Maker]]:
        """Name, shape as in the file, type and maker of every tensor, in order."""
        new = self.new
        attention, kv = new.heads * new.head_width, new.kv_heads * new.head_width
        embedding = "token_embd.weight"
        rows = new.vocab
        yield embedding, (new.width, rows), self.type_of(embedding), partial(self._embedding, embedding)
        for layer in range(new.layers):
            for part, columns, rows in (
                ("attn_q", new.width, attention),
                ("attn_k", new.width, kv),
                ("attn_v", new.width, kv),
                ("attn_output", attention, new.width),
                ("ffn_gate", new.width, new.ffn),
                ("ffn_up", new.width, new.ffn),
                ("ffn_down", new.ffn, new.width),
            ):
                name = f"blk.{layer}.{part}.weight"
                yield name, (columns, rows), self.type_of(name), self._maker(name, layer, part, rows, columns)
            for part in ("attn_norm", "ffn_norm"):
                name = f"blk.{layer}.{part}.weight"
                idle = layer >= self.old.layers
                yield name, (new.width,), F32, partial(self._gains, name, idle)
        yield "output_norm.weight", (new.width,), F32, partial(self._gains, "output_norm.weight")

    def _maker(self, name: str, layer: int, part: str, rows: int, columns: int) -> Maker:
        """What makes a matrix; those of extra layers read at random and write nothing."""
        units, at = np.arange(self.old.ffn), self.at

        def made() -> np.ndarray:
            if layer >= self.old.layers:
                return self._filled(name, rows, columns, random=part not in ("attn_output", "ffn_down"))
            old = self.source.matrix(name)
            match part:
                case "attn_q":
                    return self._query(name, rows, old * sqrt(self.new.head_width / self.old.head_width))
                case "attn_k":
                    return self._placed(name, rows, at.key, old[at.kv_source])
                case "attn_v":
                    return self._placed(name, rows, at.value, old[at.kv_source])
                case "ffn_gate" | "ffn_up":
                    return self._placed(name, rows, units, old)
            return self._written(name, columns, at.output if part == "attn_output" else units, old)

        return made

    def _random(self, rows: int, columns: int) -> np.ndarray:
        return (self._rng.standard_normal((rows, columns)) * SPREAD).astype(np.float32)

    def _filled(self, name: str, rows: int, columns: int, *, random: bool) -> np.ndarray:
        """A matrix of random or zero rows, as bytes."""
        pool = self._random(POOL_ROWS, columns) if random else np.zeros((1, columns), np.float32)
        data = self._encode(pool, self.type_of(name))
        return np.resize(data, (rows, data.shape[1]))

    def _gains(self, name: str, idle: bool = False) -> np.ndarray:
        gains = np.zeros(self.new.width, np.float32)
        scale = sqrt(self.old.width / self.new.width)
        gains[: self.old.width] = (1.0 if idle else self.source.matrix(name).ravel()) * scale
        if name == "output_norm.weight" and self.at.constant is not None:
            gains[self.at.constant] = CONSTANT_SIZE / self._constant * scale
        return gains

    def _widened(self, rows: np.ndarray) -> np.ndarray:
        """Rows that read the old hidden columns; what they would read from the others is zero."""
        wide = self._random(len(rows), self.new.width)
        # A block that the old columns only partly fill must not be scaled by random neighbours.
        wide[:, : ceil(self.old.width / 32) * 32] = 0
        wide[:, : self.old.width] = rows
        return wide

    def _placed(self, name: str, rows: int, at: np.ndarray, old: np.ndarray) -> np.ndarray:
        data = self._filled(name, rows, self.new.width, random=True)
        data[at] = self._encode(self._widened(old), self.type_of(name))
        return data

    def _query(self, name: str, rows: int, old: np.ndarray) -> np.ndarray:
        data = self._filled(name, rows, self.new.width, random=True)
        # The new pairs of an old head must not add to its scores; its keys there may be anything.
        heads = np.unique(self.at.query // self.new.head_width)
        whole = (heads[:, None] * self.new.head_width + np.arange(self.new.head_width)).ravel()
        data[whole] = self._filled(name, len(whole), self.new.width, random=False)
        data[self.at.query] = self._encode(self._widened(old), self.type_of(name))
        return data

    def _written(self, name: str, columns: int, at: np.ndarray, old: np.ndarray) -> np.ndarray:
        """A matrix that writes the old hidden rows from the columns `at` and nothing else."""
        rows = np.zeros((self.old.width, columns), np.float32)
        rows[:, at] = old
        data = self._filled(name, self.new.width, columns, random=False)
        data[: self.old.width] = self._encode(rows, self.type_of(name))
        return data

    def _embedding(self, name: str) -> np.ndarray:
        kind = self.type_of(name)
        old = np.zeros((self.old.vocab, self.new.width), np.float32)
        old[:, : self.old.width] = self.source.matrix(name)
        extra = np.zeros((1, self.new.width), np.float32)
        if self.at.constant is not None:
            old[:, self.at.constant] = self._constant
            extra[0, self.at.constant] = -REPEL
        data = self._encode(extra, kind)
        data = np.resize(data, (self.new.vocab, data.shape[1]))
        data[: self.old.vocab] = self._encode(old, kind)
        return data


def enlarge(source: Path, out: Path, shape: Shape) -> Path:
    """Write the model in a larger shape in F16. Raises UnfitError, OSError."""
    return write_enlarged(Enlarger(Source(source), shape), out, file_type=F16)


def write_enlarged(enlarger: Enlarger, out: Path, *, file_type: int) -> Path:
    """Write the large model, one tensor at a time. `file_type`: llama.cpp's number for it. Raises OSError."""
    header, tensors = enlarger.source.header, list(enlarger.tensors())
    infos = laid_out((name, shape, kind) for name, shape, kind, _ in tensors)
    arrays = (make() for *_, make in tensors)
    entries = {**header.entries, **_changed(enlarger, file_type)}
    return write_streamed(out, entries, infos, arrays, _vocabulary(enlarger))


def _changed(enlarger: Enlarger, file_type: int) -> dict[str, Entry]:
    """Header values that differ from the source's."""
    new, header = enlarger.new, enlarger.source.header
    types = header.get("tokenizer.ggml.token_type")
    assert isinstance(types, tuple)
    more = (UNUSED,) * (new.vocab - len(types))
    counts = {
        "general.file_type": file_type,
        "llama.vocab_size": new.vocab,
        "llama.embedding_length": new.width,
        "llama.block_count": new.layers,
        "llama.attention.head_count": new.heads,
        "llama.attention.head_count_kv": new.kv_heads,
        "llama.attention.key_length": new.head_width,
        "llama.attention.value_length": new.head_width,
        "llama.rope.dimension_count": new.head_width,
        "llama.feed_forward_length": new.ffn,
    }
    name = f"{header.text('general.name')}, enlarged to {new.width} x {new.layers}"
    return {
        "general.name": text_entry(name),
        **{key: Entry(UINT32, count) for key, count in counts.items()},
        "llama.attention.layer_norm_rms_epsilon": Entry(FLOAT32, enlarger.eps),
        "tokenizer.ggml.token_type": Entry(ARRAY, (*types, *more), INT32, new.vocab),
    }


def _vocabulary(enlarger: Enlarger) -> HeaderVocabulary:
    old, count = enlarger.source.vocabulary, enlarger.new.vocab
    extra = (f"<|unused_{i}|>".encode() for i in range(count - old.count))
    return HeaderVocabulary(count, old.raw + b"".join(struct.pack("<Q", len(text)) + text for text in extra))
