"""Random models of a few architectures, small enough to write in milliseconds."""

import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import gguf
import numpy as np

from localspec.gguf.header import header_at
from tests.gguf.vocabularies import CHATML, add_bpe, add_facts, add_spm, add_wpm

Tensors = Iterator[tuple[str, np.ndarray]]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a test model is; equal shapes give equal files."""

    architecture: Literal[
        "llama", "gemma2", "gemma3", "gemma4", "qwen2", "qwen2vl", "qwen3", "mamba", "lfm2", "qwen35", "bert"
    ] = "llama"
    vocab: Literal["bpe", "spm", "wpm"] = "bpe"
    vocab_size: int = 512
    special: tuple[str, ...] = ()  # control tokens beside ChatML's
    layers: int = 2
    embedding: int = 64
    heads: int = 4
    kv_heads: int = 2
    feed_forward: int = 128
    tied: bool = False  # the output matrix is the embedding
    window: int = 16  # gemma2 to gemma4: every other layer sees so many tokens
    context_length: int = 2048  # tokens, as the file says
    weights: Literal["F32", "F16", "Q8_0"] = "F32"
    seed: int = 0
    noise: float = 0.0  # share of random change: gives a draft for the model with the same seed
    add_bos: bool = False
    chat_template: str | None = CHATML
    name: str = "tiny"
    experts: int = 0  # llama only: of which each token uses two
    yarn: float = 0.0  # RoPE scaling beyond the context length
    tensors_in_part: int = 0  # 0: one file
    pooling: Literal["", "mean", "cls", "last", "rank"] = (
        ""  # for embeddings; rank: with a head that scores (bert)
    )
    recorded: bool = False  # with the values that llama.cpp's server had for the texts in tests/llama/data


def write_gguf(path: Path, shape: Shape = Shape()) -> Path:
    writer = gguf.GGUFWriter(path, shape.architecture, split_max_tensors=shape.tensors_in_part)
    add_facts(writer, name=shape.name, context_length=shape.context_length, embedding_length=shape.embedding)
    add_facts(writer, block_count=shape.layers, vocab_size=shape.vocab_size, layer_norm_rms_eps=1e-5)
    if shape.yarn:
        add_facts(writer, rope_scaling_type=gguf.RopeScalingType.YARN, rope_scaling_factor=shape.yarn)
        writer.add_rope_scaling_orig_ctx_len(shape.context_length)
    if shape.chat_template is not None:
        writer.add_chat_template(shape.chat_template)
    if shape.pooling:
        writer.add_pooling_type(gguf.PoolingType[shape.pooling.upper()])
    {"bpe": add_bpe, "spm": add_spm, "wpm": add_wpm}[shape.vocab](
        writer, shape.vocab_size, shape.add_bos, shape.special
    )
    add_header, tensors = ARCHITECTURES[shape.architecture]
    add_header(writer, shape)
    random, noise = np.random.default_rng(shape.seed), np.random.default_rng(shape.seed + 1)
    for name, values in _common(shape, random):
        _add(writer, name, values, shape, noise)
    for layer in range(shape.layers):
        for name, values in tensors(shape, layer, random):
            _add(writer, f"blk.{layer}.{name}", values, shape, noise)
    closed(writer, path)
    return path if path.exists() else next(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))


def write_adapter(path: Path, shape: Shape = Shape(), rank: int = 4, scale: float = 0.2) -> Path:
    writer = gguf.GGUFWriter(path, shape.architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(rank))
    random = np.random.default_rng(shape.seed)
    for layer in range(shape.layers):
        name = f"blk.{layer}.attn_q.weight"
        writer.add_tensor(f"{name}.lora_a", matrix(random, rank, shape.embedding, scale=1.0))
        writer.add_tensor(f"{name}.lora_b", matrix(random, shape.embedding, rank, scale=scale))
    return closed(writer, path)


def closed(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(
    writer: gguf.GGUFWriter, name: str, values: np.ndarray, shape: Shape, noise: np.random.Generator
) -> None:
    if values.ndim == 1 or "ssm_" in name or "conv" in name:
        writer.add_tensor(name, values.astype(np.float32))
        return
    if shape.noise:
        values = values + shape.noise * values.std() * noise.standard_normal(values.shape, dtype=np.float32)
    values = values.astype(np.float16) if shape.recorded else values
    kind = gguf.GGMLQuantizationType[shape.weights]
    writer.add_tensor(name, gguf.quants.quantize(values.astype(np.float32), kind), raw_dtype=kind)


def matrix(random: np.random.Generator, rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
    return random.standard_normal((rows, columns), dtype=np.float32) * np.float32(scale / columns**0.5)


def _common(shape: Shape, random: np.random.Generator) -> Tensors:
    embedding = matrix(random, shape.vocab_size, shape.embedding, scale=3.0)
    yield "token_embd.weight", embedding
    if shape.architecture == "bert":
        yield from _bert_common(shape, random)
        return
    if shape.architecture == "gemma4":
        yield "rope_freqs.weight", np.ones(shape.embedding // shape.heads // 2)
    norm = "token_embd_norm.weight" if shape.architecture == "lfm2" else "output_norm.weight"
    yield norm, np.ones(shape.embedding)
    if not shape.tied and not shape.architecture.startswith("gemma"):
        yield "output.weight", matrix(random, shape.vocab_size, shape.embedding, scale=3.0)


def _transformer_header(writer: gguf.GGUFWriter, shape: Shape) -> None:
    _attention_header(writer, shape)
    writer.add_head_count_kv(shape.kv_heads)
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(2)


def _attention_header(writer: gguf.GGUFWriter, shape: Shape) -> None:
    add_facts(writer, head_count=shape.heads, feed_forward_length=shape.feed_forward)
    writer.add_rope_dimension_count(shape.embedding // shape.heads)


def attention(shape: Shape, random: np.random.Generator) -> Tensors:
    width, kv = shape.embedding, shape.embedding // shape.heads * shape.kv_heads
    yield "attn_norm.weight", np.ones(width)
    # A larger scale attends to single tokens, and multiplies what rounding moves
    scale = 2.0 if shape.recorded else 1.5
    yield "attn_q.weight", matrix(random, width, width, scale=scale)
    yield "attn_k.weight", matrix(random, kv, width, scale=scale)
    yield "attn_v.weight", matrix(random, kv, width)
    yield "attn_output.weight", matrix(random, width, width)


def feed_forward(shape: Shape, random: np.random.Generator) -> Tensors:
    # llama.cpp has GELU between -10 and 10 from a table with f16 steps; so nearly all inputs are beyond
    scale = 1e4 if shape.architecture.startswith("gemma") and not shape.recorded else 1.0
    yield "ffn_norm.weight", np.ones(shape.embedding)
    yield "ffn_gate.weight", matrix(random, shape.feed_forward, shape.embedding, scale)
    yield "ffn_up.weight", matrix(random, shape.feed_forward, shape.embedding)
    yield "ffn_down.weight", matrix(random, shape.embedding, shape.feed_forward)


def _llama(shape: Shape, _layer: int, random: np.random.Generator) -> Tensors:
    yield from attention(shape, random)
    yield from _experts(shape, random) if shape.experts else feed_forward(shape, random)


def _experts(shape: Shape, random: np.random.Generator) -> Tensors:
    yield "ffn_norm.weight", np.ones(shape.embedding)
    yield "ffn_gate_inp.weight", matrix(random, shape.experts, shape.embedding)
    rows = {"gate": shape.feed_forward, "up": shape.feed_forward, "down": shape.embedding}
    columns = {"gate": shape.embedding, "up": shape.embedding, "down": shape.feed_forward}
    for name in rows:
        matrices = [matrix(random, rows[name], columns[name]) for _ in range(shape.experts)]
        yield f"ffn_{name}_exps.weight", np.stack(matrices)


def _gemma2_header(writer: gguf.GGUFWriter, shape: Shape) -> None:
    _transformer_header(writer, shape)
    width = shape.embedding // shape.heads
    add_facts(writer, sliding_window=shape.window, key_length=width, value_length=width)


def _gemma2(shape: Shape, layer: int, random: np.random.Generator) -> Tensors:
    yield from _llama(shape, layer, random)
    # gemma scales its embeddings by sqrt(width): what the layers add must be as large to have a say
    yield "post_attention_norm.weight", np.full(shape.embedding, 2 * shape.embedding**0.5)
    yield "post_ffw_norm.weight", np.full(shape.embedding, shape.embedding**0.5)


def _gemma3_header(writer: gguf.GGUFWriter, shape: Shape) -> None:
    _gemma2_header(writer, shape)
    add_facts(writer, sliding_window_pattern=2, rope_freq_base=1_000_000.0)


def _gemma3(shape: Shape, layer: int, random: np.random.Generator) -> Tensors:
    yield from _gemma2(shape, layer, random)
    yield from _norms_of_heads(shape)


def _gemma4_header(writer: gguf.GGUFWriter, shape: Shape) -> None:
    _gemma2_header(writer, shape)
    width = shape.embedding // shape.heads
    writer.add_sliding_window_pattern([layer % 2 == 0 for layer in range(shape.layers)])
    add_facts(writer, key_length_swa=width, value_length_swa=width, embedding_length_per_layer_input=0)
    add_facts(writer, rope_freq_base=1_000_000.0, rope_freq_base_swa=10_000.0)


def _qwen3(shape: Shape, layer: int, random: np.random.Generator) -> Tensors:
    yield from _llama(shape, layer, random)
    yield from _norms_of_heads(shape)


def _norms_of_heads(shape: Shape) -> Tensors:
    yield "attn_q_norm.weight", np.ones(shape.embedding // shape.heads)
    yield "attn_k_norm.weight", np.ones(shape.embedding // shape.heads)


def _qwen2(shape: Shape, layer: int, random: np.random.Generator) -> Tensors:
    yield from _llama(shape, layer, random)
    kv = shape.embedding // shape.heads * shape.kv_heads
    for name, width in (("q", shape.embedding), ("k", kv), ("v", kv)):
        yield f"attn_{name}.bias", matrix(random, 1, width)[0]


def _qwen2vl_header(writer: gguf.GGUFWriter, shape: Shape) -> None:
    _transformer_header(writer, shape)
    writer.add_rope_dimension_sections(_sections(shape))


def _sections(shape: Shape) -> list[int]:
    """The pairs of a head that turn by time, by row, by column and by nothing."""
    pairs = shape.embedding // shape.heads // 2
    return [(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3, 0]


_STATE, _KERNEL = 8, 4


def _mamba_header(writer: gguf.GGUFWriter, shape: Shape) -> None:
    add_facts(writer, head_count=0, feed_forward_length=0, ssm_conv_kernel=_KERNEL)
    add_facts(writer, ssm_inner_size=2 * shape.embedding, ssm_state_size=_STATE, ssm_time_step_rank=_STATE)


def _mamba(shape: Shape, _layer: int, random: np.random.Generator) -> Tensors:
    inner = 2 * shape.embedding
    yield "attn_norm.weight", np.ones(shape.embedding)
    yield "ssm_in.weight", matrix(random, 2 * inner, shape.embedding)
    yield "ssm_conv1d.weight", matrix(random, inner, _KERNEL)
    yield "ssm_conv1d.bias", np.zeros(inner)
    yield "ssm_x.weight", matrix(random, 3 * _STATE, inner)
    yield "ssm_dt.weight", matrix(random, inner, _STATE)
    yield "ssm_dt.bias", np.zeros(inner)
    yield "ssm_a", -np.tile(np.arange(1, _STATE + 1, dtype=np.float32), (inner, 1))
    yield "ssm_d", np.ones(inner)
    yield "ssm_out.weight", matrix(random, shape.embedding, inner)


def _lfm2_header(writer: gguf.GGUFWriter, shape: Shape) -> None:
    _attention_header(writer, shape)
    writer.add_head_count_kv([0 if layer % 2 == 0 else shape.kv_heads for layer in range(shape.layers)])
    writer.add_shortconv_l_cache(_KERNEL)


def _lfm2(shape: Shape, layer: int, random: np.random.Generator) -> Tensors:
    width = shape.embedding
    yield from feed_forward(shape, random)
    if layer % 2:
        yield from attention(shape, random)
        yield from _norms_of_heads(shape)
        return
    yield "attn_norm.weight", np.ones(width)
    yield "shortconv.conv.weight", matrix(random, width, _KERNEL)
    yield "shortconv.in_proj.weight", matrix(random, 3 * width, width)
    yield "shortconv.out_proj.weight", matrix(random, width, width)


_LINEAR_HEADS, _LINEAR_WIDTH = 2, 32  # of the layers with linear attention: heads, and columns of each


def _qwen35_header(writer: gguf.GGUFWriter, shape: Shape) -> None:
    _transformer_header(writer, shape)
    width = shape.embedding // shape.heads
    add_facts(writer, key_length=width, value_length=width, rope_dimension_sections=_sections(shape))
    add_facts(writer, ssm_conv_kernel=_KERNEL, ssm_inner_size=_LINEAR_HEADS * _LINEAR_WIDTH)
    add_facts(writer, ssm_state_size=_LINEAR_WIDTH, ssm_time_step_rank=_LINEAR_HEADS)
    add_facts(writer, ssm_group_count=_LINEAR_HEADS, full_attention_interval=2)


def _qwen35(shape: Shape, layer: int, random: np.random.Generator) -> Tensors:
    width, inner = shape.embedding, _LINEAR_HEADS * _LINEAR_WIDTH
    yield "post_attention_norm.weight", np.ones(width)
    yield from ((name, values) for name, values in feed_forward(shape, random) if name != "ffn_norm.weight")
    if layer % 2:
        for name, values in attention(shape, random):  # a gate goes with every head's query
            yield name, np.repeat(values, 2, axis=0) if name == "attn_q.weight" else values
        yield from _norms_of_heads(shape)
        return
    yield "attn_norm.weight", np.ones(width)
    yield "attn_qkv.weight", matrix(random, 3 * inner, width)
    yield "attn_gate.weight", matrix(random, inner, width)
    yield "ssm_conv1d.weight", matrix(random, 3 * inner, _KERNEL)
    yield "ssm_dt.bias", np.zeros(_LINEAR_HEADS)
    yield "ssm_a", -np.full(_LINEAR_HEADS, 0.05)
    yield "ssm_beta.weight", matrix(random, _LINEAR_HEADS, width)
    yield "ssm_alpha.weight", matrix(random, _LINEAR_HEADS, width)
    yield "ssm_norm.weight", np.ones(_LINEAR_WIDTH)
    yield "ssm_out.weight", matrix(random, width, inner, scale=2.0)


def _bert_header(writer: gguf.GGUFWriter, shape: Shape) -> None:
    add_facts(writer, head_count=shape.heads, feed_forward_length=shape.feed_forward, layer_norm_eps=1e-12)
    add_facts(writer, causal_attention=False, token_type_count=2)


def _bert_common(shape: Shape, random: np.random.Generator) -> Tensors:
    width = shape.embedding
    yield "token_types.weight", matrix(random, 2, width, scale=3.0)
    yield "position_embd.weight", matrix(random, shape.context_length, width, scale=3.0)
    yield from _affine("token_embd_norm", np.ones(width))
    if shape.pooling == "rank":
        yield from _affine("cls", matrix(random, width, width))
        yield from _affine("cls.output", matrix(random, 1, width, scale=3.0))


def _affine(name: str, weight: np.ndarray) -> Tensors:
    yield f"{name}.weight", weight
    yield f"{name}.bias", np.full(len(weight), 0.1)


def _bert(shape: Shape, _layer: int, random: np.random.Generator) -> Tensors:
    width, inner = shape.embedding, shape.feed_forward
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        yield from _affine(name, matrix(random, width, width, scale=1.5))
    # The scale keeps GELU out of llama.cpp's table, as in `feed_forward`
    yield from _affine("ffn_up", matrix(random, inner, width, scale=1e4))
    yield from _affine("ffn_down", matrix(random, width, inner, scale=1e-4))
    for name in ("attn_output_norm", "layer_output_norm"):
        yield from _affine(name, np.ones(width))


AddHeader = Callable[[gguf.GGUFWriter, Shape], None]
ARCHITECTURES: dict[str, tuple[AddHeader, Callable[[Shape, int, np.random.Generator], Tensors]]] = {
    "llama": (_transformer_header, _llama),
    "gemma2": (_gemma2_header, _gemma2),
    "gemma3": (_gemma3_header, _gemma3),
    "gemma4": (_gemma4_header, _gemma3),
    "qwen2": (_transformer_header, _qwen2),
    "qwen2vl": (_qwen2vl_header, _qwen2),
    "qwen3": (_transformer_header, _qwen3),
    "mamba": (_mamba_header, _mamba),
    "lfm2": (_lfm2_header, _lfm2),
    "qwen35": (_qwen35_header, _qwen35),
    "bert": (_bert_header, _bert),
}
_ADDED = ("attn_output.weight", "ffn_down.weight")  # what a layer adds to the stream goes through these


def weakened(source: Path, out: Path, layers: Collection[int]) -> Path:
    shutil.copyfile(source, out)
    header = header_at(source)
    silent = {f"blk.{layer}.{name}" for layer in layers for name in _ADDED}
    with out.open("r+b") as file:
        for tensor in header.tensors:
            if tensor.name in silent:
                file.seek(header.data_offset + tensor.offset)
                file.write(bytes(tensor.bytes))  # zeros, in every type of tensor
    return out
