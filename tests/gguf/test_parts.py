"""Models in several files: planned, checked, tried and run like one."""

import pytest

from localspec import api
from localspec.cli import main
from localspec.errors import BadModelFile, UnknownPair
from localspec.gguf.header import header_at, parts_of
from localspec.models.inspection import file_bytes
from localspec.models.memory import Load
from localspec.models.names import find
from localspec.models.probe import Probe
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


def test_the_parts_are_found_by_the_name_of_one(parts):
    assert len(parts) > 2
    assert all(list(parts_of(part)) == parts for part in parts)


def test_they_have_one_header_with_all_tensors(parts, whole):
    joined, single = header_at(parts[0]), header_at(whole)
    assert {(t.name, t.shape, t.bytes) for t in joined.tensors} == {
        (t.name, t.shape, t.bytes) for t in single.tensors
    }
    assert sum(tensor.bytes for tensor in joined.tensors) == sum(tensor.bytes for tensor in single.tensors)
    assert joined.number("split.count") is None


def test_they_are_planned_like_the_whole(parts, whole):
    with Probe() as probe:
        assert probe.needs(header_at(parts[0]), Load(1024)) == probe.needs(header_at(whole), Load(1024))


def test_a_part_that_was_cut_is_a_sentence(parts):
    header_at(parts[0])
    parts[-1].write_bytes(parts[-1].read_bytes()[:-2000])
    with pytest.raises(BadModelFile, match="is cut short"):
        header_at(parts[0])


@pytest.mark.parametrize("named", [0, 1])
def test_they_run_whichever_is_named(parts, whole, named):
    said = []
    for path in (parts[named], whole):
        with api.load(target=path, draft="lookup", threads=1) as session:
            said.append(session.run("hello", temperature=0, max_tokens=12).tokens)
    assert said[0] == said[1]


def test_a_pair_of_them_is_known_by_a_name_and_counted_whole(parts, whole, capsys, home_of_processes):
    assert main(["pairs", "add", "two", "--target", str(parts[1]), "--draft", str(whole)]) == 0
    assert "cannot" not in capsys.readouterr().err
    assert file_bytes(named("two")) == sum(part.stat().st_size for part in (*parts, whole))
    with api.load("two", threads=1) as session:
        assert session.run("hello", temperature=0, max_tokens=4).tokens


def test_a_missing_part_is_named_before_anything_is_loaded(parts):
    parts[1].unlink()
    with pytest.raises(
        BadModelFile, match=rf"{parts[1].name} is missing, one of the {len(parts)} parts"
    ) as caught:
        api.load(target=parts[0])
    assert "one folder" in caught.value.hint
    with pytest.raises(UnknownPair, match="does not exist"):
        find(target=parts[0].with_name("other-00001-of-00002.gguf"))


def test_a_part_of_another_model_is_not_taken(parts):
    parts[1].write_bytes(parts[2].read_bytes())
    with pytest.raises(BadModelFile, match=f"{parts[1].name} is not part 2"):
        header_at(parts[0])


def test_a_part_that_is_not_called_one_is_refused(parts, tmp_path):
    renamed = tmp_path / "model.gguf"
    renamed.write_bytes(parts[0].read_bytes())
    with pytest.raises(BadModelFile, match=rf"model\.gguf is one of {len(parts)} parts"):
        header_at(renamed)
