"""D: how far logits move between batch widths, measured and printed for every kind of test file."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from localspec import api, demo
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.threads import Contention
from localspec.measure.compare import width_difference_on, width_gap
from localspec.sampler.passes import Pass

SHAPES = {
    "llama f32": {"weights": "F32"},
    "llama f16": {},
    "llama q8_0": {"weights": "Q8_0"},
    "llama f16, 128,256 tokens": {"vocab_size": 128_256, "tied": True},
    "gemma2, window 8": {"architecture": "gemma2", "window": 8, "layers": 4},
    "mamba": {"architecture": "mamba"},
    "lfm2": {"architecture": "lfm2"},
}


def test_logits_of_the_demo_move_little_between_batch_widths(capsys):
    text = "Speculative decoding drafts tokens and verifies them. " * 3
    for path in (demo.target_path(), demo.draft_path()):
        with Model(path) as model, Context(model, length=256, threads=1) as context:
            gap = width_gap(context, model.vocab.tokenize(text, parse_special=False))
        with capsys.disabled():
            print(f"\nD = {gap:.2g}  {path.name}", end="")
        assert gap < 0.5


@pytest.mark.parametrize("name", SHAPES)
def test_logits_move_little_between_batch_widths(context, tokens, name, capsys):
    gap = width_gap(context(**SHAPES[name]), tokens(40))
    with capsys.disabled():
        print(f"\nD = {gap:.2g}  {name}", end="")
    assert gap < 0.1


class Skewed:
    """A decoder whose logits are the tokens before it, plus an error that grows with the batch width."""

    def __init__(self, begins: int = 0) -> None:
        self.length = 0
        self.begins = begins  # tokens that come before the error

    def decode(self, tokens, rows):
        start, self.length = self.length, self.length + len(tokens)
        width = len(tokens) if start >= self.begins else 1
        return Pass(start, tokens, [np.array([float(start + i), 0.01 * width]) for i in range(rows)])

    def prefill(self, tokens):
        self.length += len(tokens)
        return iter(())

    def rollback(self, keep):
        self.length = keep

    def rewind(self, keep):
        self.length = keep
        return keep


def test_the_gap_is_the_largest_difference_to_width_one():
    decoder = Skewed()
    assert width_gap(decoder, list(range(18))) == pytest.approx(0.08)
    assert decoder.length == 0


def test_the_widths_that_a_comparison_used_are_compared_as_well():
    assert width_gap(Skewed(), list(range(36)), 0, {1, 18}) == pytest.approx(0.17)


def test_widths_are_compared_where_the_text_stands_because_long_texts_have_other_kernels():
    """Such as flash attention on a CPU, which for one token divides a cache of 512 cells among its threads."""
    target = Skewed(begins=256)
    pair = SimpleNamespace(target=target, drafting=SimpleNamespace(keep_threads=lambda: None))
    assert width_difference_on(pair, list(range(262))) == pytest.approx(0.04)
    assert target.length == 0


def test_widths_are_compared_with_all_threads_while_other_programs_keep_the_cores_busy(tiny_gguf):
    with api.load(target=tiny_gguf(), threads=2, cache_gb=0) as session:
        threads = session.pair.target.threads
        threads.contention = Contention(2, limit=1, _deaf_until=math.inf)
        assert threads.wanted(1) == 1
        width_difference_on(session.pair, list(range(5, 25)))
        assert threads.now == 2
