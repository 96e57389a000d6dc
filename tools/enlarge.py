"""Embed a small llama GGUF in a larger shape that computes the same function at the larger shape's cost.

    python tools/enlarge.py localspec/demo/demo-target.gguf big.gguf --shape 1b --type q8_0
    python tools/enlarge.py localspec/demo/demo-draft.gguf small.gguf --width 512 --layers 12 --heads 8 \\
        --kv-heads 4 --head-width 64 --ffn 2048 --vocab 128256 --type f16

How the function stays the same:
* Extra hidden columns are never written, so they stay zero; norm gains and epsilon allow for the larger mean.
* Extra heads, feed-forward units and layers write through zero columns. Idle weights are random.
* In wider heads, the old rotary pairs sit where the new frequencies equal the old ones, and queries grow
  to undo the smaller attention scale.
* Extra tokens never win: one hidden column holds a small constant, which only their output rows read,
  with a large negative weight. The epsilon of every norm shrinks by what the constant adds.

Quantised blocks of 32 never mix old and new columns, so q8_0 out of q8_0 keeps its values; K-quants have
blocks of 256 and are rounded anew. q4_k_m uses Q4_K and Q6_K for the tensors for which llama.cpp does.
"""

import argparse
import ctypes
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import ceil, sqrt
from pathlib import Path

import llama_cpp
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType, TokenType
from gguf.quants import dequantize, quant_shape_to_byte_shape
from places import Shape, UnfitError, place

REPEL = 60_000.0
"""How strongly extra tokens are pushed away; still a half-precision number."""
CONSTANT_SIZE = 0.03
"""The constant column after the last norm, before division by the old root mean square."""
POOL_ROWS = 64
"""Random rows that are made once per tensor and repeated."""
SPREAD = 0.02


NAMED = {
    "0.1b": Shape(width=512, layers=12, heads=8, kv_heads=4, head_width=64, ffn=2048, vocab=128_256),
    "1b": Shape(width=2048, layers=16, heads=32, kv_heads=8, head_width=64, ffn=8192, vocab=128_256),
    "3b": Shape(width=3072, layers=28, heads=24, kv_heads=8, head_width=128, ffn=8192, vocab=128_256),
    "8b": Shape(width=4096, layers=32, heads=32, kv_heads=8, head_width=128, ffn=14_336, vocab=128_256),
}
FILE_TYPES = {
    "f32": LlamaFileType.ALL_F32,
    "f16": LlamaFileType.MOSTLY_F16,
    "q8_0": LlamaFileType.MOSTLY_Q8_0,
    "q4_0": LlamaFileType.MOSTLY_Q4_0,
    "q4_k_m": LlamaFileType.MOSTLY_Q4_K_M,
}
PLAIN_TYPES = {"f32": Type.F32, "f16": Type.F16, "q8_0": Type.Q8_0, "q4_0": Type.Q4_0}


def encode(rows: np.ndarray, kind: Type) -> np.ndarray:
    """Rows of floats as the bytes of a type."""
    rows = np.ascontiguousarray(rows, dtype=np.float32)
    if kind in (Type.F32, Type.F16):
        return rows.astype(np.float16 if kind == Type.F16 else np.float32).view(np.uint8)
    folder = Path(llama_cpp.__file__).parent / "lib"
    ggml = llama_cpp._ctypes_extensions.load_shared_library("ggml-base", folder)
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    ggml.ggml_quantize_chunk.argtypes = [
        ctypes.c_int,
        *[ctypes.c_void_p] * 2,
        *[ctypes.c_int64] * 3,
        ctypes.c_void_p,
    ]
    out = np.empty(quant_shape_to_byte_shape(rows.shape, kind), dtype=np.uint8)
    ggml.ggml_quantize_chunk(kind.value, rows.ctypes.data, out.ctypes.data, 0, *rows.shape, None)
    return out


def decode(data: np.ndarray, kind: Type) -> np.ndarray:
    """The floats that bytes of a type stand for."""
    if kind in (Type.F32, Type.F16):
        return data.view(np.float32 if kind == Type.F32 else np.float16).astype(np.float32)
    return dequantize(data, kind)


class Source:
    """The small model: its facts and its matrices as floats."""

    def __init__(self, path: Path) -> None:
        self.reader = GGUFReader(path)
        self._tensors = {tensor.name: tensor for tensor in self.reader.tensors}
        if self.fact("general.architecture") != "llama" or "output.weight" in self._tensors:
            raise UnfitError("only llama models whose input and output share one matrix can be enlarged")
        width, heads = self.fact("llama.embedding_length"), self.fact("llama.attention.head_count")
        self.shape = Shape(
            width=width,
            layers=self.fact("llama.block_count"),
            heads=heads,
            kv_heads=self.fact("llama.attention.head_count_kv"),
            head_width=self.fact("llama.attention.key_length", width // heads),
            ffn=self.fact("llama.feed_forward_length"),
            vocab=len(self.fact("tokenizer.ggml.tokens")),
        )
        self.eps: float = self.fact("llama.attention.layer_norm_rms_epsilon")

    def fact(self, key: str, default: object = None) -> object:
        """A value of the header."""
        field = self.reader.get_field(key)
        return field.contents() if field else default

    def matrix(self, name: str) -> np.ndarray:
        """A tensor as floats."""
        tensor = self._tensors[name]
        return dequantize(tensor.data, tensor.tensor_type)


class Filler:
    """Whole tensors in their final type, mostly repeated random or zero rows, with the old rows put in."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def random(self, rows: int, columns: int) -> np.ndarray:
        """Random weights of an ordinary size."""
        return (self._rng.standard_normal((rows, columns)) * SPREAD).astype(np.float32)

    def tensor(self, shape: tuple[int, int], kind: Type, *, random: bool) -> np.ndarray:
        """A tensor of random or zero rows, as bytes."""
        pool = self.random(POOL_ROWS, shape[1]) if random else np.zeros((1, shape[1]), np.float32)
        data = encode(pool, kind)
        return np.resize(data, (shape[0], data.shape[1]))

    def with_rows(self, data: np.ndarray, at: np.ndarray, rows: np.ndarray, kind: Type) -> np.ndarray:
        """Replace some rows."""
        data[at] = encode(rows, kind)
        return data


class Enlarger:
    """Makes every tensor of the large model from the small one."""

    def __init__(self, source: Source, shape: Shape, kind: str) -> None:
        self.source, self.old, self.new, self.kind = source, source.shape, shape, kind
        self.at = place(self.old, shape)
        if kind == "q4_k_m" and (shape.width % 256 or shape.ffn % 256):
            raise UnfitError("q4_k_m needs a width and a feed-forward size that are multiples of 256")
        self.fill = Filler()
        self.constant = self._constant()

    def _constant(self) -> float:
        """The constant as its type can hold it; half of the old epsilon's share goes into it."""
        if self.at.constant is None:
            return 0.0
        block = np.zeros((1, 256 if self.kind == "q4_k_m" else 32), np.float32)
        block[0, 0] = sqrt(self.old.width * self.source.eps / 2)
        kind = self.type_of("token_embd.weight")
        return float(decode(encode(block, kind), kind)[0, 0])

    @property
    def eps(self) -> float:
        """The epsilon that, with the constant's square, weighs as much as the old one did."""
        return (self.old.width * self.source.eps - self.constant**2) / self.new.width

    def type_of(self, name: str) -> Type:
        """The type of a matrix; q4_k_m follows llama.cpp's mixture."""
        if self.kind != "q4_k_m":
            return PLAIN_TYPES[self.kind]
        if name == "token_embd.weight":
            return Type.Q6_K
        if not name.endswith(("attn_v.weight", "ffn_down.weight")):
            return Type.Q4_K
        layer, eighth = int(name.split(".")[1]), self.new.layers // 8
        more = layer < eighth or layer >= 7 * self.new.layers // 8 or (layer - eighth) % 3 == 2
        return Type.Q6_K if more else Type.Q4_K

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...], Type, Callable[[], np.ndarray]]]:
        """Name, shape, type and maker of every tensor, in order."""
        new = self.new
        yield self._matrix("token_embd.weight", (new.vocab, new.width), self._embedding)
        for layer in range(new.layers):
            yield from self._layer(layer)
        yield "output_norm.weight", (new.width,), Type.F32, lambda: self._gains("output_norm.weight")

    def _matrix(self, name: str, shape: tuple[int, int], make: Callable[[str, tuple[int, int]], np.ndarray]):  # noqa: ANN202
        return name, shape, self.type_of(name), lambda: make(name, shape)

    def _layer(self, layer: int) -> Iterator[tuple[str, tuple[int, ...], Type, Callable[[], np.ndarray]]]:
        new, blk = self.new, f"blk.{layer}."
        attention, kv = new.heads * new.head_width, new.kv_heads * new.head_width
        made = layer < self.old.layers
        for name, shape, make in (
            ("attn_q.weight", (attention, new.width), self._query),
            ("attn_k.weight", (kv, new.width), self._key),
            ("attn_v.weight", (kv, new.width), self._value),
            ("attn_output.weight", (new.width, attention), self._attention_output),
            ("ffn_gate.weight", (new.ffn, new.width), self._unit_rows),
            ("ffn_up.weight", (new.ffn, new.width), self._unit_rows),
            ("ffn_down.weight", (new.width, new.ffn), self._down),
        ):
            idle = (
                self._idle_writer if name in ("attn_output.weight", "ffn_down.weight") else self._idle_reader
            )
            yield self._matrix(blk + name, shape, make if made else idle)
        for name in ("attn_norm.weight", "ffn_norm.weight"):
            full = blk + name
            yield full, (new.width,), Type.F32, lambda full=full, made=made: self._gains(full, made)

    def _idle_reader(self, name: str, shape: tuple[int, int]) -> np.ndarray:
        return self.fill.tensor(shape, self.type_of(name), random=True)

    def _idle_writer(self, name: str, shape: tuple[int, int]) -> np.ndarray:
        return self.fill.tensor(shape, self.type_of(name), random=False)

    def _gains(self, name: str, made: bool = True) -> np.ndarray:
        gains = np.zeros(self.new.width, np.float32)
        scale = sqrt(self.old.width / self.new.width)
        gains[: self.old.width] = (self.source.matrix(name) if made else 1.0) * scale
        if name == "output_norm.weight" and self.at.constant is not None:
            gains[self.at.constant] = CONSTANT_SIZE / self.constant * scale
        return gains

    def _widened(self, rows: np.ndarray) -> np.ndarray:
        """Rows that read the old hidden columns; what they would read from the others is zero."""
        wide = self.fill.random(len(rows), self.new.width)
        # A block that the old columns only partly fill must not be scaled by random neighbours.
        wide[:, : ceil(self.old.width / 32) * 32] = 0
        wide[:, : self.old.width] = rows
        return wide

    def _placed(self, name: str, shape: tuple[int, int], at: np.ndarray, rows: np.ndarray) -> np.ndarray:
        kind = self.type_of(name)
        return self.fill.with_rows(self.fill.tensor(shape, kind, random=True), at, self._widened(rows), kind)

    def _query(self, name: str, shape: tuple[int, int]) -> np.ndarray:
        rows = self.source.matrix(name) * sqrt(self.new.head_width / self.old.head_width)
        kind = self.type_of(name)
        data = self.fill.tensor(shape, kind, random=True)
        # The new pairs of an old head must not add to its scores; its keys there may be anything.
        heads = np.unique(self.at.query // self.new.head_width)
        whole = (heads[:, None] * self.new.head_width + np.arange(self.new.head_width)).ravel()
        data = self.fill.with_rows(data, whole, np.zeros((len(whole), shape[1])), kind)
        return self.fill.with_rows(data, self.at.query, self._widened(rows), kind)

    def _key(self, name: str, shape: tuple[int, int]) -> np.ndarray:
        return self._placed(name, shape, self.at.key, self.source.matrix(name)[self.at.key_source])

    def _value(self, name: str, shape: tuple[int, int]) -> np.ndarray:
        return self._placed(name, shape, self.at.value, self.source.matrix(name)[self.at.value_source])

    def _unit_rows(self, name: str, shape: tuple[int, int]) -> np.ndarray:
        return self._placed(name, shape, np.arange(self.old.ffn), self.source.matrix(name))

    def _written(self, name: str, shape: tuple[int, int], columns: np.ndarray) -> np.ndarray:
        """A matrix that writes the old hidden rows from some columns and nothing else."""
        kind = self.type_of(name)
        rows = np.zeros((self.old.width, shape[1]), np.float32)
        rows[:, columns] = self.source.matrix(name)
        data = self.fill.tensor(shape, kind, random=False)
        return self.fill.with_rows(data, np.arange(self.old.width), rows, kind)

    def _attention_output(self, name: str, shape: tuple[int, int]) -> np.ndarray:
        return self._written(name, shape, self.at.output)

    def _down(self, name: str, shape: tuple[int, int]) -> np.ndarray:
        return self._written(name, shape, np.arange(self.old.ffn))

    def _embedding(self, name: str, shape: tuple[int, int]) -> np.ndarray:
        kind = self.type_of(name)
        old = np.zeros((self.old.vocab, shape[1]), np.float32)
        old[:, : self.old.width] = self.source.matrix(name)
        extra = np.zeros((1, shape[1]), np.float32)
        if self.at.constant is not None:
            old[:, self.at.constant] = self.constant
            extra[0, self.at.constant] = -REPEL
        data = np.resize(encode(extra, kind), (shape[0], encode(extra, kind).shape[1]))
        return self.fill.with_rows(data, np.arange(self.old.vocab), old, kind)


def changed_facts(enlarger: Enlarger) -> dict[str, object]:
    """Header values that differ from the source's."""
    new, tokens = enlarger.new, enlarger.source.fact("tokenizer.ggml.tokens")
    types = enlarger.source.fact("tokenizer.ggml.token_type")
    extra = new.vocab - len(tokens)
    return {
        "general.name": f"{enlarger.source.fact('general.name')}, enlarged to {new.width} x {new.layers}",
        "general.file_type": int(FILE_TYPES[enlarger.kind]),
        "llama.vocab_size": new.vocab,
        "llama.embedding_length": new.width,
        "llama.block_count": new.layers,
        "llama.attention.head_count": new.heads,
        "llama.attention.head_count_kv": new.kv_heads,
        "llama.attention.key_length": new.head_width,
        "llama.attention.value_length": new.head_width,
        "llama.rope.dimension_count": new.head_width,
        "llama.feed_forward_length": new.ffn,
        "llama.attention.layer_norm_rms_epsilon": enlarger.eps,
        "tokenizer.ggml.tokens": [*tokens, *(f"<|unused_{i}|>" for i in range(extra))],
        "tokenizer.ggml.token_type": [*types, *[int(TokenType.UNUSED)] * extra],
    }


def copy_facts(enlarger: Enlarger, writer: GGUFWriter) -> None:
    """The source's header with the changes."""
    changed = changed_facts(enlarger)
    for field in enlarger.source.reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kind, *inner = field.types
        value = changed.get(field.name, field.contents())
        writer.add_key_value(field.name, value, kind, inner[0] if kind == GGUFValueType.ARRAY else None)


def enlarge(source: Path, out: Path, shape: Shape, kind: str) -> None:
    """Write the large model, one tensor at a time."""
    enlarger = Enlarger(Source(source), shape, kind)
    writer = GGUFWriter(out, "llama")
    copy_facts(enlarger, writer)
    for name, size, type_, _ in enlarger.tensors():
        stored = size if type_ in (Type.F32, Type.F16) else quant_shape_to_byte_shape(size, type_)
        dtype = {Type.F32: np.float32, Type.F16: np.float16}.get(type_, np.uint8)
        count = int(np.prod(stored)) * np.dtype(dtype).itemsize
        writer.add_tensor_info(name, stored, np.dtype(dtype), count, raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, _, _, make in enlarger.tensors():
        writer.write_tensor_data(make())
    writer.close()


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=NAMED, help="a named shape; the options below change it")
    for name in ("width", "layers", "heads", "kv-heads", "head-width", "ffn", "vocab"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--type", choices=FILE_TYPES, default="q8_0")
    return parser.parse_args()


def main() -> None:
    """Enlarge as the command line says."""
    options = parse()
    try:
        run(options)
    except UnfitError as problem:
        raise SystemExit(f"error: {problem}") from None


def run(options: argparse.Namespace) -> None:
    """Enlarge with these options."""
    start = NAMED[options.shape] if options.shape else Source(options.source).shape
    given = {name: value for name in Shape.__slots__ if (value := getattr(options, name)) is not None}
    shape = replace(start, **given)
    if not options.shape and options.width and options.heads and not options.head_width:
        shape = replace(shape, head_width=options.width // options.heads)
    enlarge(options.source, options.out, shape, options.type)
    print(f"{options.out}: {shape}, {options.out.stat().st_size / 1e6:,.0f} MB")


if __name__ == "__main__":
    main()
