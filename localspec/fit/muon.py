"""Muon for the matrices and AdamW for the rest, which learns more per token than AdamW alone."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic that pushes all singular values towards one (Jordan et al., 2024)."""


def orthogonal(gradient: Tensor, steps: int = 5) -> Tensor:
    """The nearest matrix with equal singular values, roughly."""
    a, b, c = COEFFICIENTS
    x = gradient.bfloat16()
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x.T if tall else x).to(gradient.dtype)


class Muon(Optimizer):  # type: ignore[misc,unused-ignore]
    """Momentum whose every step is made orthogonal."""

    def __init__(
        self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()  # type: ignore[untyped-decorator,unused-ignore]
    def step(self, closure: None = None) -> None:
        """Change every matrix once."""
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                momentum = state.setdefault("momentum", torch.zeros_like(p))
                momentum.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonal(p.grad.lerp(momentum, group["momentum"]))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5)


def optimizers(
    parameters: Iterable[tuple[str, Tensor]], matrix_lr: float, other_lr: float, apart: str
) -> list[Optimizer]:
    """The two optimizers that share a model's parameters; names that contain `apart` are no matrices."""
    named = list(parameters)
    matrices = [p for name, p in named if p.ndim == 2 and apart not in name]
    others = [p for name, p in named if p.ndim != 2 or apart in name]
    return [
        Muon(matrices, lr=matrix_lr, weight_decay=0.02),
        AdamW(others, lr=other_lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]
