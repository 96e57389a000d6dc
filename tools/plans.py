"""Writes docs/plans.md: how every known pair would be loaded on machines that people have.

    python tools/plans.py

From what models.toml says of the files, so that nothing has to be fetched; `localspec info PAIR` plans with
llama.cpp's own sizes for the machine that it runs on.
"""

from pathlib import Path

from localspec.errors import NotEnoughMemory
from localspec.models.devices import DeviceMemory
from localspec.models.inspection import estimated_plan
from localspec.models.registry import DEMO, Pair, all_pairs

PAGE = Path(__file__).parents[1] / "docs" / "plans.md"
GIB = 1 << 30
FREE_ON_CARD = 0.95  # the rest is the driver's and the screen's
FREE_ON_APPLE = 0.75  # of all memory, by the system and other programs
METAL_SHARE = 0.667  # of all memory that Metal gives to one program
CPU = DeviceMemory("CPU", "cpu", 28 * GIB, 32 * GIB)

HEAD = """# Plans

`python -m tools.plans` writes this page from the sizes in `models.toml`: how each pair would be loaded by
[the memory plan](pairs.md#the-memory-plan). `localspec info PAIR` plans for your machine with llama.cpp's own numbers,
which are near these (`tests/pairs/test_estimate.py`).

- `8k` is a context of 8,192 tokens: without `--context` the longest of 32k, 16k and 8k that fits, or a shorter one
  that keeps the pair on the GPU.
- `45/65` are the target's layers on GPUs, with the output; the draft stays on a GPU.
- `no draft`: the target fits on the card alone, and the estimate is faster.
- `split`: the target uses both cards. A dash does not fit.

95 % of a card counts as free, 28 of 32 GB of main memory, and 75 % of unified memory (for Metal two thirds of all).
"""
TAIL = """
The caches of Gemma 4 and the layers of its 12B are unknown; they count as 0 bytes and as 32 layers. A head inside its
target (`qwen3.5-4b+mtp`, `qwen3.5-9b+mtp`) has a cache of one layer, which does not count here.
"""


def card(gib: int, number: int = 0) -> DeviceMemory:
    return DeviceMemory(f"CUDA{number}", "gpu", int(gib * GIB * FREE_ON_CARD), gib * GIB)


def apple(gib: int) -> list[DeviceMemory]:
    free, metal = int(gib * GIB * FREE_ON_APPLE), int(gib * GIB * METAL_SHARE)
    return [
        DeviceMemory("MTL0", "gpu", min(free, metal), metal, shared=True),
        DeviceMemory("CPU", "cpu", free, gib * GIB),
    ]


MACHINES = {
    **{f"{gib} GB": [card(gib), CPU] for gib in (6, 8, 12, 16, 24)},
    "2x24 GB": [card(24), card(24, 1), CPU],
    **{f"{gib} GB unified": apple(gib) for gib in (16, 32)},
}


def page() -> str:
    pairs = [pair for pair in all_pairs() if pair.name != DEMO]
    rows = [["pair", *MACHINES], ["---"] * (len(MACHINES) + 1)]
    for pair in pairs:
        rows.append([pair.name, *(cell(pair, devices) for devices in MACHINES.values())])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"{HEAD}\n{table}\n{TAIL}"


def cell(pair: Pair, devices: list[DeviceMemory]) -> str:
    """One pair on one machine, in a few characters."""
    try:
        plan = estimated_plan(pair, devices)
    except NotEnoughMemory:
        return "-"
    load = plan.target
    words = [f"{load.length // 1024}k"]
    if load.gpu_layers is not None:
        words.append(f"{load.gpu_layers}/{(pair.target.layers or 32) + 1}")
    elif len(load.devices or ()) > 1:
        words.append("split")
    if plan.draft is None and pair.draft:
        words.append("no draft")
    return ", ".join(words)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
