"""A llama GGUF in torch that answers many prompts at once and shows what a head reads and should say."""

from dataclasses import dataclass
from pathlib import Path

import gguf
import jinja2
import torch
from gguf.quants import dequantize
from torch import Tensor
from torch.nn import functional

TYPE = torch.bfloat16
"""Of matrices and cache; sums along the layers stay in single precision."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers that a llama is made of."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    ffn: int
    vocabulary: int
    rope_base: float
    eps: float


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """Rotate neighbouring pairs; `turn` holds cosine and sine for each position and pair."""
    cos, sin = turn.unbind(-1)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def turns(shape: Shape, positions: Tensor) -> Tensor:
    """Cosine and sine [..., pairs, 2] for every position."""
    pairs = torch.arange(0, shape.head_width, 2)
    angle = positions[..., None].float() * shape.rope_base ** (-pairs.float() / shape.head_width)
    return torch.stack((angle.cos(), angle.sin()), dim=-1)


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm, in the type of the matrices."""
    return functional.rms_norm(x, x.shape[-1:], weight, eps).to(TYPE)


class File:
    """A GGUF: its facts, its tensors as floats, its tokenizer."""

    def __init__(self, path: Path) -> None:
        self.reader = gguf.GGUFReader(path)
        self.tensors = {t.name: t for t in self.reader.tensors}

    def fact(self, name: str, default: object = None) -> object:
        """One value of the header."""
        found = self.reader.fields.get(name)
        return default if found is None else found.contents()

    def tensor(self, name: str) -> Tensor:
        """One tensor in single precision."""
        stored = self.tensors[name]
        return torch.from_numpy(dequantize(stored.data, stored.tensor_type).copy())

    def shape(self) -> Shape:
        """What the header says."""
        heads = self.fact("llama.attention.head_count")
        width = self.fact("llama.embedding_length")
        return Shape(
            width=width,
            layers=self.fact("llama.block_count"),
            heads=heads,
            kv_heads=self.fact("llama.attention.head_count_kv", heads),
            head_width=self.fact("llama.attention.key_length", width // heads),
            ffn=self.fact("llama.feed_forward_length"),
            vocabulary=len(self.fact("tokenizer.ggml.tokens")),
            rope_base=self.fact("llama.rope.freq_base", 10_000.0),
            eps=self.fact("llama.attention.layer_norm_rms_epsilon"),
        )

    def chat_template(self) -> jinja2.Template:
        """The file's own template."""
        environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        return environment.from_string(self.fact("tokenizer.chat_template"))


class Target:
    """The model with a cache for `texts` texts of `context` tokens; `taps` are the layers whose inputs are read.

    The number of layers stands for the output of the last.
    """

    def __init__(self, file: File, taps: tuple[int, ...], texts: int, context: int) -> None:
        self.shape, self.taps = file.shape(), taps
        self.embedding = file.tensor("token_embd.weight").to(TYPE)
        tied = "output.weight" not in file.tensors
        self.output = self.embedding if tied else file.tensor("output.weight").to(TYPE)
        self.output_norm = file.tensor("output_norm.weight")
        self.layers = [self._layer(file, f"blk.{i}.") for i in range(self.shape.layers)]
        room = (self.shape.layers, texts, self.shape.kv_heads, context, self.shape.head_width)
        self.keys, self.values = torch.zeros(room, dtype=TYPE), torch.zeros(room, dtype=TYPE)

    @staticmethod
    def _layer(file: File, prefix: str) -> dict[str, Tensor]:
        def stacked(*names: str) -> Tensor:
            return torch.cat([file.tensor(f"{prefix}{name}.weight") for name in names]).to(TYPE)

        return {
            "attn_norm": file.tensor(f"{prefix}attn_norm.weight"),
            "qkv": stacked("attn_q", "attn_k", "attn_v"),
            "attn_output": stacked("attn_output"),
            "ffn_norm": file.tensor(f"{prefix}ffn_norm.weight"),
            "gate_up": stacked("ffn_gate", "ffn_up"),
            "ffn_down": stacked("ffn_down"),
        }

    @torch.no_grad()
    def read(self, texts: Tensor, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """One pass over tokens [texts, length]; features [texts, length, taps x width], last rows' logits."""
        s, turn = self.shape, turns(self.shape, positions)[:, :, None]
        end = int(positions.max()) + 1
        seen = torch.arange(end) <= positions[..., None]  # [texts, length, end]
        x, kept = functional.embedding(tokens, self.embedding).float(), []
        for i, layer in enumerate(self.layers):
            if i in self.taps:
                kept.append(x)
            mixed = functional.linear(normed(x, layer["attn_norm"], s.eps), layer["qkv"])
            mixed = mixed.unflatten(-1, (-1, s.head_width))
            q, k, v = mixed.split((s.heads, s.kv_heads, s.kv_heads), dim=2)
            q, k = rotate(q.float(), turn).to(TYPE), rotate(k.float(), turn).to(TYPE)
            at = (texts[:, None], slice(None), positions)
            self.keys[i][at], self.values[i][at] = k, v
            # A slice is a view, while picking texts one by one would copy the cache.
            chosen = slice(None) if len(texts) == self.keys.shape[1] else texts
            out = self._attend(q, self.keys[i][chosen, :, :end], self.values[i][chosen, :, :end], seen)
            x = x + functional.linear(out, layer["attn_output"]).float()
            gate, up = functional.linear(normed(x, layer["ffn_norm"], s.eps), layer["gate_up"]).chunk(2, -1)
            x = x + functional.linear(functional.silu(gate) * up, layer["ffn_down"]).float()
        if s.layers in self.taps:
            kept.append(x)
        last = normed(x[:, -1], self.output_norm, s.eps)
        return torch.cat(kept, dim=-1), functional.linear(last, self.output).float()

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
        """Grouped attention: the queries of one key head stand as more rows."""
        _, length, heads, _ = q.shape
        groups = heads // self.shape.kv_heads
        rows = q.unflatten(2, (-1, groups)).permute(0, 2, 3, 1, 4).flatten(2, 3)
        mask = seen[:, None].repeat(1, 1, groups, 1)
        mixed = functional.scaled_dot_product_attention(rows, keys, values, attn_mask=mask)
        return mixed.unflatten(2, (groups, length)).permute(0, 3, 1, 2, 4).flatten(2)
