"""Heads in torch, unrolled over the depths that they will draft: the graphs of llama.cpp."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from tools.heads.target import File, rotate, turns


@dataclass(frozen=True, slots=True)
class Scale:
    """Of the features: each column's root mean square, and that of a whole row."""

    columns: Tensor
    row: float

    @classmethod
    def of(cls, features: Tensor) -> "Scale":
        """Measured on rows of features."""
        squares = features.float().square().mean(0)
        return cls(squares.sqrt() + 1e-6, float(squares.mean().sqrt()))


class Head(nn.Module):
    """One layer that reads a token's embedding beside the hidden row before it, starting as the target's last layer."""

    opens = False
    """Whether a row of zeros stands before the first, for the text's first token."""

    def __init__(self, file: File, size: float, words: Tensor) -> None:
        """`size` of the target's rows, where the head's are of size one."""
        super().__init__()
        s = self.shape = file.shape()
        last = f"blk.{s.layers - 1}."
        self.embedding = file.tensor("token_embd.weight")
        for name in ("q", "k", "v"):
            setattr(
                self, f"attn_{name}", nn.Parameter(self.widened(file.tensor(f"{last}attn_{name}.weight")))
            )
        self.attn_output = nn.Parameter(file.tensor(f"{last}attn_output.weight") / size)
        self.ffn_norm = nn.Parameter(file.tensor(f"{last}ffn_norm.weight").clone())
        self.ffn_gate = nn.Parameter(file.tensor(f"{last}ffn_gate.weight"))
        self.ffn_up = nn.Parameter(file.tensor(f"{last}ffn_up.weight"))
        self.ffn_down = nn.Parameter(file.tensor(f"{last}ffn_down.weight") / size)
        self.output_norm = nn.Parameter(file.tensor("output_norm.weight").clone())
        output = file.tensor("output.weight" if "output.weight" in file.tensors else "token_embd.weight")
        self.output = nn.Parameter(output[words].clone())

    def widened(self, of_hidden: Tensor) -> Tensor:
        """A projection of the target, for what this head's reads."""
        return of_hidden

    def first(self, features: Tensor) -> Tensor:
        """The hidden rows that stand for what the target's layers held."""
        raise NotImplementedError

    def mixed(self, words: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """What the layer's attention reads, and what goes past it."""
        raise NotImplementedError

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """RMS norm."""
        return functional.rms_norm(x.float(), x.shape[-1:], weight, self.shape.eps)

    def forward(self, tokens: Tensor, features: Tensor, depths: int) -> list[Tensor]:
        """Hidden rows [texts, length, width] for each depth.

        Row P has read `tokens[P + 1]`; at depth d it is the d-th guess after the features of P - d.
        """
        hidden, words = self.first(features)[:, :-1], functional.embedding(tokens, self.embedding)
        if self.opens:
            hidden = functional.pad(hidden, (0, 0, 1, 0))
        else:
            words = words[:, 1:]
        turn = turns(self.shape, torch.arange(words.shape[1]))[:, None]
        seen: list[tuple[Tensor, Tensor]] = []
        rows = []
        for _ in range(depths):
            hidden = self._layer(words, hidden, turn, seen)
            rows.append(hidden[:, self.opens :])
            # The next depth reads the guess of the row before; the first row has none and is not learned.
            hidden = functional.pad(hidden[:, :-1], (0, 0, 1, 0))
        return rows

    def _layer(
        self, words: Tensor, hidden: Tensor, turn: Tensor, seen: list[tuple[Tensor, Tensor]]
    ) -> Tensor:
        mixed, past = self.mixed(words, hidden)
        split = (*mixed.shape[:2], -1, self.shape.head_width)
        q, k, v = (functional.linear(mixed, w).view(split) for w in (self.attn_q, self.attn_k, self.attn_v))
        q, k = rotate(q.float(), turn).to(v.dtype), rotate(k.float(), turn).to(v.dtype)
        groups = self.shape.heads // self.shape.kv_heads
        seen.append((k.repeat_interleave(groups, dim=2), v.repeat_interleave(groups, dim=2)))
        x = past + functional.linear(self._attend(q, seen), self.attn_output).float()
        y = self.norm(x, self.ffn_norm)
        inner = functional.silu(functional.linear(y, self.ffn_gate)) * functional.linear(y, self.ffn_up)
        return x + functional.linear(inner, self.ffn_down).float()

    def _attend(self, q: Tensor, seen: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Row P of depth d sees true rows up to P - d, then one row of each depth up to its own."""
        depth, length = len(seen) - 1, q.shape[1]
        true_keys, true_values = seen[0]
        scores = torch.einsum("bphd,bshd->bhps", q, true_keys).float()
        places = torch.arange(length)
        scores = scores.masked_fill(places > places[:, None] - depth, -1e9)
        guessed = []
        for back, (keys, values) in enumerate(reversed(seen[1:])):
            guessed.append((_later(keys, back), _later(values, back)))
        scores = torch.cat(
            [scores, *(((q * k).sum(-1).float().transpose(1, 2))[..., None] for k, _ in guessed)], -1
        )
        shares = (scores * self.shape.head_width**-0.5).softmax(-1).to(q.dtype)
        out = torch.einsum("bhps,bshd->bphd", shares[..., :length], true_values)
        for number, (_, values) in enumerate(guessed):
            out = out + shares[..., length + number].transpose(1, 2)[..., None] * values
        return out.flatten(2)

    def logits(self, rows: Tensor) -> Tensor:
        """Of the draft's own vocabulary."""
        return functional.linear(self.norm(rows, self.output_norm), self.output)


class Eagle3(Head):
    """llama.cpp's `eagle3`: features of three layers, brought to one size for each column.

    The features' norm and `fc` begin so that the hidden row is the last of the three, of size one.
    """

    def __init__(self, file: File, scale: Scale, words: Tensor) -> None:
        width = file.shape().width
        size = float(scale.columns[-width:].square().mean().sqrt())
        super().__init__(file, size, words)
        self.enc_norm = nn.Parameter(scale.row / scale.columns)
        self.fc = nn.Parameter(torch.zeros(width, 3 * width))
        self.fc.data[:, -width:] = torch.diag(scale.columns[-width:] / size)
        self.attn_norm = nn.Parameter(torch.ones(width))
        self.attn_norm_2 = nn.Parameter(file.tensor(f"blk.{self.shape.layers - 1}.attn_norm.weight").clone())

    def widened(self, of_hidden: Tensor) -> Tensor:
        """The token comes first."""
        return torch.cat([torch.randn_like(of_hidden) * 0.5 * of_hidden.std(), of_hidden], dim=1)

    def first(self, features: Tensor) -> Tensor:
        """The encoder."""
        return functional.linear(self.norm(features, self.enc_norm), self.fc).float()

    def mixed(self, words: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Token and row side by side."""
        words = self.norm(words, self.attn_norm)
        return torch.cat([words, self.norm(hidden, self.attn_norm_2)], dim=-1), hidden


class Mtp(Head):
    """A prediction layer of llama.cpp's `mimo2`: the last layer's output and the target's own output matrix."""

    opens = True

    def __init__(self, file: File, scale: Scale, words: Tensor) -> None:
        width = file.shape().width
        super().__init__(file, float(scale.columns[-width:].square().mean().sqrt()), words)
        self.output.requires_grad_(False)
        self.enorm, self.hnorm = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        self.eh_proj = nn.Parameter(torch.cat([torch.eye(width) * 0.5, torch.eye(width)], dim=1))
        self.attn_norm = nn.Parameter(file.tensor(f"blk.{self.shape.layers - 1}.attn_norm.weight").clone())

    def first(self, features: Tensor) -> Tensor:
        """The output of the last layer."""
        return features[..., -self.shape.width :].float()

    def mixed(self, words: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Token and row in one, as a hidden row."""
        both = torch.cat([self.norm(words, self.enorm), self.norm(hidden, self.hnorm)], dim=-1)
        past = functional.linear(both, self.eh_proj).float()
        return self.norm(past, self.attn_norm), past


def _later(rows: Tensor, places: int) -> Tensor:
    """Row P is what row P - places was."""
    return functional.pad(rows[:, : rows.shape[1] - places], (0, 0, 0, 0, places, 0))
