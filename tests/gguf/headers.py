"""Headers of models that people run, from their published shapes: for plans without the files."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter

from localspec.gguf.header import BLOCKS, Entry, Header, HeaderVocabulary, TensorInfo

_TYPES = {block[0]: number for number, block in BLOCKS.items()}
_STRING, _UINT32, _FLOAT32 = 8, 4, 6

# architecture, layers, width, heads, key-value heads, width of a head, feed-forward, vocabulary, tied output
SHAPES = {
    "Llama-3.2-1B-Instruct-Q4_K_M.gguf": ("llama", 16, 2048, 32, 8, 64, 8192, 128256, True),
    "Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf": ("llama", 32, 4096, 32, 8, 128, 14336, 128256, False),
    "Qwen2.5-14B-Instruct-Q4_K_M.gguf": ("qwen2", 48, 5120, 40, 8, 128, 13824, 152064, False),
    "Qwen3-8B-Q4_K_M.gguf": ("qwen3", 36, 4096, 32, 8, 128, 12288, 151936, False),
    "gemma-3-12b-it-Q4_K_M.gguf": ("gemma3", 48, 3840, 16, 8, 256, 15360, 262208, True),
}


def header_of(name: str) -> Header:
    architecture, layers, width, heads, kv_heads, head, feed_forward, vocabulary, _ = SHAPES[name]
    numbers = {
        "context_length": 32_768,
        "block_count": layers,
        "embedding_length": width,
        "feed_forward_length": feed_forward,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head,
        "attention.value_length": head,
        "rope.dimension_count": head,
        "attention.sliding_window": 1024,
    }
    entries = {f"{architecture}.{key}": Entry(_UINT32, value) for key, value in numbers.items()}
    entries["general.architecture"] = Entry(_STRING, architecture)
    entries[f"{architecture}.attention.layer_norm_rms_epsilon"] = Entry(_FLOAT32, 1e-5)
    tensors: list[TensorInfo] = []
    offset = 0
    for tensor, shape, kind in _tensors(name):
        _, elements, block_bytes = BLOCKS[_TYPES[kind]]
        size = shape[0] // elements * block_bytes * (shape[1] if len(shape) > 1 else 1)
        tensors.append(TensorInfo(tensor, shape, _TYPES[kind], offset, size))
        offset += (size + 31) // 32 * 32
    return Header(entries, HeaderVocabulary(vocabulary, b""), tuple(tensors), 32, 0, offset)


def written(name: str, folder: Path) -> Path:
    """A sparse file of such a model, with dummy tokens and no weights."""
    header = header_of(name)
    writer = GGUFWriter(folder / name, header.architecture)
    for key, entry in header.entries.items():
        if key != "general.architecture":
            writer.add_key_value(key, entry.value, GGUFValueType(entry.type))
    writer.add_string("tokenizer.ggml.model", "no_vocab")
    writer.add_vocab_size(header.vocabulary.count)
    for tensor in header.tensors:
        kind = GGMLQuantizationType(tensor.type)
        writer.add_tensor_info(tensor.name, tensor.shape[::-1], np.dtype(np.float32), tensor.bytes, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with (folder / name).open("r+b") as file:
        file.truncate(file.seek(0, 2) + 32 + header.file_bytes)
    return folder / name


def _tensors(name: str) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Names, shapes and types as llama.cpp's Q4_K_M gives them."""
    architecture, layers, width, heads, kv_heads, head, feed_forward, vocabulary, tied = SHAPES[name]
    yield "token_embd.weight", (width, vocabulary), "Q6_K" if tied else "Q4_K"
    yield "output_norm.weight", (width,), "F32"
    if not tied:
        yield "output.weight", (width, vocabulary), "Q6_K"
    for layer in range(layers):
        more = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
        norms = {"attn": width, "ffn": width}
        if architecture in ("qwen3", "gemma3"):
            norms |= {"attn_q": head, "attn_k": head}
        if architecture == "gemma3":
            norms |= {"post_attention": width, "post_ffw": width}
        for norm, extent in norms.items():
            yield f"blk.{layer}.{norm}_norm.weight", (extent,), "F32"
        rows = {"q": heads * head, "k": kv_heads * head, "v": kv_heads * head}
        for matrix, extent in rows.items():
            kind = "Q6_K" if matrix == "v" and more else "Q4_K"
            yield f"blk.{layer}.attn_{matrix}.weight", (width, extent), kind
            if architecture == "qwen2":
                yield f"blk.{layer}.attn_{matrix}.bias", (extent,), "F32"
        yield f"blk.{layer}.attn_output.weight", (heads * head, width), "Q4_K"
        yield f"blk.{layer}.ffn_gate.weight", (width, feed_forward), "Q4_K"
        yield f"blk.{layer}.ffn_up.weight", (width, feed_forward), "Q4_K"
        yield f"blk.{layer}.ffn_down.weight", (feed_forward, width), "Q6_K" if more else "Q4_K"
