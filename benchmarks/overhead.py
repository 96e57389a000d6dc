"""What Python costs in a cycle: `other_seconds` at depth 4 on a vocabulary of 128,256 tokens.

    python -m benchmarks.overhead [--cycles 400]

The models are tiny and random, so that llama.cpp's share is small; `other_seconds` is everything but calls into it.
A last line has what a prediction head adds: the hidden rows of five tokens, 4,096 columns wide, read from llama.cpp's
buffers, remembered, and given to the head.
"""

import argparse
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np

import localspec
from localspec.drafters.head import HeadText
from localspec.events import Cycle
from localspec.llama.rows import rows_at
from localspec.sampler.passes import Pass
from tests.gguf import Shape, write_gguf

WIDTH, COLUMNS = 5, 4096
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
    for layers in (1, 3):
        median, p95 = np.quantile(hidden_rows(cycles, layers), [0.5, 0.95]) * 1000
        print(f"| hidden rows of {layers} layers | {cycles} | {median:.3f} ms | {p95:.3f} ms |")


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


def hidden_rows(cycles: int, layers: int) -> np.ndarray:
    """Seconds of a cycle that reads five rows of so many layers, four tokens of which were drafted and kept."""
    buffers = [np.random.default_rng(0).random((WIDTH, COLUMNS), dtype=np.float32) for _ in range(layers)]
    known, batch = HeadText(), np.zeros((WIDTH, layers * COLUMNS), np.float32)
    found, text = [], [0]
    for _ in range(cycles + 10):
        tokens = [text[-1], 1, 2, 3, 4]
        began = perf_counter()
        parts = [rows_at(buffer.ctypes.data, WIDTH, COLUMNS) for buffer in buffers]
        hidden = np.concatenate(parts, axis=1)
        known.observe(Pass(len(text) - 1, tokens, hidden=hidden), WIDTH)
        known.ends_with([*text, *tokens[1:], 5])
        batch[:] = known.hidden(known.end)
        known.hold(known.end)
        found.append(perf_counter() - began)
        text = [*text, *tokens[1:], 5]
    return np.array(found[10:])


if __name__ == "__main__":
    main()
