"""Train an EAGLE-3 or MTP head on what `collect.py` kept of a target, and write it as GGUF.

    python -m tools.heads.train --target target.gguf --data build/heads/smollm2 \
        --out build/heads/smollm2.gguf --minutes 60

The same command goes on from the last checkpoint; the learning rate falls over the last third of the minutes,
which are minutes of processor time. Parts that arrive meanwhile are read too.
"""

import argparse
import json
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.optim import AdamW, Muon

from tools.heads.export import WRITE
from tools.heads.head import Eagle3, Mtp, Scale
from tools.heads.target import File

HEADS = {"eagle3": Eagle3, "mtp": Mtp}
HELD_OUT = 2
"""The first parts are for evaluation."""


@dataclass(frozen=True, slots=True)
class Text:
    """One text; row r of `likely` and `shares` is what the target says after token `prompt + r - 1`."""

    tokens: Tensor
    features: Tensor
    likely: Tensor
    shares: Tensor
    prompt: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts of like length side by side; after row P of a head comes what the target says after token P + 1."""

    tokens: Tensor
    features: Tensor
    likely: Tensor
    shares: Tensor
    learned: Tensor


def read_part(path: Path) -> list[Text]:
    """The texts of one file."""
    part, texts, token, row = np.load(path), [], 0, 0
    arrays = {name: torch.from_numpy(part[name]) for name in ("tokens", "features", "likely", "shares")}
    for prompt, reply in zip(part["prompts"].tolist(), part["replies"].tolist(), strict=True):
        tokens, rows = slice(token, token + prompt + reply - 1), slice(row, row + reply)
        token, row = tokens.stop, rows.stop
        if reply > 4:
            found = (
                arrays["tokens"][tokens],
                arrays["features"][tokens],
                arrays["likely"][rows],
                arrays["shares"][rows],
            )
            texts.append(Text(found[0].long(), found[1], found[2].long(), found[3], prompt))
    return texts


def batch_of(texts: list[Text]) -> Batch:
    """Texts filled up to the longest."""
    length = max(len(t.tokens) for t in texts)

    def filled(rows: Tensor, before: int) -> Tensor:
        end = length - len(rows) - before
        return functional.pad(rows, (0, 0) * (rows.ndim - 1) + (before, end))

    said = [(filled(t.likely, t.prompt - 1), filled(t.shares, t.prompt - 1)) for t in texts]
    learned = [filled(torch.ones(len(t.likely), dtype=torch.bool), t.prompt - 1) for t in texts]
    return Batch(
        torch.stack([filled(t.tokens, 0) for t in texts]),
        torch.stack([filled(t.features, 0) for t in texts]),
        torch.stack([likely for likely, _ in said])[:, 1:],
        torch.stack([shares for _, shares in said])[:, 1:],
        torch.stack(learned)[:, 1:],
    )


def draft_words(texts: list[Text], size: int, vocabulary: int) -> Tensor:
    """The tokens that the target says most, in order of their ids."""
    counts = torch.zeros(vocabulary)
    for text in texts:
        counts.index_add_(0, text.likely.flatten(), text.shares.float().exp().flatten())
    return counts.topk(min(size, vocabulary)).indices.sort().values


class Trainer:
    """A head with its optimizers, the words it drafts, and its checkpoint."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.manual_seed(2026)
        self.options, self.file = options, File(options.target)
        self.layers = tuple(json.loads((options.data / "layers.json").read_text()))
        self.texts: list[Text] = []
        self.held_out: list[Text] = []
        self.parts: set[Path] = set()
        self.read_parts()
        self.checkpoint = options.out.with_suffix(".pt")
        saved = torch.load(self.checkpoint) if self.checkpoint.exists() else None
        words = (
            saved["words"] if saved else draft_words(self.texts, self.drafted, self.file.shape().vocabulary)
        )
        self.words = words
        self.draft_id = torch.full((self.file.shape().vocabulary,), -1).scatter(
            0, words, torch.arange(len(words))
        )
        sample = torch.cat([t.features[4:] for t in self.texts[:64]])
        self.head = HEADS[options.kind](self.file, Scale.of(sample), words)
        learned = [(n, p) for n, p in self.head.named_parameters() if p.requires_grad]
        matrices = [p for n, p in learned if p.ndim == 2 and n != "output"]
        others = [p for n, p in learned if p.ndim != 2 or n == "output"]
        self.optimizers = [
            Muon(matrices, lr=0.0, weight_decay=0.0),
            AdamW(others, lr=0.0, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self.step, self.spent = 0, 0.0
        if saved:
            self.head.load_state_dict(saved["head"])
            for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
                optimizer.load_state_dict(state)
            self.step, self.spent = saved["step"], saved["spent"]

    @property
    def drafted(self) -> int:
        """Tokens that the head drafts: an MTP head speaks through its target's output."""
        return self.options.vocabulary if self.options.kind == "eagle3" else self.file.shape().vocabulary

    def read_parts(self) -> None:
        """Parts that are new since the last time."""
        for path in sorted(set(self.options.data.glob("*.npz")) - self.parts):
            self.parts.add(path)
            texts = read_part(path)
            if int(path.stem) < HELD_OUT:
                self.held_out += texts
            else:
                self.texts += texts

    def save(self) -> None:
        """Write the checkpoint."""
        saved = {
            "head": self.head.state_dict(),
            "optimizers": [o.state_dict() for o in self.optimizers],
            "words": self.words,
            "step": self.step,
            "spent": self.spent,
        }
        torch.save(saved, self.checkpoint.with_suffix(".part"))
        self.checkpoint.with_suffix(".part").replace(self.checkpoint)

    @property
    def progress(self) -> float:
        """Share of the minutes that is spent."""
        return min(1.0, self.spent / 60 / self.options.minutes)

    def factor(self) -> float:
        """Learning rate relative to its peak."""
        return min(1.0, (self.step + 1) / 30, max(0.02, (1 - self.progress) / self.options.decay))

    @property
    def depths(self) -> int:
        """At first one: what the first draft learns serves all, and each depth costs as much again."""
        return 1 if self.progress < self.options.shallow else self.options.depths

    def losses(self, batch: Batch, depths: int) -> tuple[Tensor, Tensor]:
        """Loss summed over depths, and how often [depths] the head's first choice is the target's."""
        wanted = self.draft_id[batch.likely]
        shares = batch.shares.float().exp() * (wanted >= 0)
        missing = 0.9 * (1 - self.factor()) if self.step >= 30 else 0.0
        total, right = torch.zeros(()), []
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = self.head(batch.tokens, batch.features, depths)
        for depth, rows in enumerate(hidden):
            learned = batch.learned.clone()
            learned[:, :depth] = False
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = self.head.logits(rows[learned])
            guess = logits.float().log_softmax(-1)
            said = guess.gather(1, wanted[learned].clamp(min=0))
            aim = shares[learned]
            crossed = -(aim * said).sum(-1)
            lacking = 1 - torch.minimum(aim, said.exp()).sum(-1)
            total = (
                total + self.options.fade**depth * (crossed * (1 - missing) + 3 * missing * lacking).mean()
            )
            first = torch.zeros_like(learned)
            first[learned] = guess.argmax(-1) == wanted[learned][:, 0]
            right.append(first)
        return total, torch.stack(right)

    def advance(self) -> float:
        """One step on texts of like length."""
        began = time.process_time()
        length = len(random.choice(self.texts).tokens)
        near = sorted(
            random.sample(self.texts, min(len(self.texts), 4 * self.options.batch)),
            key=lambda t: abs(len(t.tokens) - length),
        )
        value, _ = self.losses(batch_of(near[: self.options.batch]), self.depths)
        value.backward()
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
        for optimizer, peak in zip(
            self.optimizers, (self.options.matrix_lr, self.options.other_lr), strict=True
        ):
            optimizer.param_groups[0]["lr"] = peak * self.factor()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.spent += time.process_time() - began
        return value.item()

    def state(self) -> str:
        """How far it is."""
        return f"step {self.step}, {self.spent:.0f} s of processor time, {len(self.texts)} texts"

    @torch.no_grad()
    def evaluate(self) -> str:
        """Share of right first choices at each depth, and tokens a pass if all rows were greedy."""
        hits, chains, count = torch.zeros(self.options.depths), 0.0, 0
        for start in range(0, len(self.held_out), self.options.batch):
            batch = batch_of(self.held_out[start : start + self.options.batch])
            _, right = self.losses(batch, self.options.depths)
            hits += right.float().sum((1, 2))
            chain = right[0]
            for depth in range(self.options.depths):
                # The chain that began at row P ends at row P + depth.
                chain = right[0] if depth == 0 else chain[:, :-1] & right[depth][:, depth:]
                chains += float(chain.sum())
            count += int(batch.learned.sum())
        rates = " ".join(f"{h / count:.1%}" for h in hits.tolist())
        return f"held-out right {rates}, tokens a pass {1 + chains / count:.2f}"


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kind", choices=HEADS, default="eagle3")
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument(
        "--decay", type=float, default=0.35, help="share of the minutes in which the rate falls"
    )
    parser.add_argument("--vocabulary", type=int, default=8192, help="tokens that the head drafts")
    parser.add_argument("--depths", type=int, default=3)
    parser.add_argument("--shallow", type=float, default=0.5, help="share of the minutes with one depth")
    parser.add_argument(
        "--fade", type=float, default=0.8, help="weight of each depth relative to the one before"
    )
    parser.add_argument("--batch", type=int, default=8, help="texts in a step")
    parser.add_argument("--matrix-lr", type=float, default=0.01)
    parser.add_argument("--other-lr", type=float, default=0.001)
    parser.add_argument("--type", choices=("f16", "q8_0", "q4_0"), default="q8_0")
    parser.add_argument(
        "--report", type=float, default=20.0, help="seconds of processor time between checkpoints"
    )
    return parser.parse_args()


def main() -> None:
    """Train until the minutes are spent, or until asked to end, and write the head."""
    trainer = Trainer(parse())
    saved, values = trainer.spent, []
    print(
        f"{len(trainer.texts)} texts, {sum(p.numel() for p in trainer.head.parameters()):,} parameters",
        flush=True,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while trainer.progress < 1:
            values.append(trainer.advance())
            if trainer.spent - saved > trainer.options.report:
                trainer.save()
                trainer.read_parts()
                print(f"{trainer.state()}, loss {sum(values) / len(values):.3f}", flush=True)
                saved, values = trainer.spent, []
    except KeyboardInterrupt:
        print("asked to end", flush=True)
    trainer.save()
    write = WRITE[trainer.options.kind]
    write(
        trainer.options.out, trainer.file, trainer.head, trainer.words, trainer.layers, trainer.options.type
    )
    print(f"{trainer.state()}, {trainer.evaluate()}", flush=True)


if __name__ == "__main__":
    main()
