"""Embed a small llama GGUF in a larger shape that computes the same function at the larger shape's cost.

    python tools/enlarge.py localspec/demo/demo-target.gguf big.gguf --shape 1b --type q8_0
    python tools/enlarge.py localspec/demo/demo-draft.gguf small.gguf --width 512 --layers 12 --heads 8 \\
        --kv-heads 4 --head-width 64 --ffn 2048 --vocab 128256 --type f16

`localspec/gguf/enlarging.py` explains how the function stays the same; this adds the quantised types. Q8_0 out of
Q8_0 keeps its values; K-quants have blocks of 256 and are rounded anew. q4_k_m uses Q4_K and Q6_K for the tensors
for which llama.cpp does.
"""

import argparse
import ctypes
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import llama_cpp
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import LlamaFileType
from gguf.quants import dequantize, quant_shape_to_byte_shape

from localspec.gguf.enlarging import (
    F16,
    F32,
    Enlarger,
    Shape,
    Source,
    UnfitError,
    decoded,
    encoded,
    write_enlarged,
)

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


def encode(rows: np.ndarray, kind: int) -> np.ndarray:
    """Rows of floats as the bytes of a type."""
    if kind in (F32, F16):
        return encoded(rows, kind)
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


def decode(data: np.ndarray, kind: int) -> np.ndarray:
    """The floats that bytes of a type stand for."""
    return decoded(data, kind) if kind in (F32, F16) else dequantize(data, Type(kind))


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


def enlarge(source: Path, out: Path, shape: Shape, kind: str) -> None:
    """Write the large model in a type."""
    if kind == "q4_k_m" and (shape.width % 256 or shape.ffn % 256):
        raise UnfitError("q4_k_m needs a width and a feed-forward size that are multiples of 256")
    enlarger = Enlarger(Source(source), shape, partial(type_of, kind, shape.layers), encode, decode)
    write_enlarged(enlarger, out, file_type=int(FILE_TYPES[kind]))


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
    names = [field.name for field in fields(Shape)]
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    shape = replace(start, **given)
    if not options.shape and options.width and options.heads and not options.head_width:
        shape = replace(shape, head_width=options.width // options.heads)
    enlarge(options.source, options.out, shape, options.type)
    print(f"{options.out}: {shape}, {options.out.stat().st_size / 1e6:,.0f} MB")


if __name__ == "__main__":
    main()
