"""Train the target on the corpus, or the draft to imitate the target; the schedule is counted in steps.

    python -m tools.demo.train target --steps 4000 --decay 1200 --out build/demo
    python -m tools.demo.train draft --steps 3000 --decay 1000 --out build/demo

The same command continues from the last checkpoint. To cut a run short, stop it at a step s and start it
again with `--steps s+d --decay d`: it is the same as having asked for that from the beginning.
"""

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor
from torch.optim import AdamW, Muon

from tools.demo.data import Rows, make_rows
from tools.demo.model import SHAPES, Llama

SEED = 2026
PART_STEPS = 16
"""Steps for which one part of the corpus lasts; the next part is made in another process meanwhile."""
EVALUATION_PART = 1_000_000


@dataclass(frozen=True, slots=True)
class Plan:
    """One training run."""

    role: str
    steps: int
    decay: int
    warmup: int
    batch: int
    length: int
    compile: bool
    matrix_lr: float
    other_lr: float
    out: Path
    save_every: int
    stop: int

    @property
    def end(self) -> int:
        """The step after which this command has nothing more to do."""
        return min(self.steps, self.stop)

    def factor(self, step: int) -> float:
        """Learning rate relative to its peak: warm up, hold, then fall to zero in a straight line."""
        return min(1.0, (step + 1) / self.warmup, max(0.0, (self.steps - step) / self.decay))

    def overlap_share(self, step: int) -> float:
        """How much of a draft's loss is missing overlap: more of it as the learning rate falls."""
        return 0.0 if step < self.warmup else 1.0 - self.factor(step)


def device() -> torch.device:
    """A GPU when there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def loss(model: Llama, teacher: Llama | None, rows: Rows, overlap_share: Tensor) -> Tensor:
    """Cross-entropy with the text; of a draft the divergence from its teacher and then the missing overlap.

    A sampled draft token is kept with the overlap of both distributions (Leviathan et al. 2023, theorem 3.5);
    divergence learns faster at first, because it also tells which tokens are rare.
    """
    read = rows.tokens[:, :-1]
    with torch.autocast(read.device.type, dtype=torch.bfloat16):
        out = model(read, rows.positions)
        aim = None if teacher is None else teacher(read, rows.positions)
    guess = out.float().log_softmax(-1)
    if aim is None:
        each = -guess.gather(-1, rows.tokens[:, 1:, None])[..., 0]
    else:
        wanted = aim.detach().float().log_softmax(-1)
        divergence = (wanted.exp() * (wanted - guess)).sum(-1)
        missing = (wanted.exp() - guess.exp()).abs().sum(-1) / 2
        each = divergence.lerp(missing, overlap_share)
    return (each * rows.learned).sum() / rows.learned.sum()


def part(plan: Plan, number: int, steps: int = PART_STEPS) -> Rows:
    """One part of the corpus as rows."""
    return make_rows(SEED, number, plan.batch * steps, plan.length, SHAPES["target"].context)


def cut(rows: Rows, index: int, batch: int) -> Rows:
    """The rows of one step, on the device."""
    here = slice(index * batch, (index + 1) * batch)
    return Rows(*(t[here].to(device()) for t in (rows.tokens, rows.learned, rows.positions)))


class Run:
    """A model with its optimizers, its step, and the files they are kept in."""

    def __init__(self, plan: Plan) -> None:
        torch.manual_seed(SEED)
        self.plan = plan
        self.model = Llama(SHAPES[plan.role]).to(device())
        named = list(self.model.named_parameters())
        matrices = [p for name, p in named if p.ndim == 2 and "token_embd" not in name]
        others = [p for name, p in named if p.ndim != 2 or "token_embd" in name]
        self.optimizers = [
            Muon(matrices, lr=plan.matrix_lr, weight_decay=0.02),
            AdamW(others, lr=plan.other_lr, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self.loss = torch.compile(loss) if plan.compile else loss
        self.step = 0
        self.checkpoint = plan.out / f"{plan.role}.checkpoint.pt"
        self.weights = plan.out / f"{plan.role}.pt"
        self.teacher = load(plan.out / "target.pt", "target") if plan.role == "draft" else None
        if self.checkpoint.exists():
            self.restore()

    def restore(self) -> None:
        """Continue from the checkpoint."""
        saved = torch.load(self.checkpoint, map_location=device())
        self.model.load_state_dict(saved["model"])
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.step = saved["step"]

    def save(self) -> None:
        """Write checkpoint and weights, each in one move so that a stop never leaves half a file."""
        states = [optimizer.state_dict() for optimizer in self.optimizers]
        store(self.checkpoint, {"model": self.model.state_dict(), "optimizers": states, "step": self.step})
        store(self.weights, {"model": self.model.state_dict(), "step": self.step})

    def advance(self, rows: Rows) -> float:
        """One step of training."""
        for optimizer, peak in zip(self.optimizers, (self.plan.matrix_lr, self.plan.other_lr), strict=True):
            optimizer.param_groups[0]["lr"] = peak * self.plan.factor(self.step)
        share = self.plan.overlap_share(self.step)
        value = self.loss(self.model, self.teacher, rows, torch.tensor(share, device=device()))
        value.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return value.item()

    @torch.no_grad()
    def evaluate(self, rows: Rows) -> float:
        """On text that is never trained on: the target's cross-entropy, the draft's missing overlap."""
        count = len(rows.tokens) // self.plan.batch
        steps = (cut(rows, i, self.plan.batch) for i in range(count))
        whole = torch.tensor(1.0, device=device())
        return sum(loss(self.model, self.teacher, step, whole).item() for step in steps) / count


def store(path: Path, value: dict) -> None:
    """Save beside the file, then move."""
    torch.save(value, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)


def load(path: Path, role: str) -> Llama:
    """A trained model."""
    model = Llama(SHAPES[role]).to(device())
    model.load_state_dict(torch.load(path, map_location=device())["model"])
    return model.eval().requires_grad_(False)


def train(run: Run) -> None:
    """Train to the end of the plan, saving and printing on the way."""
    plan, began, first = run.plan, time.monotonic(), run.step
    # A forked child would inherit torch's threads in an unknown state.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        held_out = part(plan, EVALUATION_PART, steps=8)
        following = pool.submit(part, plan, run.step // PART_STEPS)
        while run.step < plan.end:
            rows, following = following.result(), pool.submit(part, plan, run.step // PART_STEPS + 1)
            values = []
            while run.step < plan.end and (not values or run.step % PART_STEPS):
                values.append(run.advance(cut(rows, run.step % PART_STEPS, plan.batch)))
            report(run, values, (run.step - first) * plan.batch * plan.length / (time.monotonic() - began))
            if run.step % plan.save_every < PART_STEPS or run.step >= plan.end:
                run.save()
                print(f"held-out loss {run.evaluate(held_out):.4f} at step {run.step}", flush=True)
        following.cancel()


def report(run: Run, values: list[float], tokens_per_second: float) -> None:
    """One line of progress."""
    left = (run.plan.steps - run.step) * run.plan.batch * run.plan.length / tokens_per_second / 60
    loss_, factor = sum(values) / len(values), run.plan.factor(run.step - 1)
    print(
        f"{run.plan.role} step {run.step}/{run.plan.steps}  loss {loss_:.4f}  lr x{factor:.2f}  "
        f"{tokens_per_second:,.0f} tokens/s  {left:.1f} min left",
        flush=True,
    )


def parse() -> Plan:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("role", choices=("target", "draft"))
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument(
        "--decay", type=int, required=True, help="steps at the end in which the learning rate falls"
    )
    parser.add_argument("--warmup", type=int, default=60)
    parser.add_argument("--batch", type=int, default=24, help="rows in a step")
    parser.add_argument("--length", type=int, default=256, help="tokens in a row")
    parser.add_argument(
        "--compile", action="store_true", help="one and a half times as fast; needs a C++ compiler"
    )
    parser.add_argument("--matrix-lr", type=float, default=0.02)
    parser.add_argument("--other-lr", type=float, default=0.004)
    parser.add_argument("--save-every", type=int, default=200)
    parser.add_argument(
        "--stop", type=int, default=sys.maxsize, help="leave off at this step, to go on otherwise"
    )
    parser.add_argument("--out", type=Path, default=Path("build/demo"))
    return Plan(**vars(parser.parse_args()))


if __name__ == "__main__":
    plan = parse()
    plan.out.mkdir(parents=True, exist_ok=True)
    run = Run(plan)
    parameters = sum(p.numel() for p in run.model.parameters())
    print(f"{plan.role}: {parameters:,} parameters on {device()}", flush=True)
    train(run)
