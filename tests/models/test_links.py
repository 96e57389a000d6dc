"""Links in the folder of models: what they lead to is the user's, and nothing of it is ever removed."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from localspec.cli import main
from localspec.errors import BadModelFile
from localspec.gguf.facts import DraftKind
from localspec.models import local_models
from localspec.models.download import fetch, part_of
from localspec.models.local_models import ModelFile
from localspec.models.registry import Pair, add_pair, all_pairs
from localspec.models.removal import leftovers, prune, remove

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform == "win32", reason="links need a right there"),
]
WAYS = pytest.mark.parametrize("way", ["absolute", "relative"])


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def disk(known, impatient, tmp_path):
    fetch(known.pair)
    disk = tmp_path / "mydisk"
    disk.mkdir()
    for file in known.pair.hub_files:
        shutil.move(file.place, disk / file.name)
    return disk


def link(place: Path, to: Path, way: str) -> None:
    place.symlink_to(to if way == "absolute" else os.path.relpath(to, place.parent))


@WAYS
def test_rm_unlinks_links_to_files_and_leaves_the_files(known, disk, capsys, way):
    for file in known.pair.hub_files:
        link(file.place, disk / file.name, way)
    before = contents(disk)
    assert known.pair.on_disk
    assert main(["rm", "tiny"]) == 0
    assert contents(disk) == before
    assert list(local_models.models_dir().rglob("*")) == []
    assert f"removed {known.pair.target.place}\n" in capsys.readouterr().out


@WAYS
def test_prune_unlinks_links_to_files_and_to_nothing(known, disk, way):
    target, draft = (file.place for file in known.pair.hub_files)
    link(target, disk / target.name, way)
    link(draft, disk / "nowhere.gguf", way)
    link(part_of(draft), disk / draft.name, way)
    before = contents(disk)
    removal = prune()
    assert set(removal.removed) == {target, draft, part_of(draft)}
    assert removal.freed == 0
    assert contents(disk) == before
    assert list(local_models.models_dir().rglob("*")) == []


@WAYS
@pytest.mark.parametrize("level", ["repository", "version"])
def test_files_in_a_folder_behind_a_link_are_left_alone(known, disk, capsys, way, level):
    for file in known.pair.hub_files:
        place = file.place
        at = disk / place.parent.parent.name / place.parent.name
        at.mkdir(parents=True)
        shutil.move(disk / file.name, at / file.name)
        for name in (part_of(place).name, "other.gguf"):
            (at / name).write_bytes(b"mine")
        linked = place.parent if level == "version" else place.parent.parent
        shutil.rmtree(linked, ignore_errors=True)
        linked.parent.mkdir(exist_ok=True)
        link(linked, at if level == "version" else at.parent, way)
    before = contents(disk)
    assert known.pair.on_disk
    assert leftovers(all_pairs()) == ()
    assert main(["rm", "--unused"]) == 0
    assert main(["rm", "tiny"]) == 0
    assert main(["rm", "--unused"]) == 0
    assert contents(disk) == before
    assert "target.gguf: a link leads to its folder" in capsys.readouterr().out


@WAYS
def test_all_models_may_lie_on_another_disk(known, disk, way, impatient):
    shutil.rmtree(local_models.models_dir())
    link(local_models.models_dir(), disk, way)
    (disk / "notes").mkdir()
    fetch(known.pair)
    removal = remove(known.pair)
    assert {path.name for path in removal.removed} == {"target.gguf", "draft.gguf"}
    assert removal.freed == known.target.size + known.draft.size
    assert {path.name for path in disk.iterdir()} == {"target.gguf", "draft.gguf", "notes"}


@WAYS
def test_a_fetched_file_that_a_pair_names_by_a_link_is_kept(known, disk, way):
    for file in known.pair.hub_files:
        shutil.move(disk / file.name, file.place)
    link(disk / "t.gguf", known.pair.target.place, way)
    add_pair(Pair("mine", DraftKind.LOOKUP, ModelFile.at(disk / "t.gguf"), None))
    removal = remove(known.pair)
    assert removal.removed == (known.pair.draft.place,)
    assert removal.kept == (("target.gguf", "mine uses it"),)
    assert prune().removed == ()
    assert (disk / "t.gguf").exists()


def test_a_damaged_file_in_a_folder_behind_a_link_is_named_and_left_alone(known, disk, impatient):
    place = known.pair.target.place
    place.parent.rmdir()
    place.parent.symlink_to(disk)
    damaged = bytes(known.pair.target.bytes)
    (disk / place.name).write_bytes(damaged)
    with pytest.raises(BadModelFile, match="is damaged") as caught:
        fetch(known.pair)
    assert "delete this file yourself" in caught.value.hint
    assert (disk / place.name).read_bytes() == damaged


def test_a_link_to_itself_is_only_a_link(known, disk):
    place = known.pair.target.place
    place.symlink_to(place.name)
    assert not known.pair.on_disk
    assert place in remove(known.pair).removed
