"""Let a target answer prompts and keep what a head needs: its features and its 64 likeliest next tokens.

    python -m tools.heads.collect --target target.gguf --layers 2 15 29 --out build/heads/smollm2 --replies 2048

Parts are written as they are made; the same command goes on after the last one.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random

import llama_cpp
import numpy as np
import torch

from tools.heads import prompts
from tools.heads.target import File, Target

PART = 32
"""Replies in one file."""
TOP = 64
"""Tokens of each row of logits that are kept."""


@dataclass(slots=True)
class Reply:
    """A text in progress: the prompt's tokens, then the reply's; a row of features for each that was read."""

    prompt: list[int]
    temperature: float
    tokens: list[int] = field(default_factory=list)
    features: list[np.ndarray] = field(default_factory=list)
    likely: list[np.ndarray] = field(default_factory=list)
    shares: list[np.ndarray] = field(default_factory=list)

    @property
    def last(self) -> int:
        """Position of the newest token."""
        return len(self.prompt) + len(self.tokens) - 1

    def note(
        self, features: np.ndarray, likely: np.ndarray, shares: np.ndarray, rng: np.random.Generator
    ) -> int:
        """Keep the rows of one pass, the last of which gives the next token."""
        self.features.append(features)
        self.likely.append(likely)
        self.shares.append(shares)
        chosen = int(likely[0])
        if self.temperature:
            weights = np.exp(shares.astype(np.float64) / self.temperature)
            chosen = int(rng.choice(likely, p=weights / weights.sum()))
        self.tokens.append(chosen)
        return chosen


class Answering:
    """A target that answers as many prompts at once as it has room for."""

    def __init__(
        self, target: Target, asked: Iterator[Reply], longest: int, ends: set[int], seed: int
    ) -> None:
        self.target, self.asked, self.longest, self.ends = target, asked, longest, ends
        self.rng = np.random.default_rng(seed)
        self.free = set(range(target.keys.shape[1]))
        self.active: dict[int, Reply] = {}

    def __iter__(self) -> Iterator[Reply]:
        while True:
            self._begin()
            if not self.active:
                return
            texts = sorted(self.active)
            tokens = [[self.active[t].tokens[-1]] for t in texts]
            positions = [[self.active[t].last] for t in texts]
            yield from self._pass(texts, tokens, positions)

    def _begin(self) -> None:
        for text in sorted(self.free):
            if (reply := next(self.asked, None)) is None:
                return
            self.free.remove(text)
            self.active[text] = reply
            list(self._pass([text], [reply.prompt], [list(range(len(reply.prompt)))]))

    def _pass(self, texts: list[int], tokens: list[list[int]], positions: list[list[int]]) -> Iterator[Reply]:
        features, logits = self.target.read(*(torch.tensor(v) for v in (texts, tokens, positions)))
        best, likely = logits.topk(TOP)
        shares = best - logits.logsumexp(-1, keepdim=True)
        kept = [t.numpy() for t in (features.half(), likely.int(), shares.half())]
        for text, *rows in zip(texts, *kept, strict=True):
            reply = self.active[text]
            if reply.note(*rows, self.rng) in self.ends or len(reply.tokens) > self.longest:
                self.free.add(text)
                yield self.active.pop(text)


def save(path: Path, replies: list[Reply]) -> None:
    """One part: texts end to end without their last tokens, and the lengths of prompts and replies."""
    arrays = {
        "tokens": np.concatenate([r.prompt + r.tokens[:-1] for r in replies]).astype(np.int32),
        "features": np.concatenate([row for r in replies for row in r.features]),
        "likely": np.array([row for r in replies for row in r.likely]),
        "shares": np.array([row for r in replies for row in r.shares]),
        "prompts": np.array([len(r.prompt) for r in replies], np.int32),
        "replies": np.array([len(r.tokens) for r in replies], np.int32),
    }
    with path.with_suffix(".part").open("wb") as file:
        np.savez(file, **arrays)
    path.with_suffix(".part").replace(path)


def asked(file: File, path: Path, source: Iterator[str], seed: int, greedy_share: float) -> Iterator[Reply]:
    """Prompts as the target reads them, cut by llama.cpp."""
    vocabulary = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    template, rng = file.chat_template(), Random(f"temperature/{seed}")
    for prompt in source:
        messages = [{"role": "user", "content": prompt}]
        text = template.render(messages=messages, add_generation_prompt=True)
        tokens = vocabulary.tokenize(text.encode(), add_bos=False, special=True)
        yield Reply(tokens, 0.0 if rng.random() < greedy_share else 0.7)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--layers", type=int, nargs=3, required=True, help="whose inputs the head reads")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--prompts", choices=prompts.TRAINING, default="mixed")
    parser.add_argument("--replies", type=int, default=2048)
    parser.add_argument("--longest", type=int, default=160, help="tokens of a reply")
    parser.add_argument("--texts", type=int, default=64, help="answered at once")
    parser.add_argument(
        "--greedy-share", type=float, default=0.7, help="of replies at temperature 0; others at 0.7"
    )
    return parser.parse_args()


def main() -> None:
    """Write parts until there are as many replies as asked for."""
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    first, began = len(list(options.out.glob("*.npz"))), time.process_time()
    (options.out / "layers.json").write_text(json.dumps(options.layers))
    file = File(options.target)
    ends = {file.fact(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")}
    target = Target(file, tuple(options.layers), options.texts, 512)
    source = prompts.TRAINING[options.prompts](first)
    questions = asked(file, options.target, source, first, options.greedy_share)
    questions = islice(questions, options.replies - first * PART)
    replies, made = iter(Answering(target, questions, options.longest, ends, first)), 0
    for number in range(first, options.replies // PART):
        if not (part := list(islice(replies, PART))):
            break
        save(options.out / f"{number:04}.npz", part)
        made += sum(len(r.tokens) for r in part)
        rate = made / (time.process_time() - began)
        print(f"part {number}: {made:,} tokens, {rate:.0f} for each second of processor time", flush=True)


if __name__ == "__main__":
    main()
