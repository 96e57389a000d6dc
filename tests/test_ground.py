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
# Numbers of tokens in a pass, whose rows are compared with those of single tokens: llama.cpp adds up in another order.
WIDTHS = (2, 4, 9, 32)
LENGTH, READ = 300, 200  # tokens of a text, and those read again at each width
MARGIN = 4  # gaps between the likeliest two tokens are at least so many times what rounding moves


def processor():
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    features = llama_cpp.llama_print_system_info().decode()
    return f"{(names or [platform.processor()])[0]} ({features})"


class Passes:
    """Passes of raw llama.cpp over one text, from an empty F32 cache without flash attention."""

    def __init__(self, model):
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_outputs_max = 512, 64, 64, 64
        params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
        params.flash_attn_type, params.swa_full = 0, True
        params.n_threads = params.n_threads_batch = 1
        self.size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model.pointer))
        self.context = llama_cpp.llama_init_from_model(model.pointer, params)
        self.batch, self.length = llama_cpp.llama_batch_init(64, 0, 1), 0

    def close(self):
        llama_cpp.llama_batch_free(self.batch)
        llama_cpp.llama_free(self.context)

    def read(self, tokens):
        self.batch.n_tokens = len(tokens)
        for at, token in enumerate(tokens):
            self.batch.token[at], self.batch.pos[at] = token, self.length + at
            self.batch.n_seq_id[at], self.batch.seq_id[at][0], self.batch.logits[at] = 1, 0, True
        assert llama_cpp.llama_decode(self.context, self.batch) == 0
        self.length += len(tokens)
        rows = (llama_cpp.llama_get_logits_ith(self.context, at) for at in range(len(tokens)))
        return [np.ctypeslib.as_array(row, (self.size,)).copy() for row in rows]

    def all_rows(self, text, width):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        self.length = 0
        parts = [text[at : at + width] for at in range(0, len(text), width)]
        return np.stack([row for part in parts for row in self.read(part)])


def moved_and_gap(model, start):
    """Return the largest move of a logit between widths of a pass, and the smallest gap of the likeliest tokens."""
    passes = Passes(model)
    text, gaps = list(start), []
    rows = passes.all_rows(text, 1)
    while len(text) < LENGTH:
        second, first = np.partition(rows[-1], -2)[-2:]
        gaps.append(first - second)
        text.append(int(rows[-1].argmax()))
        rows = passes.read(text[-1:])
    one = passes.all_rows(text[:READ], 1)
    moved = max(np.abs(passes.all_rows(text[:READ], width) - one).max() for width in WIDTHS)
    passes.close()
    return float(moved), float(min(gaps))


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
