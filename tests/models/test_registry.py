"""Pairs by name, the user's own pairs, and which files are meant when little or nothing is named."""

import json
import os
import shutil
import sys
import threading
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import localspec
from localspec.cli import main
from localspec.demo import draft_path, target_path
from localspec.errors import BadSetting, NotOnDisk, UnknownPair
from localspec.gguf.facts import DraftKind
from localspec.models import local_models
from localspec.models.download import PairNotOnDisk, fetch
from localspec.models.local_models import ModelFile
from localspec.models.names import default_pair, find, model_file, of_file
from localspec.models.registry import (
    Pair,
    add_pair,
    all_pairs,
    named,
    registered_pairs,
    registry_file,
    unreadable_pairs,
    users_folder,
    users_pairs,
)
from localspec.models.removal import prune, remove
from tests.models.conftest import pair_of

BUILT_IN = tomllib.loads(registry_file().read_text("utf-8"))["pair"]


def test_all_pairs_are_read_and_pinned():
    pairs = all_pairs()
    assert [pair.name for pair in pairs] == [table["name"] for table in BUILT_IN]
    files = [file for pair in pairs for file in pair.files if file.repo]
    assert all(len(file.revision) == 40 and len(file.sha256) == 64 and file.bytes for file in files)
    assert {pair.kind for pair in pairs} == {DraftKind.MODEL, DraftKind.MTP}
    names = [name for pair in all_pairs() for name in (pair.name, *pair.aliases)]
    assert len(names) == len(set(names))


def test_the_types_of_every_field_of_models_toml_are_right():
    for pair in registered_pairs():
        assert msgspec.convert(msgspec.to_builtins(pair), Pair) == pair


def test_every_field_of_models_toml_is_explained_in_its_head():
    text = registry_file().read_text("utf-8")
    head = text.split("\n[[pair]]")[0]
    tables = tomllib.loads(text)["pair"]
    fields = {key for pair in tables for key in pair} | {key for pair in tables for key in pair["target"]}
    assert [field for field in fields - {"target", "draft"} if field not in head] == []


def test_an_alias_in_any_case_finds_the_pair_and_an_unknown_name_suggests_the_nearest():
    assert named("Llama-3-8B+1B").name == "llama-3.1-8b+1b"
    with pytest.raises(UnknownPair) as caught:
        named("qwen2.5-coder-7b")
    assert "qwen2.5-coder-7b+0.5b" in caught.value.hint


def user_pair(text: str, name: str = "mine") -> Path:
    path = users_folder() / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


MINE = '[[pair]]\nname = "mine"\n[pair.target]\npath = "t.gguf"\n[pair.draft]\npath = "d.gguf"\n'


def test_the_users_pairs_come_on_top_and_replace_and_their_zeros_count_as_not_given():
    user_pair(MINE.replace('"mine"', '"mine"\ncontext = 0'))
    assert named("mine").context is None
    user_pair(MINE.replace("mine", "qwen3-4b+0.6b"), "qwen3-4b+0.6b")
    assert named("mine").target == ModelFile.at(users_folder() / "t.gguf")
    assert isinstance(named("qwen3-4b+0.6b").target, ModelFile)
    assert len(all_pairs()) == len(BUILT_IN) + 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("name =", "nam ="), "nam is not a known field"),
        (('name = "mine"', ""), "missing required field `name`"),
        (('"mine"', '"Mine!"'), "lower-case"),
        (('"mine"', "5"), r"Expected `str`, got `int` - at `\$.name`"),
        (('"mine"', '"mine"\nkind = "magic"'), "magic"),
        (('"mine"', '"mine"\ncontext = -5'), "negative"),
        (('"mine"', '"mine"\naliases = "a"'), r"Expected `array`, got `str` - at `\$.aliases`"),
        (('"mine"', '"mine"\ncolour = "red"'), "colour is not a known field"),
        (('path = "t.gguf"', 'repo = "a/b"\nfile = "c"\nrevision = "d"'), "bytes or sha256 is missing"),
        (('path = "t.gguf"', 'path = "t.gguf"\nsha256 = "xyz"'), "hexadecimal"),
        (('path = "t.gguf"', 'path = "~nobody-here/t.gguf"'), "~nobody-here/t.gguf"),
        (("[pair.target]", "[pair.tarket]"), "tarket is not a known field"),
        (("[[pair]]", "[[pear]]"), "has pear, but must have only"),
        (('[pair.draft]\npath = "d.gguf"\n', ""), "the kind draft-simple needs a draft file"),
        (('"mine"', '"mine"\nkind = "draft-lookup"'), "the kind draft-lookup has no draft file"),
        (('"mine"', '"other"'), "must have one pair, named mine"),
        (("[[pair]]", MINE + "[[pair]]"), "must have one pair, named mine"),
        (('"mine"', '"mine'), "not valid TOML"),
    ],
)
def test_a_mistake_in_the_users_file_is_named_with_its_place(change, says):
    path = user_pair(MINE.replace(*change))
    user_pair(MINE.replace("mine", "yours"), "yours")
    for ask in (named, find, lambda name: add_pair(replace(named("yours"), name=name))):
        with pytest.raises(BadSetting, match=says) as caught:
            ask("mine")
        assert str(path) in str(caught.value)
    assert list(users_pairs()) == ["yours"]
    assert [str(error) for error in unreadable_pairs().values()] == [str(caught.value)]


@pytest.mark.process
@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("x = " + "[" * 20_000, "not valid TOML"),
        ("x = " + "1" * 5_000, "not valid TOML"),
        ("x = 'caf\xe9'", "not valid TOML"),
        (MINE.replace("t.gguf", "t\\u0000.gguf"), "NUL"),
    ],
    ids=["deep", "long number", "Latin-1", "NUL"],
)
def test_no_file_in_the_folder_of_pairs_keeps_others_from_their_work(content, says, capsys, monkeypatch):
    for variable in ("HF_HOME", "OLLAMA_MODELS", "LLAMA_CACHE"):
        monkeypatch.setenv(variable, "~nobody-here/models")
    demos = [f'path = "{path}"' for path in (target_path(), draft_path())]
    good = MINE.replace('path = "t.gguf"', demos[0]).replace('path = "d.gguf"', demos[1])
    user_pair(good)
    user_pair(good, "mine (conflicted copy)")
    (users_folder() / "folder.toml").mkdir()
    (users_folder() / "lost.toml").symlink_to("nowhere")
    (users_folder() / "bad.toml").write_bytes(content.encode("latin-1"))
    reasons = unreadable_pairs()
    assert set(reasons) == {"bad", "folder", "lost", "mine (conflicted copy)"}
    assert says in str(reasons["bad"])
    assert find("mine").on_disk
    assert find().on_disk
    assert find("demo").on_disk
    for command in ("info demo", "info mine", "list", "pairs"):
        assert main(command.split()) == 0
    assert "mine" in capsys.readouterr().out
    assert main(["pairs", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["unreadable"] == {name: str(why) for name, why in reasons.items()}
    assert main(["rm", "mine"]) == 0
    assert not (users_folder() / "mine.toml").exists()
    assert main(["run", "--pair", "bad", "Hi"]) == 2
    assert "bad.toml" in capsys.readouterr().err


def test_a_file_that_may_not_be_looked_at_is_a_mistake_and_not_an_empty_file(monkeypatch):
    for name in ("LOCALSPEC_HOME", "HF_HOME"):
        monkeypatch.setenv(name, "/" + "x" * 300)
    assert users_pairs() == {}
    assert not any(pair.on_disk for pair in all_pairs()[1:])
    assert len(all_pairs()) == len(BUILT_IN)
    with pytest.raises(BadSetting, match="cannot be read"):
        named("mine")


@pytest.mark.parametrize(
    "file",
    ["../../x", "/x", "a/../x", r"..\..\x", "c:x", r"\\server\x", "NUL", "aux/x", "com1.gguf", "x /y", "x."],
)
def test_a_file_of_a_repository_cannot_lead_out_of_it(file):
    entry = f"repo = 'a/b'\nfile = '{file}'\nrevision = 'r'\nbytes = 1\nsha256 = '{'0' * 64}'"
    user_pair(MINE.replace('path = "t.gguf"', entry))
    with pytest.raises(BadSetting, match="not a file of a repository"):
        named("mine")
    with pytest.raises(BadSetting, match="not name a file of a repository"):
        model_file(f"a/b:{file}/x.gguf")


def test_a_known_pair_that_is_not_here_names_the_command_without_a_request(monkeypatch):
    asked = []
    monkeypatch.setattr("localspec.models.hub.listing", lambda *place: asked.append(place) or ())
    with pytest.raises(NotOnDisk, match=r"5.7 GB") as caught:
        find("llama-3-8b+1b")
    assert "localspec pull llama-3.1-8b+1b" in caught.value.hint
    for name in ("llama-3-8b+1b", "qwen3.5-9b+mtp", "gemma-4-e2b+mtp"):
        with pytest.raises(PairNotOnDisk):
            find(name)
    assert asked == []


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"target": "/nowhere/x.gguf"}, UnknownPair),
        ({"target": "/"}, UnknownPair),
        ({"target": "/dev/null"}, UnknownPair),
        ({"target": "/" + "x" * 300 + ".gguf"}, UnknownPair),
        ({"target": "a\0b.gguf"}, UnknownPair),
        ({"target": "~nobody-here/x.gguf"}, BadSetting),
        ({"draft": "/nowhere/x.gguf"}, BadSetting),
        ({"pair": "demo", "target": "x"}, BadSetting),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments, kind):
    with pytest.raises(kind):
        find(**arguments)


@pytest.fixture
def two_pairs(hub, tiny_gguf, impatient):
    """Two fetched pairs that share their draft."""
    draft = hub.add("org/draft", "draft.gguf", tiny_gguf(layers=1))
    for name, layers in (("one", 2), ("two", 3)):
        target = hub.add("org/target", f"{name}.gguf", tiny_gguf(layers=layers))
        pair = pair_of(target, draft, name)
        add_pair(replace(pair, target=replace(pair.target, file=f"{name}.gguf")))
        fetch(named(name))


@pytest.mark.process
def test_nothing_named_and_none_used_means_the_newest_on_disk(two_pairs):
    for seconds, name in enumerate(("two", "one"), 1_700_000_000):
        os.utime(named(name).target.path, (seconds, seconds))
    assert default_pair().name == "one"
    os.utime(named("two").target.path)
    assert find().name == "two"


@pytest.mark.process
def test_nothing_named_means_the_pair_used_last_that_is_here_and_the_demo_where_there_is_none(two_pairs):
    for name in ("two", "one", "demo"):
        local_models.mark_used(name)
    assert find().name == "one"
    remove(named("one"))
    assert find().name == "two"
    remove(named("two"))
    assert default_pair().name == "demo"


@pytest.mark.process
def test_a_use_while_the_clock_ran_ahead_is_not_the_last_one_for_ever(two_pairs, monkeypatch):
    ahead = time.time() + 10 * 365 * 86_400
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: ahead)
        local_models.mark_used("two")
    local_models.mark_used("one")
    assert find().name == "one"


@pytest.mark.process
def test_nothing_named_means_the_files_used_last_while_they_are_there(two_pairs, tiny_gguf, tmp_path):
    target, draft = (shutil.copy(tiny_gguf(), tmp_path / f"{name}.gguf") for name in ("mine", "small"))
    for path in (target, draft):
        os.utime(path, (0, 0))
    local_models.mark_used("one")
    for given in ((draft,), ()):
        with localspec.load(target=target, draft=next(iter(given), None)):
            pass
        assert find().paths == (str(target), *map(str, given))
    with localspec.load(target=draft, is_use=False):
        pass
    assert find() == find("MINE") == named("mine")
    assert named("mine+small").paths == (str(target), str(draft))
    os.remove(target)
    assert find().used_as == "one"


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "found"), [({"pair": "one"}, "draft.gguf"), ({"target": "own.gguf"}, "own-draft.gguf")]
)
def test_a_draft_that_was_named_is_opened_again_and_one_that_was_found_is_looked_for_again(
    two_pairs, tiny_gguf, tmp_path, monkeypatch, words, found
):
    monkeypatch.chdir(tmp_path)
    for name in ("own", "own-draft", "small"):
        shutil.copy(tiny_gguf(), f"{name}.gguf")
    for draft in (None, "small.gguf"):
        with localspec.load(**words, draft=draft):
            pass
        assert find().draft.place.name == (draft or found)
    for name in ("own-draft.gguf", "small.gguf"):
        os.remove(name)
    assert (find().draft is None) == ("target" in words)


@pytest.mark.process
def test_an_opened_file_has_a_name_that_no_pair_has_and_is_forgotten_without_being_removed(
    two_pairs, tiny_gguf, tmp_path, capsys
):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        local_models.mark_used(str(shutil.copy(tiny_gguf(), tmp_path / folder / "one.gguf")))
    assert [pair.name for pair in all_pairs() if pair.paths] == ["one-2", "one-3"]
    assert named("one-2").paths == (str(tmp_path / "b" / "one.gguf"),)
    assert main(["info", "one-2"]) == 0
    assert capsys.readouterr().out.startswith("target       one.gguf\n"), "no draft drafts for it"
    assert main(["list"]) == 0
    assert "one-3" in capsys.readouterr().out
    assert main(["rm", "one-2"]) == 0
    assert capsys.readouterr().out == (
        f"kept {tmp_path}/b/one.gguf: it is a file of yours\none-2 is no longer in the list\n"
    )
    assert named("one-2").paths == (str(tmp_path / "a" / "one.gguf"),)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows drops blanks at the end and has no such names")
@pytest.mark.parametrize(("file", "name"), [("one .gguf", "one"), ("a\nb.gguf", "a b"), (" .gguf", "model")])
def test_an_opened_file_of_any_name_has_one_line_that_finds_it(tiny_gguf, tmp_path, file, name):
    path = str(shutil.copy(tiny_gguf(), tmp_path / file))
    local_models.mark_used(path)
    assert named(name).paths == (path,)
    assert [pair.name for pair in all_pairs() if pair.paths == (path,)] == [of_file(path).name] == [name]


@pytest.mark.skipif(sys.platform == "win32", reason="pipes with a name")
def test_a_pipe_among_the_pairs_blocks_no_command():
    users_folder().mkdir(parents=True)
    os.mkfifo(users_folder() / "mine.toml")
    reading = threading.Thread(target=lambda: found.append(unreadable_pairs()), daemon=True)
    found = []
    reading.start()
    reading.join(300)
    assert "is not a file" in str(found[0]["mine"])


def test_an_added_pair_is_read_back_the_same_and_can_be_replaced(tiny_gguf):
    odd = tiny_gguf().parent / 'a "quoted" \\ path ü.gguf'
    files = [replace(ModelFile.at(odd, 5, n * 64), quant="Q8_0", license="MIT") for n in "12"]
    more = {"use": "x", "published": ("2x, by me",), "aliases": ("m",)}
    first = Pair("mine", DraftKind.MODEL, *files, listed=True, **more)
    add_pair(first)
    assert named("mine") == first
    add_pair(Pair("other", DraftKind.MODEL, first.target, first.draft))
    add_pair(Pair("mine", DraftKind.MODEL, first.target, first.draft, use="y"))
    assert named("mine").use == "y"
    assert named("other").target == first.target
    assert sorted(path.name for path in users_folder().iterdir()) == ["mine.toml", "other.toml"]


def test_a_file_that_another_process_removes_meanwhile_is_no_mistake(monkeypatch):
    user_pair(MINE)
    monkeypatch.setattr(os, "listdir", lambda folder: ["gone.toml", "mine.toml"])
    assert list(users_pairs()) == ["mine"]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX links")
@pytest.mark.parametrize("name", ["", "x.toml"])
def test_a_link_to_nothing_is_a_mistake_and_not_an_empty_file(name):
    link = users_folder() / name
    link.parent.mkdir(parents=True)
    link.symlink_to("nowhere")
    assert "cannot be read" in str(unreadable_pairs()[name.removesuffix(".toml")])
    with pytest.raises(BadSetting, match="cannot be read"):
        prune()


@pytest.mark.parametrize("name", ["My Pair", "con", "nul.x", "x."])
def test_a_name_that_cannot_be_typed_or_be_a_file_everywhere_is_refused(name):
    with pytest.raises(BadSetting, match="not a valid name"):
        add_pair(Pair(name, DraftKind.MODEL, named("demo").target, None))
