"""Embed a small llama GGUF in a larger shape that computes the same function at the larger shape's cost.

    python -m tools.enlarge localspec/demo/demo-target.gguf big.gguf --shape 1b --type q8_0
    python -m tools.enlarge localspec/demo/demo-draft.gguf small.gguf --width 512 --layers 12 --heads 8 \\
        --kv-heads 4 --head-width 64 --ffn 2048 --vocab 128256 --type f16

`localspec/gguf/enlarging.py` explains how the function stays the same; this adds the quantised types and more tokens.

Extra tokens never win: one hidden column holds a small constant, which only their output rows read, with a large
negative weight. The epsilon of every norm shrinks by what the constant adds.

Quantised blocks of 32 never mix old and new columns, so Q8_0 out of Q8_0 keeps its values. K-quants have blocks of 256
and are rounded anew. q4_k_m uses Q4_K and Q6_K for the tensors for which llama.cpp does.
"""

import argparse
import ctypes
import struct
from dataclasses import fields, replace
from math import ceil, sqrt
from pathlib import Path

import llama_cpp
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import LlamaFileType
from gguf.quants import dequantize, quant_shape_to_byte_shape, quantize

from localspec.gguf.enlarging import F16, F32, Enlarger, Shape, SmallModel
from localspec.gguf.header import ARRAY, Entry, HeaderVocabulary
from localspec.gguf.trimmed import write_gguf

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
INT32 = 5  # the type of a value in a header
UNUSED = 5  # the type of a token that no text has
REPEL = 60_000.0  # how strongly extra tokens are pushed away; still a half-precision number
# Of the constant column after the last norm, before division by the old root mean square.
CONSTANT_SIZE = 0.03
PLAIN_TYPES = {"f32": Type.F32, "f16": Type.F16, "q8_0": Type.Q8_0, "q4_0": Type.Q4_0}


def encode(rows: np.ndarray, kind: int) -> np.ndarray:
    """Rows of floats as the bytes of a type."""
    if kind in (F32, F16):
        return np.asarray(quantize(rows, Type(kind)))
    rows = np.ascontiguousarray(rows, dtype=np.float32)
    folder = Path(llama_cpp.__file__).parent / "lib"
    ggml = llama_cpp._ctypes_extensions.load_shared_library("ggml-base", folder)
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    ggml.ggml_quantize_chunk.argtypes = [
        ctypes.c_int,
        *[ctypes.c_void_p] * 2,
        *[ctypes.c_int64] * 3,
        ctypes.c_void_p,
    ]
    out = np.empty(quant_shape_to_byte_shape(rows.shape, Type(kind)), dtype=np.uint8)
    ggml.ggml_quantize_chunk(kind, rows.ctypes.data, out.ctypes.data, 0, *rows.shape, None)
    return out


def type_of(kind: str, layers: int, name: str) -> int:
    """The type of a matrix; q4_k_m follows llama.cpp's mixture."""
    if kind != "q4_k_m":
        return int(PLAIN_TYPES[kind])
    if name == "token_embd.weight":
        return int(Type.Q6_K)
    if not name.endswith(("attn_v.weight", "ffn_down.weight")):
        return int(Type.Q4_K)
    layer, eighth = int(name.split(".")[1]), layers // 8
    more = layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
    return int(Type.Q6_K if more else Type.Q4_K)


class UnfitError(Exception):
    """The model cannot be embedded in the wanted shape."""


def check(old: Shape, new: Shape) -> None:
    """Refuse shapes that the small model does not fit into."""
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
        raise UnfitError(f"{named}: {old} does not fit into {new}")


def constant_column(old: Shape, new: Shape) -> int | None:
    """The hidden column for the constant: in a block of its own, of 256 where the width allows.

    K-quants would round it away. None without extra tokens.
    """
    if new.vocab == old.vocab:
        return None
    for block in (256, 32):
        if (column := ceil(old.width / block) * block) + block <= new.width:
            return column
    raise UnfitError(f"extra tokens need a width of at least {ceil(old.width / 32) * 32 + 32}")


class AnyEnlarger(Enlarger):
    """Enlarges into any type, with more tokens."""

    def __init__(self, source: SmallModel, shape: Shape, kind: str) -> None:
        check(source.shape, shape)
        super().__init__(source, shape)
        self._kind = kind
        self._constant_at = constant_column(self.old, shape)
        self._constant = 0.0  # as its type can hold it; half of the old epsilon's share goes into it
        if self._constant_at is not None:
            own, block = self.type_of("token_embd.weight"), np.zeros((1, 256), np.float32)
            block[0, 0] = sqrt(self.old.width * source.eps / 2)
            self._constant = float(dequantize(encode(block, own), Type(own))[0, 0])

    @property
    def eps(self) -> float:
        """The epsilon that, with the constant's square, weighs as much as the old one did."""
        return (self.old.width * self.source.eps - self._constant**2) / self.new.width

    def type_of(self, name: str) -> int:
        return type_of(self._kind, self.new.layers, name)

    def encode(self, rows: np.ndarray, kind: int) -> np.ndarray:
        return encode(rows, kind)

    def _gains(self, name: str, idle: bool = False) -> np.ndarray:
        gains = super()._gains(name, idle)
        if name == "output_norm.weight" and self._constant_at is not None:
            gains[self._constant_at] = CONSTANT_SIZE / self._constant * sqrt(self.old.width / self.new.width)
        return gains

    def _embedding(self, name: str) -> np.ndarray:
        if self._constant_at is None:
            return super()._embedding(name)
        kind = self.type_of(name)
        old = np.zeros((self.old.vocab, self.new.width), np.float32)
        old[:, : self.old.width] = self.source.tensor(name)
        old[:, self._constant_at] = self._constant
        extra = np.zeros((1, self.new.width), np.float32)
        extra[0, self._constant_at] = -REPEL
        data = self.encode(extra, kind)
        data = np.resize(data, (self.new.vocab, data.shape[1]))
        data[: self.old.vocab] = self.encode(old, kind)
        return data

    def entries(self, file_type: int) -> dict[str, Entry]:
        types = self.source.header.get("tokenizer.ggml.token_type")
        more = (UNUSED,) * (self.new.vocab - len(types))
        extended = Entry(ARRAY, (*types, *more), INT32, self.new.vocab)
        return super().entries(file_type) | {"tokenizer.ggml.token_type": extended}

    def vocabulary(self) -> HeaderVocabulary:
        old, count = self.source.vocabulary, self.new.vocab
        extra = (f"<|unused_{i}|>".encode() for i in range(count - old.count))
        raw = old.raw + b"".join(struct.pack("<Q", len(text)) + text for text in extra)
        return HeaderVocabulary(count, raw)


def enlarge(source: Path, out: Path, shape: Shape, kind: str) -> None:
    """Write the large model in a type."""
    if kind == "q4_k_m" and (shape.width % 256 or shape.ffn % 256):
        raise UnfitError("q4_k_m needs a width and a feed-forward size that are multiples of 256")
    made = AnyEnlarger(SmallModel(source), shape, kind)
    write_gguf(out, made.entries(int(FILE_TYPES[kind])), made.tensors(), made.vocabulary())


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
    start = NAMED[options.shape] if options.shape else SmallModel(options.source).shape
    names = [field.name for field in fields(Shape)]
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    shape = replace(start, **given)
    if not options.shape and options.width and options.heads and not options.head_width:
        shape = replace(shape, head_width=options.width // options.heads)
    enlarge(options.source, options.out, shape, options.type)
    print(f"{options.out}: {shape}, {options.out.stat().st_size / 1e6:,.0f} MB")


if __name__ == "__main__":
    main()
