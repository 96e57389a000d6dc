"""What torch computes of a model's layers is what llama.cpp computes, and learning goes on where it was cut short."""

import numpy as np
import pytest

from localspec.errors import BadModelFile
from localspec.fit.cut import NORM, OUTPUT, ModelShape, SourceFile, export
from localspec.gguf.header import header_at
from localspec.gguf.trimmed import token_table
from tests.fit.test_trim import rows_of

SHAPES = {
    "llama": {},
    "llama, tied, Q8_0": {"tied": True, "weights": "Q8_0"},
    "qwen2": {"architecture": "qwen2"},
    "qwen3": {"architecture": "qwen3", "weights": "F32"},
    "gemma3": {"architecture": "gemma3", "window": 3},
}
WRITTEN = np.arange(0, 512, 2, dtype=np.int32)
TEXT = [5, 300, 17, 511, 42]


@pytest.fixture(params=SHAPES)
def draft(request, tiny_gguf, tmp_path, monkeypatch):
    """(target, its first and last layer as a draft that says every other token), in F16: no rounding to look past"""
    monkeypatch.setattr("localspec.fit.cut.BLOCK", 1 << 20)
    target = SourceFile(tiny_gguf(vocab_size=512, layers=3, **SHAPES[request.param]))
    path = export(
        tmp_path / "draft.gguf", target, target.cut([0, 2], WRITTEN), WRITTEN, {"answers": "12 tokens"}
    )
    return target, path


def test_a_cut_drafts_in_llama_cpp(draft):
    _, path = draft
    header = header_at(path)
    assert header.number(f"{header.text('general.architecture')}.block_count") == 2
    assert header.text("localspec.fitted.answers") == "12 tokens"
    rows = rows_of(path, TEXT, token_table(path, header))
    assert len(rows) == len(TEXT)
    assert all(set(row) <= set(WRITTEN.tolist()) for row in rows)


def test_torch_computes_what_llama_cpp_computes(draft):
    torch = pytest.importorskip("torch", reason="pip install '.[fit]'")
    from localspec.fit.training import hidden_rows

    target, path = draft
    rows = rows_of(path, TEXT, token_table(path, header_at(path)))
    again, shape = SourceFile(path), ModelShape.of(target.header)
    weights = {name: torch.from_numpy(value) for name, value in again.cut([0, 1], np.arange(256)).items()}
    assert {NORM, OUTPUT} < weights.keys()
    x = torch.from_numpy(target.tensor("token_embd.weight")[TEXT])[None]
    hidden = hidden_rows(weights, shape, x, torch.from_numpy(again.rotations(shape, len(TEXT))))
    for row, expected in zip(rows, (hidden @ weights[OUTPUT].T)[0].tolist(), strict=True):
        of_token = dict(zip(WRITTEN.tolist(), expected, strict=True))
        assert row == pytest.approx({token: of_token[token] for token in row}, abs=0.02)


@pytest.mark.parametrize("shape", [{"architecture": "gemma2"}, {"experts": 4}, {"yarn": 4.0}])
def test_other_targets_are_refused_in_a_sentence(shape, tiny_gguf):
    with pytest.raises(BadModelFile, match="no draft can be made from the layers of tiny: architecture"):
        ModelShape.of(SourceFile(tiny_gguf(vocab_size=512, **shape)).header)
