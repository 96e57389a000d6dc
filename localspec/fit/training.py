"""Train a draft in torch on its target's likely tokens, with checkpoints, and keep the best draft so far."""

import io
import pickle
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.optim import AdamW, Muon

from localspec.errors import BadSetting
from localspec.files import write_atomically
from localspec.fit.collect import Text, is_held_out, needed_tokens, texts_in
from localspec.fit.cut import NORM, OUTPUT, ModelShape, SourceFile, export
from localspec.fit.making import TrainingPlan
from localspec.gguf.trimmed import EMBEDDINGS


def hidden_rows(weights: Mapping[str, Tensor], shape: ModelShape, x: Tensor, turns: Tensor) -> Tensor:
    split, x = (*x.shape[:2], -1, shape.head_width), x * shape.scale
    for layer in range(1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blk."))):
        own = f"blk.{layer}."
        of = {name.removeprefix(own): tensor for name, tensor in weights.items() if name.startswith(own)}
        y = normed(x, of["attn_norm.weight"], shape)
        q, k, v = (
            functional.linear(y, of[f"attn_{name}.weight"], of.get(f"attn_{name}.bias")).view(split)
            for name in "qkv"
        )
        if "attn_q_norm.weight" in of:
            q, k = normed(q, of["attn_q_norm.weight"], shape), normed(k, of["attn_k_norm.weight"], shape)
        local = shape.window > 0 and (layer + 1) % shape.period > 0
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


def normed(x: Tensor, weight: Tensor, shape: ModelShape) -> Tensor:
    return functional.rms_norm(x.float(), x.shape[-1:], weight, shape.eps)


def added(x: Tensor, norm: Tensor | None, shape: ModelShape) -> Tensor:
    return x.float() if norm is None else normed(x, norm, shape)


def rotated(x: Tensor, turns: Tensor, shape: ModelShape) -> Tensor:
    """Rotate the pairs of elements in `x`, [texts, length, heads, head width], by RoPE's `turns`."""
    pairs = x.float().unflatten(-1, (-1, 2) if shape.neighbours else (2, -1))
    pairs = pairs if shape.neighbours else pairs.transpose(-1, -2)
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turns[: x.shape[1]])
    return (turned if shape.neighbours else turned.transpose(-1, -2)).flatten(-2)


def attended(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """Return the attention output of each query, over the `window` keys that end at its own position."""
    texts, length, heads, width = q.shape
    kv_heads = k.shape[2]
    rows = q.view(texts, length, kv_heads, -1, width).permute(0, 2, 3, 1, 4).flatten(2, 3)
    scores = (rows @ k.permute(0, 2, 3, 1)).unflatten(2, (-1, length)) * width**-0.5
    near = torch.ones(length, length, dtype=torch.bool, device=q.device).tril().triu(1 - window)
    shares = scores.masked_fill(~near, -torch.inf).softmax(-1).flatten(2, 3)
    mixed = shares.to(v.dtype) @ v.transpose(1, 2)
    return mixed.unflatten(2, (heads // kv_heads, length)).permute(0, 3, 1, 2, 4).flatten(2)


STEP = 2048  # approximate number of answer tokens in a training step
WARM_UP = 20  # training steps with a rising learning rate
SCALES = (1.0, 0.5, 0.35, 0.25, 0.18, 0.12)  # candidates for the initial scale of the last norm
MATRIX_RATE, OTHER_RATE = 0.01, 0.001


@dataclass(frozen=True, slots=True)
class TextBatch:
    tokens: Tensor  # int64 [texts, length]
    rows: Tensor  # int64 [n]: for each answer token, the index of its predecessor in the flat `tokens`
    likely: Tensor  # int64 [n, KEPT]: the target's likeliest tokens in place of each answer token
    log_shares: Tensor  # [n, KEPT]: log-probabilities of `likely`


def batch_of(texts: Sequence[Text]) -> TextBatch:
    length = max(text.length for text in texts)
    tokens, rows = np.zeros((len(texts), length), np.int64), list[np.ndarray]()
    for i, text in enumerate(texts):
        read = np.concatenate((text.prompt, text.tokens[:-1]))
        tokens[i, : len(read)] = read
        first = i * length + len(text.prompt) - 1
        rows.append(np.arange(first, first + len(text.tokens)))
    return TextBatch(
        torch.from_numpy(tokens),
        torch.from_numpy(np.concatenate(rows)),
        torch.from_numpy(np.concatenate([text.likely for text in texts])).long(),
        torch.from_numpy(np.concatenate([text.log_shares for text in texts])).float(),
    )


class Training:
    def __init__(
        self, source: SourceFile, plan: TrainingPlan, texts: Sequence[Text], checkpoint: Path
    ) -> None:
        """Begin with layers of `source`, or resume `checkpoint`. Raises BadSetting if the plans differ."""
        self.texts = [text for text in texts if not is_held_out(text.prompt)]
        held_out = [text for text in texts if is_held_out(text.prompt)]
        self.held_out = held_out[:: max(1, ceil(len(held_out) / 48))]  # at most 48 texts, evenly spread
        if not (self.texts and self.held_out):
            raise BadSetting("there are too few answers to learn from", hint="collect more: --answers N")
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.checkpoint, self.plan = checkpoint, (plan.layers, plan.output_tokens)
        saved = self._saved(plan) if checkpoint.exists() else None
        if saved:
            self.token_ids = saved["token_ids"].numpy()
        else:
            mass = np.zeros(1 + max(int(text.likely.max()) for text in self.texts))
            for text in self.texts:
                np.add.at(mass, text.likely.ravel(), np.exp(text.log_shares.ravel().astype(np.float64) / 2))
            written = [token for text in self.texts for token in text.tokens.tolist()]
            self.token_ids = needed_tokens(source.path, written, mass, plan.output_tokens)
        self.shape, embeddings = ModelShape.of(source.header), source.tensor(EMBEDDINGS)
        self.embeddings = torch.from_numpy(embeddings).to(self.device, torch.bfloat16)
        longest = max(text.length for text in texts)
        self.turns = torch.from_numpy(source.rotations(self.shape, longest)).to(self.device)
        # Answers may have token ids that the draft lacks, because the target's vocabulary may be larger.
        tokens = 1 + max(len(embeddings), *(int(text.likely.max()) for text in texts))
        self.row_of = torch.full((tokens,), -1, device=self.device)
        self.row_of[self.token_ids] = torch.arange(len(self.token_ids), device=self.device)
        self.weights = {
            name: torch.from_numpy(value).to(self.device).requires_grad_()
            for name, value in source.cut(range(plan.layers), self.token_ids).items()
        }
        rest = [value for name, value in self.weights.items() if value.ndim != 2 or OUTPUT in name]
        matrices = [value for name, value in self.weights.items() if value.ndim == 2 and OUTPUT not in name]
        self.optimizers = [
            Muon(matrices, lr=MATRIX_RATE, weight_decay=0.02),  # Muon learns more per token here
            AdamW(rest, lr=OTHER_RATE, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self.step = self.visits = 0
        self.best = 0.0  # the highest held-out overlap so far
        if saved is None:
            self._flatten()
            return
        with torch.no_grad():
            for name, value in self.weights.items():
                value.copy_(saved["weights"][name])
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            # Keep the options of this PyTorch, because Muon's options differ between versions.
            optimizer.load_state_dict({**state, "param_groups": optimizer.state_dict()["param_groups"]})
        self.step, self.visits, self.best = saved["counts"]

    def _saved(self, plan: TrainingPlan) -> dict[str, Any]:
        try:
            saved: dict[str, Any] = torch.load(self.checkpoint, map_location="cpu")
        except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise BadSetting(
                f"{self.checkpoint} cannot be read: {error}",
                hint="delete this file: training then starts again with the same answers",
            ) from None
        if saved["plan"] != (plan.layers, plan.output_tokens):
            raise BadSetting(
                f"{self.checkpoint.parent.name} was started with --layers {saved['plan'][0]} "
                f"and --trim {saved['plan'][1]}",
                hint="resume with the same --layers and --trim, or choose another name: --as NAME",
            )
        return saved

    def advance(self, planned: int) -> float:
        batch = self._next_batch()
        # The learning rate falls in the second half of the training.
        factor = min(1.0, (self.step + 1) / WARM_UP, max(0.02, 2 * (1 - self.visits / planned)))
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
        """Return the overlap, and the share of held-out rows where draft and target have the same likeliest token."""
        overlap = right = count = 0.0
        for start in range(0, len(self.held_out), 16):
            _, missing, same = self._compared(batch_of(self.held_out[start : start + 16]))
            overlap += float((1 - missing).sum())
            right += float(same.sum())
            count += len(same)
        return overlap / count, right / count

    def save(self) -> None:
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
        """Scale the last norm to the smallest loss, because a few layers alone give far too confident distributions."""
        norm, batch = self.weights[NORM].clone(), self._next_batch()
        found = {}
        for scale in SCALES:
            self.weights[NORM].copy_(norm * scale)
            found[scale] = float(self._compared(batch)[0].mean())
        self.weights[NORM].copy_(norm * min(found, key=lambda scale: found[scale]))

    def _next_batch(self) -> TextBatch:
        """Return random texts of similar length. The number of the step is the seed."""
        chance = random.Random(self.step)
        some = chance.sample(self.texts, min(len(self.texts), 256))
        near = sorted(some, key=lambda text: abs(text.length - some[0].length))
        chosen, tokens = list[Text](), 0
        while near and tokens < STEP:
            chosen.append(near.pop(0))
            tokens += len(chosen[-1].tokens)
        return batch_of(chosen)

    def _compared(self, batch: TextBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Return each row's loss, 1 - overlap, and whether draft and target have the same likeliest token."""
        wanted = self.row_of[batch.likely.to(self.device)]
        shares = batch.log_shares.to(self.device).exp() * (wanted >= 0)
        with torch.autocast(self.device.type, torch.bfloat16):
            x = functional.embedding(batch.tokens.to(self.device), self.embeddings).float()
            hidden = hidden_rows(self.weights, self.shape, x, self.turns).flatten(0, 1)
            logits = functional.linear(hidden[batch.rows.to(self.device)], self.weights[OUTPUT]).float()
        log_shares = logits.gather(1, wanted.clamp(min=0)) - logits.logsumexp(1, keepdim=True)
        missing = 1 - torch.minimum(shares, log_shares.exp()).sum(1)
        return -(shares * log_shares).sum(1), missing, logits.argmax(1) == wanted[:, 0]


BETWEEN_CHECKPOINTS = 60.0  # smallest number of seconds between two checkpoints
TIMES = 10  # checkpoints may take at most 1 / TIMES of the time


@dataclass(frozen=True, slots=True)
class Progress:
    visits: int
    loss: float  # loss of the last step
    overlap: float  # overlap of draft and target: the acceptance rate of sampled tokens
    right: float  # share of rows in which draft and target have the same likeliest token


def learn(
    source: Path,
    folder: Path,
    path: Path,
    plan: TrainingPlan,
    on_progress: Callable[[Progress], object],
    stopped: Callable[[], bool],
) -> Progress:
    """Train layers of `source` or of a checkpoint on the answers in `folder`. Write the best draft to `path`."""
    texts = list(texts_in(folder))
    model = SourceFile(source)
    training = Training(model, plan, texts, folder / "checkpoint.pt")
    answered = f"{sum(len(text.tokens) for text in texts):,} tokens to {len(texts):,} prompts"
    overlap, right = training.judged()
    loss, kept_at, took = 0.0, monotonic(), 0.0
    while True:
        began, over = monotonic(), training.visits >= plan.visits or stopped()
        if over or began - kept_at > max(BETWEEN_CHECKPOINTS, TIMES * took):
            overlap, right = training.judged()
            if overlap > training.best or not path.exists():
                origin = {
                    "made_of": source.name,
                    "answers": answered,
                    "visits": f"{training.visits:,}",
                    "held_out": f"overlap {overlap:.3f}, first choices equal {right:.3f}",
                }
                learned = {name: value.detach().cpu().numpy() for name, value in training.weights.items()}
                export(path, model, learned, training.token_ids, origin)
                training.best = overlap
            training.save()
            kept_at = monotonic()
            took = kept_at - began
        progress = Progress(training.visits, loss, overlap, right)
        on_progress(progress)
        if over:
            return progress
        loss = training.advance(plan.visits)
