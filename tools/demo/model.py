"""A small llama in torch, with the rotary layout of llama.cpp so that weights can be exported as they are."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers that a llama is made of."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    ffn: int
    vocabulary: int = 2560
    context: int = 2048
    rope_base: float = 10_000.0
    eps: float = 1e-5


TARGET = Shape(width=256, layers=5, heads=4, kv_heads=2, head_width=64, ffn=576)
DRAFT = Shape(width=128, layers=4, heads=4, kv_heads=2, head_width=32, ffn=384)
SHAPES = {"target": TARGET, "draft": DRAFT}


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """Rotate neighbouring pairs; `turn` holds cosine and sine for each position and pair."""
    cos, sin = turn.unbind(-1)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class Block(nn.Module):
    """Attention and feed-forward, each behind its norm."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.shape = s
        self.attn_norm = nn.RMSNorm(s.width, eps=s.eps)
        self.attn_q = nn.Linear(s.width, s.heads * s.head_width, bias=False)
        self.attn_k = nn.Linear(s.width, s.kv_heads * s.head_width, bias=False)
        self.attn_v = nn.Linear(s.width, s.kv_heads * s.head_width, bias=False)
        self.attn_output = nn.Linear(s.heads * s.head_width, s.width, bias=False)
        self.ffn_norm = nn.RMSNorm(s.width, eps=s.eps)
        self.ffn_gate = nn.Linear(s.width, s.ffn, bias=False)
        self.ffn_up = nn.Linear(s.width, s.ffn, bias=False)
        self.ffn_down = nn.Linear(s.ffn, s.width, bias=False)

    def attend(self, x: Tensor, turn: Tensor) -> Tensor:
        """Causal attention with grouped heads."""
        batch, length, _ = x.shape
        split = (batch, length, -1, self.shape.head_width)
        q, k, v = (f(x).view(split).transpose(1, 2) for f in (self.attn_q, self.attn_k, self.attn_v))
        q, k = rotate(q, turn), rotate(k, turn)
        groups = self.shape.heads // self.shape.kv_heads
        k, v = (t.repeat_interleave(groups, dim=1) for t in (k, v))
        mixed = functional.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True)
        return self.attn_output(mixed.transpose(1, 2).reshape(batch, length, -1))

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        """One layer."""
        x = x + self.attend(self.attn_norm(x), turn)
        y = self.ffn_norm(x)
        return x + self.ffn_down(functional.silu(self.ffn_gate(y)) * self.ffn_up(y))


class Llama(nn.Module):
    """Tokens in, logits out; input and output share one matrix."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocabulary, shape.width)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_norm = nn.RMSNorm(shape.width, eps=shape.eps)
        self.apply(self._start)

    def _start(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=self.shape.width**-0.5)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.05)
        if isinstance(module, Block):
            nn.init.zeros_(module.attn_output.weight)
            nn.init.zeros_(module.ffn_down.weight)

    def turns(self, positions: Tensor) -> Tensor:
        """Cosine and sine for every position, shaped to match heads."""
        pairs = torch.arange(0, self.shape.head_width, 2, device=positions.device)
        angle = positions[..., None].float() * self.shape.rope_base ** (
            -pairs.float() / self.shape.head_width
        )
        return torch.stack((angle.cos(), angle.sin()), dim=-1)[:, None]

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Logits for every token; positions count from zero where none are given."""
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        turn = self.turns(positions)
        x = self.token_embd(tokens)
        for block in self.blk:
            x = block(x, turn)
        return functional.linear(self.output_norm(x), self.token_embd.weight)
