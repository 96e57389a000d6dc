"""What llama.cpp computes of a model's layers, in torch, so that it can be learned."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from localspec.fit.cut import NORM, Shape


def hidden_rows(weights: Mapping[str, Tensor], shape: Shape, x: Tensor, turns: Tensor) -> Tensor:
    """What the layers make of embeddings [texts, length, width], normed for the output matrix."""
    split = (*x.shape[:2], -1, shape.head_width)
    for layer in range(1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blk."))):
        of = {
            name.split(".", 2)[2]: tensor
            for name, tensor in weights.items()
            if name.startswith(f"blk.{layer}.")
        }
        y = normed(x, of["attn_norm.weight"], shape)
        q, k, v = (
            functional.linear(y, of[f"attn_{name}.weight"], of.get(f"attn_{name}.bias")).view(split)
            for name in "qkv"
        )
        if "attn_q_norm.weight" in of:
            q, k = normed(q, of["attn_q_norm.weight"], shape), normed(k, of["attn_k_norm.weight"], shape)
        q, k = rotated(q, turns, shape).to(v.dtype), rotated(k, turns, shape).to(v.dtype)
        mixed = attended(q, k, v)
        x = x + functional.linear(mixed, of["attn_output.weight"]).float()
        y = normed(x, of["ffn_norm.weight"], shape)
        inner = functional.silu(functional.linear(y, of["ffn_gate.weight"])) * functional.linear(
            y, of["ffn_up.weight"]
        )
        x = x + functional.linear(inner, of["ffn_down.weight"]).float()
    return normed(x, weights[NORM], shape)


def normed(x: Tensor, weight: Tensor, shape: Shape) -> Tensor:
    return functional.rms_norm(x.float(), x.shape[-1:], weight, shape.eps)


def rotated(x: Tensor, turns: Tensor, shape: Shape) -> Tensor:
    """Each pair of elements of heads [texts, length, heads, head width] turned by its position."""
    pairs = x.float().unflatten(-1, (-1, 2) if shape.neighbours else (2, -1))
    pairs = pairs if shape.neighbours else pairs.transpose(-1, -2)
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turns[: x.shape[1]])
    return (turned if shape.neighbours else turned.transpose(-1, -2)).flatten(-2)


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What every query finds among the keys up to its own; heads that share keys stand as more rows."""
    texts, length, heads, width = q.shape
    kv_heads = k.shape[2]
    rows = q.view(texts, length, kv_heads, -1, width).permute(0, 2, 3, 1, 4).flatten(2, 3)
    scores = (rows @ k.permute(0, 2, 3, 1)).unflatten(2, (-1, length)) * width**-0.5
    hidden = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    shares = scores.masked_fill(hidden, -torch.inf).softmax(-1).flatten(2, 3)
    mixed = shares.to(v.dtype) @ v.transpose(1, 2)
    return mixed.unflatten(2, (heads // kv_heads, length)).permute(0, 3, 1, 2, 4).flatten(2)
