"""Real pairs through llama.cpp: a random one, one with a sliding window, and the embedded demo."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from localspec import demo
from localspec.llama.context import Context
from localspec.llama.model import Model

LENGTH = 512


@dataclass(frozen=True)
class PairUnderTest:
    name: str
    target: Path
    draft: Path
    prompts: tuple[str, ...]


WORDS = (
    "Once upon a time there was a draft",
    "def reverse(text):",
    '{"name": "Ada", "age":',
    "The capital of France",
)


@pytest.fixture(scope="session", params=["random", "sliding-window", "demo"])
def pair(request, tiny_gguf):
    match request.param:
        case "random":
            wide = {"layers": 4, "embedding": 128, "feed_forward": 256}
            target, draft = (tiny_gguf(noise=noise, **wide) for noise in (0.0, 0.2))
        case "sliding-window":
            target, draft = (tiny_gguf(architecture="gemma2", window=16, noise=noise) for noise in (0.0, 0.1))
        case _:
            target, draft = demo.target_path(), demo.draft_path()
    return PairUnderTest(request.param, target, draft, WORDS)


@pytest.fixture(scope="session")
def opened(pair):
    """Target and draft contexts; tests begin by rolling them back to nothing."""
    with Model(pair.target) as target, Model(pair.draft) as draft:
        # One thread: models this small gain nothing from more; on a busy machine ggml's threads wait for each other.
        yield (
            Context(target, length=LENGTH, threads=1, rows_max=9),
            Context(draft, length=LENGTH, threads=1, rows_max=1),
        )
