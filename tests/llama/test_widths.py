"""D: how far logits move between batch widths, measured and printed for every kind of test file."""

import numpy as np
import pytest

from localspec import demo
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.measure.compare import width_gap
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

    def __init__(self) -> None:
        self.length = 0

    def decode(self, tokens, rows):
        start, self.length = self.length, self.length + len(tokens)
        return Pass(start, tokens, [np.array([float(start + i), 0.01 * len(tokens)]) for i in range(rows)])

    def rollback(self, keep):
        self.length = keep


def test_the_gap_is_the_largest_difference_to_width_one():
    decoder = Skewed()
    assert width_gap(decoder, list(range(18))) == pytest.approx(0.08)
    assert decoder.length == 0
