"""Files beside a model: further parts of it, planned and run as one, and LoRA adapters, heard in the text."""

from pathlib import Path

import numpy as np
import pytest

from localspec import api
from localspec.cli import main
from localspec.errors import BadModelFile, BadSetting, UnknownPair
from localspec.gguf.header import header_at, parts_of
from localspec.gguf.matching import adapters_of, check_adapter
from localspec.llama.context import Context
from localspec.llama.load import Load
from localspec.llama.model import Model
from localspec.loading.plan import MemoryProbe
from localspec.models.local_models import ModelFile
from localspec.models.names import find
from localspec.models.registry import named

SHAPE = {"layers": 3, "seed": 7}


@pytest.fixture
def whole(tiny_gguf):
    return tiny_gguf(**SHAPE)


@pytest.fixture
def parts(tiny_gguf, tmp_path):
    """Copies, because tests damage them."""
    first = tiny_gguf(**SHAPE, tensors_in_part=8)
    copies = [tmp_path / part.name for part in parts_of(first)]
    for part, copy in zip(parts_of(first), copies, strict=True):
        copy.write_bytes(part.read_bytes())
    return copies


def test_they_have_one_header_with_all_tensors_and_are_planned_like_the_whole(parts, whole):
    assert len(parts) > 2
    assert all(list(parts_of(part)) == parts for part in parts)
    joined, single = header_at(parts[0]), header_at(whole)
    tensors = [{(t.name, t.shape, t.bytes) for t in header.tensors} for header in (joined, single)]
    assert tensors[0] == tensors[1]
    assert joined.number("split.count") is None
    with MemoryProbe() as probe:
        split, single = (probe.needs(ModelFile.at(path), Load(1024)) for path in (parts[0], whole))
    assert split == single


@pytest.mark.parametrize("named", [0, 1])
def test_they_run_whichever_is_named(parts, whole, named):
    replies = []
    for path in (parts[named], whole):
        with api.load(target=path, draft="lookup", threads=1) as session:
            replies.append(session.run("hello", temperature=0, max_tokens=12).tokens)
    assert replies[0] == replies[1]


def test_a_pair_of_them_is_known_by_a_name_and_counted_whole(parts, whole, capsys, home_of_processes):
    assert main(["pairs", "add", "two", "--target", str(parts[1]), "--draft", str(whole)]) == 0
    assert "cannot" not in capsys.readouterr().err
    assert named("two").file_bytes == sum(part.stat().st_size for part in (*parts, whole))
    with api.load("two", threads=1) as session:
        assert session.run("hello", temperature=0, max_tokens=4).tokens


def test_parts_that_are_cut_missing_renamed_or_of_another_model_are_refused(parts, tmp_path):
    last = parts[-1].read_bytes()
    parts[-1].write_bytes(last[:-2000])
    with pytest.raises(BadModelFile, match="is cut short"):
        header_at(parts[0])
    for part in (parts[-1], parts[1]):
        part.write_bytes(last)
    with pytest.raises(BadModelFile, match=f"{parts[1].name} is not part 2"):
        header_at(parts[0])
    parts[1].unlink()
    lacks = rf"{parts[1].name} is missing, one of the {len(parts)} parts"
    with pytest.raises(BadModelFile, match=lacks) as caught:
        api.load(target=parts[0])
    assert "one folder" in caught.value.hint
    renamed = parts[0].rename(tmp_path / "model.gguf")
    with pytest.raises(BadModelFile, match=rf"model\.gguf is one of {len(parts)} parts"):
        header_at(renamed)
    with pytest.raises(UnknownPair, match="does not exist"):
        find(target=renamed.with_name("other-00001-of-00002.gguf"))


def row(path, *lora):
    with Model(path, lora=lora) as model, Context(model, length=128, threads=1) as context:
        return np.array(context.decode([5, 6, 7], 1).rows[0])


def test_a_text_names_files_and_scales(monkeypatch):
    monkeypatch.setattr(Path, "is_file", lambda path: path.name != "gone.gguf")
    assert adapters_of("") == ()
    assert adapters_of("a.gguf, b.gguf:0.5") == ((Path("a.gguf"), 1.0), (Path("b.gguf"), 0.5))
    assert adapters_of(r"C:\models\a.gguf") == ((Path(r"C:\models\a.gguf"), 1.0),)
    for text, replies in (
        ("a.gguf:nan", "not a valid adapter scale"),
        ("gone.gguf", "no adapter file gone.gguf"),
    ):
        with pytest.raises(BadSetting, match=replies):
            adapters_of(text)


def test_an_adapter_changes_the_rows_by_its_scale(tiny_gguf, tiny_adapter):
    plain, half, full = (row(tiny_gguf(), *[(tiny_adapter(), s)] * bool(s)) for s in (0.0, 0.5, 1.0))
    changes = [np.abs(changed - plain).max() for changed in (half, full)]
    assert 0.01 < changes[0] < changes[1]
    opposite = row(tiny_gguf(), (tiny_adapter(), 1.0), (tiny_adapter(), -1.0))
    assert np.abs(opposite - plain).max() < 1e-2 * changes[1]


def test_a_pair_is_loaded_with_its_adapter_and_says_something_else(tiny_gguf, tiny_adapter):
    replies = []
    for lora in (None, str(tiny_adapter())):
        with api.load(target=tiny_gguf(), draft=tiny_gguf(noise=0.1), lora=lora, threads=1) as session:
            replies.append(session.run("hello", temperature=0, max_tokens=20).tokens)
    assert replies[0] != replies[1]


@pytest.mark.parametrize("target", [{"embedding": 128}, {"layers": 1}, {"architecture": "gemma2"}])
def test_an_adapter_for_another_model_is_refused(tiny_gguf, tiny_adapter, target):
    with pytest.raises(BadModelFile) as caught:
        api.load(target=tiny_gguf(**target), lora=f"{tiny_adapter(name='other')}:0.5", threads=1)
    assert "made for this model" in caught.value.hint


def test_a_file_that_is_no_adapter_is_refused(tiny_gguf, tmp_path):
    with pytest.raises(BadModelFile, match="is not a LoRA adapter"):
        check_adapter("a file", header_at(tiny_gguf()), header_at(tiny_gguf()))
    with pytest.raises(BadModelFile, match="cannot be read"):
        check_adapter("none.gguf", header_at(tmp_path / "none.gguf"), header_at(tiny_gguf()))


def test_half_of_an_adapters_matrix_is_refused(tiny_gguf, tiny_adapter, tmp_path):
    cut, whole = tmp_path / "cut.gguf", tiny_adapter().read_bytes()
    cut.write_bytes(whole.replace(b"blk.0.attn_q.weight.lora_b", b"blk.0.attn_k.weight.lora_b"))
    with pytest.raises(BadModelFile):
        row(tiny_gguf(), (cut, 1.0))
