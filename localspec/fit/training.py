"""Trains a draft on its target's likely tokens: checkpoints, held-out measurements, the best draft so far."""

import io
import pickle
import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.optim import AdamW, Muon

from localspec.errors import BadSetting
from localspec.files import write_atomically
from localspec.fit.collect import output_tokens_for
from localspec.fit.cut import NORM, OUTPUT, Shape, TensorFile, Weights
from localspec.fit.making import Plan
from localspec.fit.student import hidden_rows
from localspec.fit.texts import Text, is_held_out

STEP = 2048  # tokens of answers that one step learns from, about
WARM_UP = 20  # steps
SCALES = (1.0, 0.5, 0.35, 0.25, 0.18, 0.12)  # of the last norm, to begin with
FALL = 0.5  # share of all visits in which the learning rate falls
MATRIX_RATE, OTHER_RATE = 0.01, 0.001
JUDGED = 48  # held-out texts at most


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts side by side, filled up to the longest."""

    tokens: Tensor  # int64 [texts, length]
    rows: Tensor  # int64 [n]: those that the target's answers came from, of texts x length
    likely: Tensor  # int64 [n, KEPT]
    log_shares: Tensor  # [n, KEPT]


def batch_of(texts: Sequence[Text]) -> Batch:
    length = max(text.length for text in texts)
    tokens, rows = np.zeros((len(texts), length), np.int64), list[np.ndarray]()
    for i, text in enumerate(texts):
        read = np.concatenate((text.prompt, text.tokens[:-1]))
        tokens[i, : len(read)] = read
        first = i * length + len(text.prompt) - 1
        rows.append(np.arange(first, first + len(text.tokens)))
    return Batch(
        torch.from_numpy(tokens),
        torch.from_numpy(np.concatenate(rows)),
        torch.from_numpy(np.concatenate([text.likely for text in texts])).long(),
        torch.from_numpy(np.concatenate([text.log_shares for text in texts])).float(),
    )


class Training:
    """Weights with their optimizers, and the checkpoint that they resume from."""

    def __init__(self, source: TensorFile, plan: Plan, texts: Sequence[Text], checkpoint: Path) -> None:
        """Begins with layers of `source`, or with the checkpoint.

        Raises BadSetting without texts of both kinds, and for a checkpoint of another plan or a damaged one.
        """
        self.texts = [text for text in texts if not is_held_out(text.prompt)]
        held_out = [text for text in texts if is_held_out(text.prompt)]
        self.held_out = held_out[:: max(1, ceil(len(held_out) / JUDGED))]  # of all sources
        if not (self.texts and self.held_out):
            raise BadSetting("there are too few answers to learn from", hint="collect more: --answers N")
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.checkpoint, self.plan = checkpoint, (plan.layers, plan.output_tokens)
        saved = self._saved(plan) if checkpoint.exists() else None
        if saved:
            self.token_ids = saved["token_ids"].numpy()
        else:
            self.token_ids = output_tokens_for(source.path, self.texts, plan.output_tokens)
        self.shape, embeddings = Shape.of(source.header), source.embeddings()
        self.embeddings = torch.from_numpy(embeddings).to(self.device, torch.bfloat16)
        longest = max(text.length for text in texts)
        self.turns = torch.from_numpy(source.rotations(self.shape, longest)).to(self.device)
        tokens = 1 + max(len(embeddings), *(int(text.likely.max()) for text in texts))  # of the target
        self.row_of = torch.full((tokens,), -1, device=self.device)
        self.row_of[self.token_ids] = torch.arange(len(self.token_ids), device=self.device)
        self.weights = {
            name: torch.from_numpy(value).to(self.device).requires_grad_()
            for name, value in source.cut(range(plan.layers), self.token_ids).items()
        }
        rest = [value for name, value in self.weights.items() if value.ndim != 2 or OUTPUT in name]
        matrices = [value for name, value in self.weights.items() if value.ndim == 2 and OUTPUT not in name]
        self.optimizers = [
            Muon(matrices, lr=MATRIX_RATE, weight_decay=0.02),  # learns more per token than AdamW alone
            AdamW(rest, lr=OTHER_RATE, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self.step = self.visits = 0
        self.best = 0.0  # overlap
        if saved:
            self._restore(saved)
        else:
            self._flatten()

    def _saved(self, plan: Plan) -> dict[str, Any]:
        try:
            saved: dict[str, Any] = torch.load(self.checkpoint, map_location="cpu")
        except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise BadSetting(
                f"{self.checkpoint} cannot be read: {error}",
                hint="delete it to start again, with the same answers",
            ) from None
        if saved["plan"] != (plan.layers, plan.output_tokens):
            raise BadSetting(
                f"{self.checkpoint.parent.name} was begun with {saved['plan'][0]} layers that write "
                f"{saved['plan'][1]:,} tokens",
                hint="resume with these, or choose another name: --as NAME",
            )
        return saved

    def advance(self, planned: int) -> float:
        """One step of `planned` visits in all; returns its loss."""
        batch = self._next_batch()
        factor = min(1.0, (self.step + 1) / WARM_UP, max(0.02, (1 - self.visits / planned) / FALL))
        sure = 0.9 * (1 - factor) if self.step >= WARM_UP else 0.0
        divergence, missing, _ = self._compared(batch)
        value = (divergence * (1 - sure) + 3 * sure * missing).mean()
        value.backward()
        torch.nn.utils.clip_grad_norm_(self.weights.values(), 1.0)
        for optimizer, peak in zip(self.optimizers, (MATRIX_RATE, OTHER_RATE), strict=True):
            optimizer.param_groups[0]["lr"] = peak * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.visits += len(batch.rows)
        return float(value.detach())

    @torch.no_grad()  # type: ignore[untyped-decorator,unused-ignore]
    def judged(self) -> tuple[float, float]:
        """On held-out texts: the overlap of both distributions, and how often the first choices are equal."""
        overlap = right = count = 0.0
        for start in range(0, len(self.held_out), 16):
            _, missing, same = self._compared(batch_of(self.held_out[start : start + 16]))
            overlap += float((1 - missing).sum())
            right += float(same.sum())
            count += len(same)
        return overlap / count, right / count

    def learned(self) -> Weights:
        """The weights as they are now."""
        return {name: value.detach().cpu().numpy() for name, value in self.weights.items()}

    def save(self) -> None:
        """Write the checkpoint: all of it or nothing. Raises OSError."""
        content = io.BytesIO()
        torch.save(
            {
                "weights": {name: value.detach() for name, value in self.weights.items()},
                "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
                "counts": (self.step, self.visits, self.best),
                "token_ids": torch.from_numpy(self.token_ids),
                "plan": self.plan,
            },
            content,
        )
        write_atomically(self.checkpoint, content.getvalue())

    @torch.no_grad()  # type: ignore[untyped-decorator,unused-ignore]
    def _flatten(self) -> None:
        """Scale the last norm to the least loss: a few layers alone are much too confident."""
        norm, batch = self.weights[NORM].clone(), self._next_batch()
        found = {}
        for scale in SCALES:
            self.weights[NORM].copy_(norm * scale)
            found[scale] = float(self._compared(batch)[0].mean())
        self.weights[NORM].copy_(norm * min(found, key=lambda scale: found[scale]))

    def _restore(self, saved: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, value in self.weights.items():
                value.copy_(saved["weights"][name])
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            # An older version's Muon had fewer options; its momentum begins again.
            optimizer.load_state_dict({**state, "param_groups": optimizer.state_dict()["param_groups"]})
        self.step, self.visits, self.best = saved["counts"]

    def _next_batch(self) -> Batch:
        """Texts of similar length, with little padding; the same ones at the same step."""
        chance = random.Random(self.step)
        some = chance.sample(self.texts, min(len(self.texts), 256))
        near = sorted(some, key=lambda text: abs(text.length - some[0].length))
        chosen, tokens = list[Text](), 0
        while near and tokens < STEP:
            chosen.append(near.pop(0))
            tokens += len(chosen[-1].tokens)
        return batch_of(chosen)

    def _compared(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """For every row: divergence from the target, missing overlap, and whether the first choices are equal."""
        wanted = self.row_of[batch.likely.to(self.device)]
        shares = batch.log_shares.to(self.device).exp() * (wanted >= 0)
        with torch.autocast(self.device.type, torch.bfloat16):
            x = functional.embedding(batch.tokens.to(self.device), self.embeddings).float()
            hidden = hidden_rows(self.weights, self.shape, x, self.turns).flatten(0, 1)
            logits = functional.linear(hidden[batch.rows.to(self.device)], self.weights[OUTPUT]).float()
        said = logits.gather(1, wanted.clamp(min=0)) - logits.logsumexp(1, keepdim=True)
        missing = 1 - torch.minimum(shares, said.exp()).sum(1)
        return -(shares * said).sum(1), missing, logits.argmax(1) == wanted[:, 0]
