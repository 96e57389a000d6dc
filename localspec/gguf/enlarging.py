"""Embeds a small llama in a larger shape that computes the same function at the larger shape's cost.

* Extra hidden columns are never written, so they stay zero; norm gains and epsilon allow for the larger mean.
* Extra heads, feed-forward units and layers write through zero columns. Idle weights are random.
* In wider heads, the old rotary pairs sit where the new frequencies equal the old ones, and queries grow
  to undo the smaller attention scale.

The large model is in F16; `tools/enlarge.py` has other types, and more tokens.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import ceil, sqrt
from pathlib import Path
from typing import TypeAlias

import numpy as np

from localspec.gguf.header import Entry, HeaderVocabulary, header_at
from localspec.gguf.trimmed import UINT32, laid_out, tensor_at, text_entry, write_streamed

F32, F16, Q8_0 = 0, 1, 8  # see tensor_types.BLOCKS
FLOAT32 = 6  # the type of a value in a header
POOL_ROWS = 64  # random rows that are made once for each tensor and repeated
SPREAD = 0.02  # of random weights

Maker: TypeAlias = Callable[[], np.ndarray]


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


def place(old: Shape, new: Shape) -> Places:
    """Find a place for every old head, column and unit."""
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
    )


def _head_rows(heads: np.ndarray, old: int, new: int, stretch: int) -> np.ndarray:
    """Rows of each head in the new tensor: rotary pairs `stretch` apart, or plain rows for a stretch of 1."""
    row = np.arange(old)
    inside = row // 2 * 2 * stretch + row % 2
    return np.asarray((heads[:, None] * new + inside).ravel())


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
    """The small model: its facts and its matrices as floats."""

    def __init__(self, path: Path) -> None:
        self.path, self.header = path, header_at(path)
        self._tensors = {tensor.name: tensor for tensor in self.header.tensors}
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

    def __init__(self, source: Source, shape: Shape) -> None:
        self.source, self.old, self.new = source, source.shape, shape
        self.at = place(self.old, shape)
        self._rng = np.random.default_rng(0)

    @property
    def eps(self) -> float:
        """The epsilon that weighs as much as the old one did."""
        return self.old.width * self.source.eps / self.new.width

    def type_of(self, name: str) -> int:
        """The type of a matrix."""
        return F16

    def encode(self, rows: np.ndarray, kind: int) -> np.ndarray:
        """Rows of floats as the bytes of a type."""
        return encoded(rows, kind)

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
        data = self.encode(pool, self.type_of(name))
        return np.resize(data, (rows, data.shape[1]))

    def _gains(self, name: str, idle: bool = False) -> np.ndarray:
        gains = np.zeros(self.new.width, np.float32)
        scale = sqrt(self.old.width / self.new.width)
        gains[: self.old.width] = (1.0 if idle else self.source.matrix(name).ravel()) * scale
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
        data[at] = self.encode(self._widened(old), self.type_of(name))
        return data

    def _query(self, name: str, rows: int, old: np.ndarray) -> np.ndarray:
        data = self._filled(name, rows, self.new.width, random=True)
        # The new pairs of an old head must not add to its scores; its keys there may be anything.
        heads = np.unique(self.at.query // self.new.head_width)
        whole = (heads[:, None] * self.new.head_width + np.arange(self.new.head_width)).ravel()
        data[whole] = self._filled(name, len(whole), self.new.width, random=False)
        data[self.at.query] = self.encode(self._widened(old), self.type_of(name))
        return data

    def _written(self, name: str, columns: int, at: np.ndarray, old: np.ndarray) -> np.ndarray:
        """A matrix that writes the old hidden rows from the columns `at` and nothing else."""
        rows = np.zeros((self.old.width, columns), np.float32)
        rows[:, at] = old
        data = self._filled(name, self.new.width, columns, random=False)
        data[: self.old.width] = self.encode(rows, self.type_of(name))
        return data

    def _embedding(self, name: str) -> np.ndarray:
        rows = np.zeros((self.old.vocab, self.new.width), np.float32)
        rows[:, : self.old.width] = self.source.matrix(name)
        return self.encode(rows, self.type_of(name))

    def entries(self, file_type: int) -> dict[str, Entry]:
        """The header's values. `file_type`: llama.cpp's number for it."""
        new, header = self.new, self.source.header
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
        name = f"{header.text('general.name')} {new.width}x{new.layers}"
        return {
            **header.entries,
            "general.name": text_entry(name),
            **{key: Entry(UINT32, count) for key, count in counts.items()},
            "llama.attention.layer_norm_rms_epsilon": Entry(FLOAT32, self.eps),
        }

    def vocabulary(self) -> HeaderVocabulary:
        """The tokens."""
        return self.source.vocabulary


def enlarge(source: Path, out: Path, shape: Shape) -> Path:
    """Write the model in a larger shape in F16. Raises OSError."""
    return write_enlarged(Enlarger(Source(source), shape), out, file_type=F16)


def write_enlarged(enlarger: Enlarger, out: Path, *, file_type: int) -> Path:
    """Write the large model, one tensor at a time. Raises OSError."""
    tensors = list(enlarger.tensors())
    infos = laid_out((name, shape, kind) for name, shape, kind, _ in tensors)
    arrays = (make() for *_, make in tensors)
    return write_streamed(out, enlarger.entries(file_type), infos, arrays, enlarger.vocabulary())
