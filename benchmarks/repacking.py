"""What repacked weights are worth on this CPU: python -m benchmarks.repacking FILE.gguf ...

One thread reads a prompt and writes tokens, with and without ggml's extra buffer types in turns, in CPU seconds because
others may be busy. A build of llama.cpp that dies with them (localspec doctor says so) cannot be measured.
"""

import statistics
import sys
from contextlib import ExitStack
from pathlib import Path
from time import process_time

from localspec.health.check import Health, assume
from localspec.llama.context import Context
from localspec.llama.devices import backend_summary
from localspec.llama.model import Model

PROMPT, TOKENS, WIDTHS, ROUNDS = 128, 8, (1, 5), 9


def opened(path: Path, extra_buffers: bool, stack: ExitStack) -> Context:
    assume(Health(extra_buffers))
    model = stack.enter_context(Model(path, gpu_layers=0))
    length = PROMPT + TOKENS * max(WIDTHS)
    return stack.enter_context(
        Context(model, length=length, threads=1)
    )  # two wait for each other beside others


def reading(context: Context) -> float:
    """Tokens of a prompt in a second."""
    context.rollback(0)
    began = process_time()
    context.decode(range(3, 3 + PROMPT), 1)
    return PROMPT / (process_time() - began)


def writing(context: Context, width: int) -> float:
    """Passes of so many tokens in a second."""
    began = process_time()
    for _ in range(TOKENS):
        context.decode(range(3, 3 + width), width)
    seconds = process_time() - began
    context.rollback(PROMPT)
    return TOKENS / seconds


def measure(path: Path) -> None:
    with ExitStack() as stack:
        contexts = {flag: opened(path, flag, stack) for flag in (True, False)}
        found: dict[tuple[str, bool], list[float]] = {}
        for _ in range(ROUNDS):
            for flag, context in contexts.items():
                found.setdefault(("prompt, tokens/s", flag), []).append(reading(context))
                for width in WIDTHS:
                    found.setdefault((f"passes of {width}, 1/s", flag), []).append(writing(context, width))
        print(f"{path.name}, {contexts[True].model.size_bytes / 1e6:.0f} MB; median of {ROUNDS} rounds")
        for name in dict.fromkeys(name for name, _ in found):
            repacked, plain = (statistics.median(found[name, flag]) for flag in (True, False))
            print(f"    {name:<18} {repacked:8.1f} repacked  {plain:8.1f} plain  {repacked / plain:5.2f}x")


def main() -> None:
    print(backend_summary().system_info)
    for path in map(Path, sys.argv[1:]):
        measure(path)


if __name__ == "__main__":
    main()
