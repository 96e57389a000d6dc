"""Write a larger llama model that computes the same as a small one, but takes the time of its larger shape.

* No matrix writes to the added hidden columns, so they stay zero. RMS norms get new gains and a new epsilon.
* Output matrices of added heads, feed-forward units and layers are zero. Their other weights are random.
* In wider heads, each old rotary pair moves to the place that has its old frequency. Query weights grow, to undo
  the smaller attention scale.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import ceil, prod, sqrt
from pathlib import Path

import numpy as np

from localspec.gguf.header import Entry, HeaderVocabulary
from localspec.gguf.trimmed import UINT32, TensorFile, text_entry, write_gguf

F32, F16 = 0, 1  # tensor types: keys of header.BLOCKS
FLOAT32 = 6  # number of the float type in a GGUF header
SPREAD = 0.02  # standard deviation of the random weights
_EPSILON = "llama.attention.layer_norm_rms_epsilon"


@dataclass(frozen=True, slots=True)
class Shape:
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    ffn: int
    vocab: int

    @property
    def parts(self) -> dict[str, tuple[int, ...]]:
        """The shapes of a layer's weights, in the form of TensorInfo."""
        q, kv = self.heads * self.head_width, (self.width, self.kv_heads * self.head_width)
        attention = {"attn_q": (self.width, q), "attn_k": kv, "attn_v": kv, "attn_output": (q, self.width)}
        inwards = dict.fromkeys(("ffn_gate", "ffn_up"), (self.width, self.ffn))
        norms = dict.fromkeys(("attn_norm", "ffn_norm"), (self.width,))
        return {**attention, **inwards, "ffn_down": (self.ffn, self.width), **norms}

    @property
    def parameters(self) -> int:
        return self.vocab * self.width + self.layers * sum(map(prod, self.parts.values()))

    def entries(self, eps: float) -> dict[str, Entry]:
        """Return the keys of a llama model of this shape; `eps`: the epsilon of its norms."""
        counts = {
            "vocab_size": self.vocab,
            "embedding_length": self.width,
            "block_count": self.layers,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
            "attention.key_length": self.head_width,
            "attention.value_length": self.head_width,
            "rope.dimension_count": self.head_width,
            "feed_forward_length": self.ffn,
        }
        entries = {f"llama.{key}": Entry(UINT32, count) for key, count in counts.items()}
        return entries | {_EPSILON: Entry(FLOAT32, eps)}


class SmallModel(TensorFile):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        vocabulary, count = self.header.vocabulary, self.header.of_model
        assert vocabulary is not None
        self.vocabulary: HeaderVocabulary = vocabulary
        width, heads = count("embedding_length"), count("attention.head_count")
        self.shape = Shape(
            width=width,
            layers=count("block_count"),
            heads=heads,
            kv_heads=count("attention.head_count_kv"),
            head_width=count("attention.key_length") or width // heads,
            ffn=count("feed_forward_length"),
            vocab=vocabulary.count,
        )
        eps = self.header.get(_EPSILON)
        assert isinstance(eps, float)
        self.eps = eps


def _head_rows(heads: np.ndarray, old_width: int, new_width: int, stretch: int) -> np.ndarray:
    """Return the new index of each row of the heads. Rotary pair i of a head becomes pair i * stretch."""
    row = np.arange(old_width)
    inside = row // 2 * 2 * stretch + row % 2
    return np.asarray((heads[:, None] * new_width + inside).ravel())


class Enlarger:
    def __init__(self, source: SmallModel, shape: Shape) -> None:
        self.source, self.old, self.new = source, source.shape, shape
        self._rng = np.random.default_rng(0)
        old, rows = self.old, (self.old.head_width, shape.head_width)
        old_group, group = old.heads // old.kv_heads, shape.heads // shape.kv_heads
        copies = ceil(old_group / group)
        head = np.arange(old.heads)
        kv, inside = head // old_group, head % old_group
        new_heads = (kv * copies + inside // group) * group + inside % group
        new_kv, stretch = np.arange(old.kv_heads * copies), shape.head_width // old.head_width
        units = np.arange(old.ffn)
        # The new index of each old row; in "attn_output" and "ffn_down", of each old column.
        self._positions = dict.fromkeys(("ffn_gate", "ffn_up", "ffn_down"), units) | {
            "attn_q": _head_rows(new_heads, *rows, stretch),
            "attn_k": _head_rows(new_kv, *rows, stretch),
            "attn_v": _head_rows(new_kv, *rows, 1),
            "attn_output": _head_rows(new_heads, *rows, 1),
        }
        # The old row that each new row of "attn_k" and "attn_v" copies; a KV head may have several copies.
        self._kv_source = _head_rows(np.repeat(np.arange(old.kv_heads), copies), *rows[:1] * 2, 1)

    @property
    def eps(self) -> float:
        """Return the epsilon of a norm that has the same effect on wider rows as the old epsilon on old rows."""
        return self.old.width * self.source.eps / self.new.width

    def type_of(self, name: str) -> int:
        return F16

    def encode(self, rows: np.ndarray, kind: int) -> np.ndarray:
        return np.ascontiguousarray(rows, np.float16)

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...], int, Callable[[], np.ndarray]]]:
        """Yield the name, shape and type of each tensor, and a function that returns its data."""
        new = self.new
        embedding, norm = "token_embd.weight", "output_norm.weight"
        yield embedding, (new.width, new.vocab), self.type_of(embedding), partial(self._embedding, embedding)
        for layer in range(new.layers):
            for part, shape in new.parts.items():
                name, idle = f"blk.{layer}.{part}.weight", layer >= self.old.layers
                if part.endswith("_norm"):
                    yield name, shape, F32, partial(self._gains, name, idle)
                else:
                    yield name, shape, self.type_of(name), partial(self._matrix, name, part, shape, idle)
        yield norm, (new.width,), F32, partial(self._gains, norm)

    def _matrix(self, name: str, part: str, shape: tuple[int, ...], idle: bool) -> np.ndarray:
        """Return a layer's matrix. `idle`: whether the layer is an added one, which leaves hidden rows unchanged."""
        writes, (columns, rows) = part in ("attn_output", "ffn_down"), shape
        data = self._filled(name, rows, columns, random=not writes)
        if idle:
            return data
        old, at = self.source.tensor(name), self._positions[part]
        if writes:  # old rows keep their weights, now in the columns `at`, and have zeros elsewhere
            wide = np.zeros((self.old.width, columns), np.float32)
            wide[:, at] = old
            data[: self.old.width] = self.encode(wide, self.type_of(name))
            return data
        if part == "attn_q":
            old = old * sqrt(self.new.head_width / self.old.head_width)
            # Query rows of added rotary pairs are zero, so that they do not change the scores of an old head.
            heads = np.unique(at // self.new.head_width)
            whole = (heads[:, None] * self.new.head_width + np.arange(self.new.head_width)).ravel()
            data[whole] = self._filled(name, len(whole), columns, random=False)
        elif part in ("attn_k", "attn_v"):
            old = old[self._kv_source]
        data[at] = self.encode(self._widened(old), self.type_of(name))
        return data

    def _random(self, rows: int, columns: int) -> np.ndarray:
        return (self._rng.standard_normal((rows, columns)) * SPREAD).astype(np.float32)

    def _filled(self, name: str, rows: int, columns: int, *, random: bool) -> np.ndarray:
        # A random matrix repeats the same 64 rows, which saves time.
        pool = self._random(64, columns) if random else np.zeros((1, columns), np.float32)
        data = self.encode(pool, self.type_of(name))
        return np.resize(data, (rows, data.shape[1]))

    def _gains(self, name: str, idle: bool = False) -> np.ndarray:
        gains = np.zeros(self.new.width, np.float32)
        scale = sqrt(self.old.width / self.new.width)
        gains[: self.old.width] = (1.0 if idle else self.source.tensor(name).ravel()) * scale
        return gains

    def _widened(self, rows: np.ndarray) -> np.ndarray:
        wide = self._random(len(rows), self.new.width)
        # Keep random columns out of the last block of 32 old columns, because they would make its scale coarser.
        wide[:, : ceil(self.old.width / 32) * 32] = 0
        wide[:, : self.old.width] = rows
        return wide

    def _embedding(self, name: str) -> np.ndarray:
        rows = np.zeros((self.old.vocab, self.new.width), np.float32)
        rows[:, : self.old.width] = self.source.tensor(name)
        return self.encode(rows, self.type_of(name))

    def entries(self, file_type: int) -> dict[str, Entry]:
        new, header = self.new, self.source.header
        about = {
            "general.name": text_entry(f"{header.text('general.name')} {new.width}x{new.layers}"),
            "general.file_type": Entry(UINT32, file_type),
        }
        return {**header.entries, **about, **new.entries(self.eps)}


def enlarge(source: Path, out: Path, shape: Shape) -> Path:
    made = Enlarger(SmallModel(source), shape)
    return write_gguf(out, made.entries(F16), made.tensors(), made.source.vocabulary)
