"""Files leave the disk by `rm` and `prune`: those that another pair uses never do."""

import json
import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import huggingface_hub.file_download  # noqa: F401 - imported once, not in every process that is forked
import pytest

from localspec.cli import main
from localspec.errors import LocalspecError
from localspec.gguf.facts import DraftKind
from localspec.models import local_models
from localspec.models.download import fetch, part_of
from localspec.models.local_models import ModelFile
from localspec.models.registry import Pair, add_pair, named, users_folder
from localspec.models.removal import prune, remove
from tests.models.hub import Hub

pytestmark = pytest.mark.process

ADD = ["--target", "org/target:target.gguf", "--draft", "org/draft:draft.gguf"]


def write_described(pair: Pair, name: str, revision: str) -> None:
    """A pair as a release has it in models.toml: with a quant and a licence, which `pairs add` does not know."""
    files = "".join(
        f'[pair.{role}]\nrepo = "{file.repo}"\nfile = "{file.file}"\nrevision = "{revision}"\n'
        f'bytes = {file.bytes}\nsha256 = "{file.sha256}"\nquant = "Q4_K_M"\nlicense = "MIT"\n'
        for role, file in (("target", pair.target), ("draft", pair.draft))
    )
    users_folder().mkdir(parents=True, exist_ok=True)
    (users_folder() / f"{name}.toml").write_text(f'[[pair]]\nname = "{name}"\n{files}')


@pytest.fixture
def released(served):
    write_described(served.pair, "tiny", served.pair.target.revision)
    assert main(["pull", "tiny"]) == 0
    return served


@pytest.mark.parametrize(("goes", "stays"), [("mine", "tiny"), ("tiny", "mine")])
def test_rm_keeps_the_files_of_a_pair_that_describes_them_otherwise(released, capsys, goes, stays):
    assert main(["pairs", "add", "mine", *ADD]) == 0
    assert main(["rm", goes]) == 0
    assert named(stays).on_disk
    assert f"kept target.gguf: {stays} uses it" in capsys.readouterr().out


def test_rm_keeps_the_files_of_a_pair_with_another_pin(released):
    write_described(released.pair, "older", "f" * 40)
    assert main(["rm", "tiny"]) == 0
    assert named("older").on_disk


def test_rm_keeps_a_fetched_file_that_a_pair_names_by_its_path(released, tiny_gguf):
    fetched = released.pair.target.place
    for draft in (tiny_gguf(layers=1), tiny_gguf(layers=1).with_name("gone.gguf")):
        add_pair(Pair("mine", DraftKind.MODEL, ModelFile.at(fetched), ModelFile.at(draft)))
        remove(named("tiny"))
        prune()
        assert fetched.exists()


@pytest.fixture
def littered(released, own_home):
    """Beside a whole pair: a half pull, a whole file of another one, a file of an old pin, a file of the user's."""
    models = local_models.models_dir()
    files = (replace(file, file=f"other-{file.file}") for file in released.pair.files)
    add_pair(half := Pair("half", DraftKind.MODEL, *files))
    place = half.target.place
    part_of(place).write_bytes(bytes(1000))
    shutil.copy(released.pair.draft.place, half.draft.place)
    old = models / "org--gone" / "0123456789ab" / "old.gguf"
    old.parent.mkdir(parents=True)
    old.write_bytes(bytes(2000))
    (models / "mine.gguf").write_bytes(bytes(3000))
    return released


UNUSED = {"other-target.gguf.part": "half", "other-draft.gguf": "half", "old.gguf": None}


def test_list_shows_what_no_pair_uses_and_a_total(littered, capsys):
    capsys.readouterr()
    assert main(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {Path(row["path"]).name: row["pair"] for row in listed["unused"]} == UNUSED
    whole = littered.target.size + littered.draft.size
    demo = sum(row["bytes"] for row in listed["pairs"] if row["name"] == "demo")
    rest = listed["caches"]["bytes"] + listed["answers_bytes"] + listed["enlarged_demo_bytes"]
    assert listed["bytes"] == whole + demo + rest + 1000 + 2000 + littered.draft.size
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    assert "`localspec pull half` completes it" in printed
    assert "no pair uses it" in printed


def test_rm_unused_removes_just_that(littered, capsys):
    assert main(["rm", "--unused", "--json"]) == 0
    removed = json.loads(capsys.readouterr().out)
    assert {Path(path).name for path in removed["removed"]} == UNUSED.keys()
    assert removed["freed_bytes"] == 3000 + littered.draft.size
    left = {path.name for path in local_models.models_dir().rglob("*") if path.is_file()}
    assert left == {"target.gguf", "draft.gguf", "mine.gguf"}
    assert not (local_models.models_dir() / "org--gone").exists()
    assert main(["rm", "--unused"]) == 0
    assert "nothing to remove" in capsys.readouterr().out


def test_no_file_is_removed_that_an_unreadable_pair_may_use(served, hub, capsys):
    add_pair(served.pair)
    fetch(served.pair)
    copy = (users_folder() / f"{served.pair.name}.toml").read_text() + "new_field = 1\n"
    (users_folder() / "newer.toml").write_text(copy)
    assert main(["rm", served.pair.name]) == 0
    assert "newer.toml cannot be read and may use it" in capsys.readouterr().out
    assert len(list(local_models.models_dir().rglob("*.gguf"))) == 2
    assert main(["list"]) == 0
    assert "UNUSED" not in capsys.readouterr().out


def test_nothing_is_removed_while_a_pull_is_running(served, hub, impatient):
    add_pair(served.pair)
    refused = []

    def look(event):
        for removing in (prune, lambda: remove(served.pair)):
            with pytest.raises(LocalspecError, match="a pull is running"):
                removing()
        refused.append(event)

    fetch(served.pair, on_progress=look)
    assert refused
    assert served.pair.on_disk
    assert len(remove(served.pair).removed) == 2


def test_a_file_that_vanishes_during_a_pull_is_fetched_again(served, hub, impatient):
    fetch(served.pair)
    served.pair.draft.place.unlink()
    gone = served.pair.target.place

    def remove_the_other(event):
        if event == "target and draft fit each other":
            gone.unlink(missing_ok=True)

    fetch(served.pair, on_progress=remove_the_other)
    assert served.pair.on_disk


EFFECTS = frozenset({"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"})
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def run_until(kill: int | None, arguments: list[str], home) -> bool:
    """Whether the command was killed before its effect number `kill` on the home; an opened file counts twice."""
    process = os.fork()
    if process == 0:
        seen = 0

        def die(frame=None, *_: object) -> None:
            if frame is None or frame.f_code is not on_event.__code__:
                os.kill(os.getpid(), signal.SIGKILL)

        def on_event(event: str, details: tuple) -> None:
            nonlocal seen
            concerns = event in EFFECTS and str(details[0]).startswith(str(home))
            if kill is not None and concerns and (event != "open" or details[2] & WRITING):
                if seen == kill:
                    die()
                if event == "open" and seen + 1 == kill:
                    sys.setprofile(die)
                seen += 1 + (event == "open")

        try:
            sys.addaudithook(on_event)
            main(arguments)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(process, 0)[1])


@pytest.mark.skipif(sys.platform == "win32", reason="processes are forked")
@pytest.mark.parametrize("line", ["pairs add mine", "pull tiny", "rm tiny", "rm --unused"])
def test_a_kill_at_any_effect_on_the_disk_touches_nothing_of_another_pair(
    line, served, hub: Hub, tiny_gguf, own_home, tmp_path
):
    hub.add("org/other", "target.gguf", tiny_gguf(vocab_size=1024, layers=2))
    add = ["pairs", "add", "other", "--target", "org/other:target.gguf", *ADD[2:]]
    assert not run_until(None, add, own_home)
    assert not run_until(None, ["pull", "other"], own_home)
    other = named("other")
    written = users_folder() / "other.toml"
    notes = "# my notes\n" + written.read_text()
    written.write_text(notes)
    write_described(served.pair, "tiny", served.pair.target.revision)
    assert not run_until(None, ["pull", "tiny"], own_home)
    if line in ("pull tiny", "rm --unused"):
        part = served.pair.target.place.replace(part_of(served.pair.target.place))
        os.truncate(part, 200_000)
    files = {path: path.read_bytes() for path in (file.path for file in other.files)}
    before = tmp_path / "before"
    shutil.copytree(own_home, before)
    arguments = [*line.split(), *(ADD if "add" in line else [])]
    kill = 0
    while run_until(kill, arguments, own_home):
        assert named("other") == other, kill
        assert written.read_text() == notes, kill
        assert {path: path.read_bytes() for path in files} == files, kill
        assert not run_until(None, arguments, own_home)  # the next one finds its way
        assert named("other").on_disk, kill
        shutil.rmtree(own_home)
        shutil.copytree(before, own_home)
        kill += 1
    assert kill >= 4
