"""The ground on which tests compare texts and rows: rounding moves the logits of the test models too little to matter.

All passes are llama.cpp's own, without localspec's contexts.
"""

import platform
from pathlib import Path

import llama_cpp
import numpy as np
import pytest

from localspec import demo
from localspec.llama.model import Model
from tests.raw_passes import RawPasses, moved

ARCHITECTURES = [
    "llama",
    "gemma2",
    "gemma3",
    "gemma4",
    "qwen2",
    "qwen2vl",
    "qwen3",
    "mamba",
    "lfm2",
    "qwen35",
]
LENGTH, READ = 300, 200  # tokens of a text, and those read again at each width
MARGIN = 4  # gaps between the likeliest two tokens are at least so many times what rounding moves


def processor():
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    features = llama_cpp.llama_print_system_info().decode()
    return f"{(names or [platform.processor()])[0]} ({features})"


def moved_and_gap(model, start):
    """Return the largest move of a logit between widths of a pass, and the smallest gap of the likeliest tokens."""
    passes = RawPasses(model)
    text, gaps = list(start), []
    rows = passes.all_rows(text, 1)
    while len(text) < LENGTH:
        second, first = np.partition(rows[-1], -2)[-2:]
        gaps.append(first - second)
        text.append(int(rows[-1].argmax()))
        rows = passes.read(text[-1:])
    passes.close()
    return moved(model, text[:READ]), float(min(gaps))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rounding_turns_no_word_of_a_test_model(tiny_gguf, architecture):
    with Model(tiny_gguf(architecture=architecture, layers=4), gpu_layers=0) as model:
        check(*moved_and_gap(model, np.random.default_rng(0).integers(5, 250, 20).tolist()))


@pytest.mark.parametrize("path", [demo.target_path, demo.draft_path], ids=["target", "draft"])
def test_rounding_turns_no_word_of_the_demo_pair(path):
    with Model(path(), gpu_layers=0) as model:
        check(*moved_and_gap(model, model.vocab.tokenize("Explain what recursion is.", parse_special=False)))


def check(moved, gap):
    print(f"logits move by {moved:.2g}, the likeliest two are {gap:.2g} apart")
    assert gap >= MARGIN * moved, (
        f"logits move by {moved:.2g} and the likeliest two tokens are only {gap:.2g} apart on this processor, so "
        f"tests that compare texts may fail for no fault of the code: {processor()}"
    )
