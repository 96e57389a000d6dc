"""Tiny targets with draft heads of every kind that llama.cpp runs, of which 30 to 80 % of the drafts are right.

With random weights no draft is ever right, which proves the first token of a cycle only. Here embeddings are waves,
so that the output matrix moves every token a fixed step through the vocabulary; the random layers of the target
disturb that, and a head knows the step and little of the disturbance. What it reads of hidden rows and earlier
tokens has a small say in what it drafts: a wrong row or position changes its logits.
llama-server of llama.cpp 0c1e57098 loads each kind and accepts 31 to 72 % of its drafts.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import gguf
import numpy as np

from tests.gguf.models import ARCHITECTURES, Shape, Tensors, attention, closed, feed_forward, matrix
from tests.gguf.vocabularies import CHATML, add_bpe, add_facts


@dataclass(frozen=True, slots=True)
class Walk:
    """A target and its heads; equal walks give equal files.

    `disturbance` scales what the target's layers add, `nextn` counts its heads for multi-token prediction. The
    gemma4 target has none: its head is the assistant, a file of its own.
    """

    architecture: Literal["llama", "qwen35", "mimo2", "gemma4"] = "llama"
    layers: int = 4
    nextn: int = 0
    disturbance: float = 0.7
    step: int = 37
    vocab_size: int = 512
    seed: int = 0
    window: int = 0  # gemma4: every other layer sees so many tokens; 0: as many as the context has

    @property
    def shape(self) -> Shape:
        known = self.architecture if self.architecture in ARCHITECTURES else "llama"
        return Shape(known, vocab_size=self.vocab_size, layers=self.layers)  # type: ignore[arg-type]

    @property
    def blank(self) -> int:
        """The token whose embedding is nearly nothing: what DFlash reads in place of tokens to come."""
        return self.vocab_size - 3

    def embedding(self) -> np.ndarray:
        """A constant column, then cosine and sine of 31 waves; a token's number is its phase."""
        waves = np.exp(1j * self._angles() * np.arange(self.vocab_size)[:, None])
        table = np.zeros((self.vocab_size, self.shape.embedding))
        table[:, 0], table[:, 1:-1:2], table[:, 2:-1:2] = 1.0, waves.real, waves.imag
        table[self.blank, 1:] = 0.0
        return table.astype(np.float32)

    def output(self) -> np.ndarray:
        """Logits are largest one step after the token that a row stands for."""
        table = np.roll(self.embedding(), self.step, axis=0) * np.float32(0.25)
        table[:, 0] = 0.0
        return table

    def forward(self, steps: int) -> np.ndarray:
        """The matrix that turns a token's embedding into the one so many steps later; the constant goes."""
        turned = np.zeros((self.shape.embedding,) * 2, np.float32)
        for wave, angle in enumerate(self._angles() * self.step * steps):
            cos, sin, at = np.cos(angle), np.sin(angle), 1 + 2 * wave
            turned[at : at + 2, at : at + 2] = [[cos, -sin], [sin, cos]]
        return turned

    def _angles(self) -> np.ndarray:
        order = np.random.default_rng(2026).permutation(self.vocab_size // 2 - 1)
        return 2 * np.pi * (order[: (self.shape.embedding - 2) // 2] + 1) / self.vocab_size


def write_target(path: Path, walk: Walk, trunk: bool = True) -> Path:
    random = np.random.default_rng(walk.seed)
    writer = _header(path, walk.architecture, walk, blocks=walk.layers + walk.nextn)
    _target_facts(writer, walk)
    _vocabulary_tensors(writer, walk)
    for layer in range(walk.layers if trunk else 0):
        for name, values in _trunk(walk, layer, random):
            writer.add_tensor(f"blk.{layer}.{name}", values.astype(np.float32))
    if walk.architecture == "gemma4":
        writer.add_tensor("rope_freqs.weight", np.ones(8, np.float32))
    _add_nextn(writer, walk)
    return closed(writer, path)


def write_mtp(path: Path, walk: Walk) -> Path:
    """The same heads in a file of their own, beside a target of `nextn=0`."""
    return write_target(path, walk, trunk=False)


def write_assistant(path: Path, walk: Walk) -> Path:
    """`gemma4-assistant`: narrower than the target, no keys or values of its own, two layers."""
    width, random = 48, np.random.default_rng(walk.seed + 1)
    writer = _header(path, "gemma4-assistant", walk, blocks=2, width=width)
    _gemma4_facts(writer, walk, 2)
    writer.add_embedding_length_out(walk.shape.embedding)
    writer.add_nextn_predict_layers(2)
    kept = np.eye(width, walk.shape.embedding, dtype=np.float32)
    writer.add_tensor("token_embd.weight", walk.output() @ kept.T)
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    writer.add_tensor("rope_freqs.weight", np.ones(8, np.float32))
    writer.add_tensor("nextn.pre_projection.weight", np.concatenate([kept, 1.5 * kept], axis=1))
    writer.add_tensor("nextn.post_projection.weight", np.ascontiguousarray(kept.T))
    for layer in range(2):
        for name, values in _assistant_layer(walk, width, random):
            writer.add_tensor(f"blk.{layer}.{name}", values.astype(np.float32))
    return closed(writer, path)


def write_eagle3(
    path: Path,
    walk: Walk,
    reduced: bool = True,
    own_embedding: bool = False,
    norm_before_residual: bool = False,
    norm_before_fc: bool = False,
) -> Path:
    """`eagle3`, of three layers of the target; `reduced` knows three tokens of four and maps them by `d2t`."""
    width, random = walk.shape.embedding, np.random.default_rng(walk.seed + 1)
    writer = _header(path, "eagle3", walk, blocks=1)
    _attention_facts(writer, heads=4, kv_heads=4, head_width=16, rope_base=4.0)
    _target_layers(writer, walk)
    writer.add_uint32("eagle3.target_hidden_size", width)
    writer.add_bool("eagle3.norm_before_residual", norm_before_residual)
    writer.add_bool("eagle3.norm_before_fc", norm_before_fc)
    same = np.eye(width, dtype=np.float32)
    writer.add_tensor("fc.weight", np.concatenate([0.3 * same, 0.3 * same, 0.4 * same], axis=1))
    if norm_before_fc:
        writer.add_tensor("enc.output_norm.weight", np.ones(3 * width, np.float32))
    if own_embedding:
        writer.add_tensor("token_embd.weight", walk.embedding())
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    if reduced:
        known = np.flatnonzero(np.arange(walk.vocab_size) % 4)
        writer.add_tensor("d2t", known.astype(np.int64))
        writer.add_tensor("output.weight", walk.output()[known])
    elif own_embedding:
        writer.add_tensor("output.weight", walk.output())
    for name, values in _eagle3_layer(walk, random):
        writer.add_tensor(f"blk.0.{name}", values.astype(np.float32))
    return closed(writer, path)


def write_dflash(
    path: Path, walk: Walk, variant: Literal["dflash", "dspark", "dflash2"] = "dflash", block: int = 5
) -> Path:
    """`dflash`, one layer whose four heads look one to four tokens back, each turning what it sees as far onward."""
    width, random = walk.shape.embedding, np.random.default_rng(walk.seed + 1)
    writer = _header(path, "dflash", walk, blocks=1)
    _attention_facts(writer, heads=4, kv_heads=1, head_width=width, rope_base=4.0)
    _target_layers(writer, walk)
    writer.add_uint32("dflash.block_size", block)
    writer.add_mask_token_id(walk.blank)
    same = np.eye(width, dtype=np.float32)
    writer.add_tensor("fc.weight", np.concatenate([0.7 * same, 0.15 * same, 0.15 * same], axis=1))
    for name in ("enc.output_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))
    _ADD_VARIANT[variant](writer, walk, random)
    for name, values in _dflash_layer(walk, random, ahead=variant == "dspark"):
        writer.add_tensor(f"blk.0.{name}", values.astype(np.float32))
    return closed(writer, path)


def _header(
    path: Path, architecture: str, walk: Walk, blocks: int, width: int | None = None
) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, architecture)
    shape = walk.shape
    add_facts(writer, name=f"walk-{architecture}", context_length=shape.context_length, block_count=blocks)
    add_facts(writer, embedding_length=width or shape.embedding, feed_forward_length=shape.feed_forward)
    add_facts(writer, vocab_size=walk.vocab_size, layer_norm_rms_eps=1e-5, chat_template=CHATML)
    add_bpe(writer, walk.vocab_size, add_bos=False)
    return writer


def _attention_facts(
    writer: gguf.GGUFWriter, heads: int, kv_heads: int, head_width: int, rope_base: float = 10_000.0
) -> None:
    add_facts(writer, head_count=heads, head_count_kv=kv_heads, rope_freq_base=rope_base)
    add_facts(writer, key_length=head_width, value_length=head_width, rope_dimension_count=head_width)


def _target_layers(writer: gguf.GGUFWriter, walk: Walk) -> None:
    writer.add_array(f"{writer.arch}.target_layers", [0, walk.layers // 2, walk.layers - 1])


def _target_facts(writer: gguf.GGUFWriter, walk: Walk) -> None:
    if walk.nextn:
        writer.add_nextn_predict_layers(walk.nextn)
    if walk.architecture == "gemma4":
        _gemma4_facts(writer, walk, walk.layers)
    elif walk.architecture == "mimo2":
        blocks = walk.layers + walk.nextn
        shape = walk.shape
        _attention_facts(writer, shape.heads, shape.kv_heads, shape.embedding // shape.heads)
        add_facts(writer, expert_feed_forward_length=shape.feed_forward, sliding_window=shape.context_length)
        add_facts(writer, sliding_window_pattern=[True] * blocks, rope_freq_base_swa=10_000.0)
    else:
        # Header facts of the plain models hold here; feed-forward length and sizes are written above already.
        writer.kv_data[-1].pop(f"{walk.architecture}.feed_forward_length")
        ARCHITECTURES[walk.architecture][0](writer, walk.shape)


def _gemma4_facts(writer: gguf.GGUFWriter, walk: Walk, layers: int) -> None:
    _attention_facts(writer, walk.shape.heads, walk.shape.kv_heads, 16)
    add_facts(writer, key_length_swa=16, value_length_swa=16, rope_dimension_count_swa=16)
    add_facts(writer, rope_freq_base_swa=10_000.0, sliding_window=walk.window or walk.shape.context_length)
    writer.add_sliding_window_pattern([layer % 2 == 0 for layer in range(layers)])
    add_facts(writer, embedding_length_per_layer_input=0, shared_kv_layers=0)


def _vocabulary_tensors(writer: gguf.GGUFWriter, walk: Walk) -> None:
    writer.add_tensor("token_embd.weight", walk.embedding())
    writer.add_tensor("output.weight", walk.output())
    writer.add_tensor("output_norm.weight", np.ones(walk.shape.embedding, np.float32))


def _trunk(walk: Walk, layer: int, random: np.random.Generator) -> Tensors:
    if walk.architecture == "gemma4":
        yield from _gemma4_layer(walk, random)
        return
    for name, values in ARCHITECTURES[walk.shape.architecture][1](walk.shape, layer, random):
        adds = name in ("attn_output.weight", "ffn_down.weight", "ssm_out.weight")
        yield name, values * np.float32(walk.disturbance) if adds else values


def _gemma4_layer(walk: Walk, random: np.random.Generator) -> Tensors:
    yield from attention(walk.shape, random)
    yield from feed_forward(walk.shape, random)
    yield from (("attn_q_norm.weight", np.ones(16)), ("attn_k_norm.weight", np.ones(16)))
    # The embeddings are scaled by the root of the width: what a layer adds must be as large to have a say.
    scale = walk.disturbance * walk.shape.embedding**0.5 * 0.65
    for name in ("post_attention_norm", "post_ffw_norm"):
        yield f"{name}.weight", np.full(walk.shape.embedding, scale)


def _assistant_layer(walk: Walk, width: int, random: np.random.Generator) -> Tensors:
    queries = walk.shape.heads * 16
    yield "attn_q.weight", matrix(random, queries, width)
    yield "attn_q_norm.weight", np.ones(16)
    yield "attn_output.weight", matrix(random, width, queries)
    yield "ffn_gate.weight", matrix(random, walk.shape.feed_forward, width)
    yield "ffn_up.weight", matrix(random, walk.shape.feed_forward, width)
    yield "ffn_down.weight", matrix(random, width, walk.shape.feed_forward)
    yield "layer_output_scale.weight", np.ones(1)
    for name in ("attn_norm", "ffn_norm"):
        yield f"{name}.weight", np.ones(width)
    for name in ("post_attention_norm", "post_ffw_norm"):
        yield f"{name}.weight", np.full(width, 0.5)


def _add_nextn(writer: gguf.GGUFWriter, walk: Walk) -> None:
    """Heads for multi-token prediction: the token's embedding, and a little of the hidden row and the layer."""
    random = np.random.default_rng(walk.seed + 1)
    width = walk.shape.embedding
    same = np.eye(width, dtype=np.float32)
    for block in range(walk.layers, walk.layers + walk.nextn):
        layer = dict(ARCHITECTURES[walk.shape.architecture][1](walk.shape, 1, random))
        if walk.architecture == "mimo2":
            fused = [layer.pop(f"attn_{name}.weight") for name in "qkv"]
            layer["attn_qkv.weight"] = np.concatenate(fused)
        for name in ("attn_output.weight", "ffn_down.weight"):
            layer[name] = layer[name] * np.float32(1.5)
        layer["nextn.eh_proj.weight"] = np.concatenate([same, 0.5 * same], axis=1)
        layer["nextn.enorm.weight"] = layer["nextn.hnorm.weight"] = np.ones(width)
        for name, values in layer.items():
            writer.add_tensor(f"blk.{block}.{name}", values.astype(np.float32))


def _eagle3_layer(walk: Walk, random: np.random.Generator) -> Tensors:
    """Attention that looks mostly at its own token: queries and keys are the constant column alone."""
    width = walk.shape.embedding
    same = np.eye(width, dtype=np.float32)
    even = np.zeros((width, 2 * width), np.float32)
    even[::2, 0] = 1.4
    yield "attn_norm.weight", np.ones(width)
    yield "attn_norm_2.weight", np.ones(width)
    yield "attn_q.weight", even
    yield "attn_k.weight", even
    # Most of the hidden row is taken back, or every draft after the first would be the token before it as well.
    yield "attn_v.weight", np.concatenate([same, -0.4 * same], axis=1)
    yield "attn_output.weight", same
    yield "ffn_norm.weight", np.ones(width)
    for name, rows, columns in (("gate", 128, width), ("up", 128, width), ("down", width, 128)):
        yield f"ffn_{name}.weight", matrix(random, rows, columns, scale=0.3)


def _dflash_layer(walk: Walk, random: np.random.Generator, ahead: bool) -> Tensors:
    """Head j sees the token j back; `ahead`: a row drafts what comes after its own place, not what stands there."""
    width = walk.shape.embedding
    angles = 4.0 ** (-np.arange(width // 2) / (width // 2))
    keys, queries = np.zeros((width, width)), np.zeros((4 * width, width))
    keys[: width // 2, 0] = 1.0
    for head in range(4):
        turned = np.concatenate([np.cos(angles * (head + 1)), -np.sin(angles * (head + 1))])
        queries[head * width : (head + 1) * width, 0] = turned
    yield "attn_norm.weight", np.ones(width)
    yield "attn_q.weight", queries
    yield "attn_k.weight", keys
    yield "attn_v.weight", np.eye(width)
    yield "attn_output.weight", np.concatenate([walk.forward(head + ahead) for head in range(4)], axis=1)
    yield "attn_q_norm.weight", np.full(width, 2.0)
    yield "attn_k_norm.weight", np.full(width, 2.0)
    yield "ffn_norm.weight", np.ones(width)
    for name, rows, columns in (("gate", 128, width), ("up", 128, width), ("down", width, 128)):
        yield f"ffn_{name}.weight", matrix(random, rows, columns, scale=0.3)


def _add_dspark(writer: gguf.GGUFWriter, walk: Walk, random: np.random.Generator) -> None:
    """A bias that knows the step from the token before, and a confidence that varies."""
    width = walk.shape.embedding
    writer.add_bool("dflash.sample_from_anchor", True)
    writer.add_bool("dflash.has_confidence_head", True)
    writer.add_tensor("markov_w1.weight", walk.embedding())
    writer.add_tensor("markov_w2.weight", walk.output() * np.float32(0.5))
    writer.add_tensor("conf_proj.weight", matrix(random, 1, 2 * width))
    writer.add_tensor("conf_proj.bias", np.ones(1, np.float32))


_RANK, _KERNEL, _GROUP = 16, 2, 8


def _add_dflash2(writer: gguf.GGUFWriter, walk: Walk, random: np.random.Generator) -> None:
    width = walk.shape.embedding
    writer.add_uint32("dflash.conv_kernel_size", _KERNEL)
    writer.add_uint32("dflash.conv_group_size", _GROUP)
    writer.add_uint32("dflash.selector_rank", _RANK)
    writer.add_uint32("dflash.selector_top_k", 4)
    gate = np.zeros((_RANK, width), np.float32)
    gate[:, 0] = 1.0
    writer.add_tensor("selector_hidden.weight", gate)
    writer.add_tensor("selector_predecessor.weight", np.ascontiguousarray(walk.embedding()[:, 1 : 1 + _RANK]))
    writer.add_tensor("selector_successor.weight", np.ascontiguousarray(walk.output()[:, 1 : 1 + _RANK]))
    for place in ("attn", "ffn"):
        base = np.zeros((2, _KERNEL, width), np.float32)
        base[:, 0], base[:, 1] = 1.0, 0.02
        projection = matrix(random, 2 * _KERNEL * width // _GROUP, width, scale=0.02)
        writer.add_tensor(f"blk.0.{place}_conv_base", base)
        writer.add_tensor(f"blk.0.{place}_conv_proj.weight", projection)


_ADD_VARIANT = {"dflash": lambda *_: None, "dspark": _add_dspark, "dflash2": _add_dflash2}
