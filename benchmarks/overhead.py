"""What Python costs in a cycle: `other_seconds` at depth 4 on a vocabulary of 128,256 tokens.

    python -m benchmarks.overhead [--cycles 400]

The models are tiny and random, so that llama.cpp's share is small; `other_seconds` is everything but calls into it.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

import localspec
from localspec.events import Cycle
from tests.gguf import Shape, write_gguf

SETTINGS = {
    "greedy": {"temperature": 0.0},
    "T=0.8, top-k 40, top-p 0.95, min-p 0.05": {
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.05,
    },
    "T=0.8, top-k off": {"temperature": 0.8, "top_k": 0, "top_p": 0.95, "min_p": 0.05},
    "T=0.8, top-k 40, coupled": {"temperature": 0.8, "top_k": 40, "rule": "coupled"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, default=400)
    cycles = parser.parse_args().cycles
    with tempfile.TemporaryDirectory() as folder:
        path = write_gguf(Path(folder) / "wide.gguf", Shape(vocab_size=128_256, context_length=8192))
        print("| settings | cycles | median other_seconds | p95 |")
        print("|---|---|---|---|")
        with localspec.load(target=path, draft=path, context_length=8192) as session:
            for name, options in SETTINGS.items():
                others = overheads(session, cycles, options)
                median, p95 = np.quantile(others, [0.5, 0.95]) * 1000
                print(f"| {name} | {len(others)} | {median:.2f} ms | {p95:.2f} ms |")


def overheads(session: localspec.Session, cycles: int, options: dict) -> np.ndarray:
    """other_seconds of cycles that drafted four tokens, the first ones left out as warm-up."""
    found: list[float] = []
    for seed in range(cycles):
        events = session.stream_complete("a b c d", seed=seed, max_tokens=300, depth=4, **options)
        full = [event.other_seconds for event in events if isinstance(event, Cycle) and event.drafted == 4]
        found += full[2:]
        if len(found) >= cycles:
            break
    return np.array(found[:cycles])


if __name__ == "__main__":
    main()
