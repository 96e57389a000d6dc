"""llama.cpp's computation of a model's layers in torch, for training."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from localspec.fit.cut import NORM, Shape


def hidden_rows(weights: Mapping[str, Tensor], shape: Shape, x: Tensor, turns: Tensor) -> Tensor:
    """The output of the layers for embeddings [texts, length, width], normed for the output matrix."""
    split, x = (*x.shape[:2], -1, shape.head_width), x * shape.scale
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
        local = shape.is_local(layer)
        q, k = (rotated(rows, turns[int(local)], shape).to(v.dtype) for rows in (q, k))
        mixed = attended(q, k, v, shape.window if local else x.shape[1])
        x = x + added(
            functional.linear(mixed, of["attn_output.weight"]), of.get("post_attention_norm.weight"), shape
        )
        y = normed(x, of["ffn_norm.weight"], shape)
        gate = functional.linear(y, of["ffn_gate.weight"])
        gate = functional.gelu(gate, approximate="tanh") if shape.gelu else functional.silu(gate)
        inner = gate * functional.linear(y, of["ffn_up.weight"])
        x = x + added(functional.linear(inner, of["ffn_down.weight"]), of.get("post_ffw_norm.weight"), shape)
    return normed(x, weights[NORM], shape)


def normed(x: Tensor, weight: Tensor, shape: Shape) -> Tensor:
    return functional.rms_norm(x.float(), x.shape[-1:], weight, shape.eps)


def added(x: Tensor, norm: Tensor | None, shape: Shape) -> Tensor:
    """The input plus the block's output, which some architectures norm."""
    return x.float() if norm is None else normed(x, norm, shape)


def rotated(x: Tensor, turns: Tensor, shape: Shape) -> Tensor:
    """Each pair of elements of heads [texts, length, heads, head width] turned by its position."""
    pairs = x.float().unflatten(-1, (-1, 2) if shape.neighbours else (2, -1))
    pairs = pairs if shape.neighbours else pairs.transpose(-1, -2)
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turns[: x.shape[1]])
    return (turned if shape.neighbours else turned.transpose(-1, -2)).flatten(-2)


def attended(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """Attention of every query over the last `window` keys up to its own; heads that share keys become more rows."""
    texts, length, heads, width = q.shape
    kv_heads = k.shape[2]
    rows = q.view(texts, length, kv_heads, -1, width).permute(0, 2, 3, 1, 4).flatten(2, 3)
    scores = (rows @ k.permute(0, 2, 3, 1)).unflatten(2, (-1, length)) * width**-0.5
    near = torch.ones(length, length, dtype=torch.bool, device=q.device).tril().triu(1 - window)
    shares = scores.masked_fill(~near, -torch.inf).softmax(-1).flatten(2, 3)
    mixed = shares.to(v.dtype) @ v.transpose(1, 2)
    return mixed.unflatten(2, (heads // kv_heads, length)).permute(0, 3, 1, 2, 4).flatten(2)
