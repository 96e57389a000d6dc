"""Random beginnings that come back from the disk, compared with a fresh read."""

import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from localspec.caches.prompt_cache import DiskPromptCache
from localspec.caches.store import Facts, Store, finish
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.sampler.passes import common_prefix_length
from tests.gguf.models import Shape, write_gguf
from tests.llama.rows import NEAR, logits_of

KINDS = {
    "attention": {},
    "window": {"architecture": "gemma2", "window": 250, "layers": 4},
    "hybrid": {"architecture": "qwen35"},
}
ROOM = {"length": 2048, "threads": 1, "saved_bytes": 10**8, "checkpoint_bytes": 10**8}
GENERATED = 12  # tokens


def compare(folder: Path, count: int) -> Counter[str]:
    """Count restores whose texts are equal, and those that part at a near-tie; anything else is an error."""
    found: Counter[str] = Counter()
    for number, (kind, shape) in enumerate(KINDS.items()):
        path = write_gguf(folder / f"{kind}.gguf", Shape(**shape))
        with ExitStack() as opened:
            model = opened.enter_context(Model(path))
            first, other, fresh = (opened.enter_context(Context(model, **ROOM)) for _ in range(3))
            for context in (first, other):
                facts = Facts(kind, sys.executable, not context.needs_checkpoints, (), ())
                disk = DiskPromptCache(
                    Store(folder / "texts", 10**9), facts, capacity=context.capacity, everything=True
                )
                context.prompt_cache.disk = disk
            rng = np.random.default_rng(number)
            done = 0
            while done < count / len(KINDS):
                text = rng.integers(3, 250, int(rng.integers(600, 1500))).tolist()
                read(first, text, [515, *sorted(rng.integers(520, len(text), 2).tolist())])
                first.store()
                finish()
                for _ in range(4):
                    prompt = text[: rng.integers(530, len(text) + 1)] + rng.integers(3, 250, 9).tolist()
                    found[f"{kind}: {judged(other, fresh, prompt)}"] += 1
                    done += 1
    return found


def read(context, text, checkpoints):
    context.rollback(0)
    for end in (*checkpoints, len(text)):
        if end > context.length:
            context.decode(text[context.length : end], 0)
            if end < len(text):
                context.checkpoint(lasting=True)


def judged(other, fresh, prompt) -> str:
    """Compare the text after a return from the disk with that after a fresh read."""
    other.rollback(0)
    restored = other.recall(prompt, save=False)
    kept = other.rewind(common_prefix_length(other.tokens, 0, prompt[:-1]))
    fresh.rollback(0)
    texts, parted = (list(prompt[kept:]), list(prompt)), 0.0
    for _ in range(GENERATED):
        rows = [
            logits_of(context.decode(tokens, 1).rows[0])
            for context, tokens in zip((other, fresh), texts, strict=True)
        ]
        tokens = [int(row.argmax()) for row in rows]
        if tokens[0] != tokens[1]:
            parted = float(rows[1].max() - rows[1][tokens[0]])
            assert parted < NEAR, f"another text, {parted} below the likeliest"
            break
        texts = ([tokens[0]], [tokens[1]])
    return f"{'parted at a near-tie' if parted else 'equal'}{'' if restored and kept else ', nothing to restore'}"
