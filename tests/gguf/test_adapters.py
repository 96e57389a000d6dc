"""LoRA adapters: read from a flag, checked against the target before anything is loaded, and heard in the text."""

from pathlib import Path

import numpy as np
import pytest

from localspec import api
from localspec.errors import BadModelFile, BadSetting
from localspec.gguf.header import header_at
from localspec.gguf.matching import adapters_of, check_adapter
from localspec.llama.context import Context
from localspec.llama.model import Model


def row(path, *lora):
    with Model(path, lora=lora) as model, Context(model, length=128, threads=1) as context:
        return np.array(context.decode([5, 6, 7], 1).rows[0])


def test_a_text_names_files_and_scales(monkeypatch):
    monkeypatch.setattr(Path, "is_file", lambda path: path.name != "gone.gguf")
    assert adapters_of("") == ()
    assert adapters_of("a.gguf, b.gguf:0.5") == ((Path("a.gguf"), 1.0), (Path("b.gguf"), 0.5))
    assert adapters_of(r"C:\models\a.gguf") == ((Path(r"C:\models\a.gguf"), 1.0),)
    for text, said in (("a.gguf:nan", "not a scale"), ("gone.gguf", "no adapter file gone.gguf")):
        with pytest.raises(BadSetting, match=said):
            adapters_of(text)


def test_an_adapter_changes_the_rows_by_its_scale(tiny_gguf, tiny_adapter):
    plain, half, full = (row(tiny_gguf(), *[(tiny_adapter(), s)] * bool(s)) for s in (0.0, 0.5, 1.0))
    changes = [np.abs(changed - plain).max() for changed in (half, full)]
    assert 0.01 < changes[0] < changes[1]
    opposite = row(tiny_gguf(), (tiny_adapter(), 1.0), (tiny_adapter(), -1.0))
    assert np.abs(opposite - plain).max() < 1e-2 * changes[1]


def test_a_pair_is_loaded_with_its_adapter_and_says_something_else(tiny_gguf, tiny_adapter):
    said = []
    for lora in (None, str(tiny_adapter())):
        with api.load(target=tiny_gguf(), draft=tiny_gguf(noise=0.1), lora=lora, threads=1) as session:
            said.append(session.run("hello", temperature=0, max_tokens=20).tokens)
    assert said[0] != said[1]


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ({"embedding": 128}, "blk.0.attn_q.weight has another shape"),
        ({"layers": 1}, "the target has no blk.1.attn_q.weight"),
        ({"architecture": "gemma2"}, "its architecture is llama, the target's is gemma2"),
    ],
)
def test_an_adapter_for_another_model_is_refused_before_anything_is_loaded(
    tiny_gguf, tiny_adapter, monkeypatch, target, says
):
    monkeypatch.setattr("localspec.models.load.Model", lambda *_, **__: pytest.fail("loaded"))
    path = tiny_adapter(name="other")
    with pytest.raises(BadModelFile, match="is an adapter for another model: ") as caught:
        api.load(target=tiny_gguf(**target), lora=f"{path}:0.5")
    assert says in str(caught.value)
    assert "made for this model" in caught.value.hint


def test_a_file_that_is_no_adapter_is_refused(tiny_gguf, tmp_path):
    with pytest.raises(BadModelFile, match="is not a LoRA adapter"):
        check_adapter("a file", header_at(tiny_gguf()), header_at(tiny_gguf()))
    with pytest.raises(BadModelFile, match="cannot be read"):
        check_adapter("none.gguf", header_at(tmp_path / "none.gguf"), header_at(tiny_gguf()))


def test_half_of_an_adapters_matrix_is_refused(tiny_gguf, tiny_adapter, tmp_path):
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(
        tiny_adapter().read_bytes().replace(b"blk.0.attn_q.weight.lora_b", b"blk.0.attn_k.weight.lora_b")
    )
    with pytest.raises(BadModelFile, match=r"only half of blk\.0\.attn_[qk]\.weight"):
        check_adapter(cut.name, header_at(cut), header_at(tiny_gguf()))
