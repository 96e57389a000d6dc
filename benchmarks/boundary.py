"""What the C boundary itself costs in each cycle, apart from llama.cpp: python benchmarks/boundary.py"""

import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parent.parent))  # tests.gguf writes the model

from localspec.llama.batch import Batch
from localspec.llama.context import Context
from localspec.llama.model import Model
from tests.gguf import Shape, write_gguf

VOCAB_SIZE, PREFIX, ROUNDS = 128_256, 100, 300


def microseconds(work: Callable[[], object], repeat: int = 2000) -> float:
    """The median cost of one call, from batches of calls."""
    times = []
    for _ in range(20):
        began = perf_counter()
        for _ in range(repeat // 20):
            work()
        times.append((perf_counter() - began) / (repeat // 20))
    return statistics.median(times) * 1e6


def cycle(context: Context, width: int) -> tuple[float, float]:
    """Median microseconds outside and inside llama.cpp of one decode of `width` rows and its rollback."""
    outside, inside = [], []
    for _ in range(ROUNDS):
        busy, began = context.busy_seconds, perf_counter()
        context.decode(range(3, 3 + width), width)
        context.rollback(PREFIX)
        total = perf_counter() - began
        inside.append(context.busy_seconds - busy)
        outside.append(total - inside[-1])
    return statistics.median(outside) * 1e6, statistics.median(inside) * 1e6


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write_gguf(Path(folder) / "wide.gguf", Shape(vocab_size=VOCAB_SIZE, tied=True))
        with Model(path) as model, Context(model, length=512, threads=1) as context:
            list(context.prefill(list(range(3, 3 + PREFIX))))
            batch, five = Batch(512), list(range(5))
            print(f"vocabulary of {VOCAB_SIZE:,} tokens, one thread, microseconds (medians)")
            print(f"fill a batch of 5       {microseconds(lambda: batch.fill(five, PREFIX, 5)):8.2f}")
            print(f"piece, known            {microseconds(lambda: model.vocab.piece(77)):8.2f}")
            print(f"is_end                  {microseconds(lambda: model.vocab.is_end(77)):8.2f}")
            for width in (1, 2, 5, 9):
                outside, inside = cycle(context, width)
                print(f"decode and roll back {width}  {outside:8.2f}  beside {inside:.0f} in llama.cpp")


if __name__ == "__main__":
    main()
