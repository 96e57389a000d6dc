"""Pairs by name, the user's own pairs, and which files are meant when little or nothing is named."""

import os
import shutil
import sys
import time
import tomllib
from pathlib import Path

import pytest

import localspec
from localspec.cli import main
from localspec.errors import BadSetting, NotOnDisk, UnknownPair
from localspec.gguf.facts import DraftKind
from localspec.models import places
from localspec.models.download import fetch
from localspec.models.names import PairNotOnDisk, asked_as, default_pair, find, model_file
from localspec.models.places import ModelFile
from localspec.models.registry import (
    Pair,
    add_pair,
    all_pairs,
    named,
    registry_file,
    stays_inside,
    take_out,
    users_folder,
    users_pairs,
)
from localspec.models.removal import remove


def test_all_pairs_are_read_and_pinned():
    pairs = all_pairs()
    assert len(pairs) == 26
    files = [file for pair in pairs for file in pair.files if file.repo]
    assert all(len(file.revision) == 40 and len(file.sha256) == 64 and file.bytes for file in files)
    assert {pair.kind for pair in pairs} == {DraftKind.MODEL, DraftKind.MTP}


def test_names_and_aliases_are_unique():
    names = [name for pair in all_pairs() for name in (pair.name, *pair.aliases)]
    assert len(names) == len(set(names))


def test_every_field_of_models_toml_is_explained_in_its_head():
    text = registry_file().read_text("utf-8")
    head = text.split("\n[[pair]]")[0]
    tables = tomllib.loads(text)["pair"]
    fields = {key for pair in tables for key in pair} | {key for pair in tables for key in pair["target"]}
    assert [field for field in fields - {"target", "draft"} if field not in head] == []


def test_an_alias_in_any_case_finds_the_pair():
    assert named("Llama-3-8B+1B").name == "llama-3.1-8b+1b"


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(UnknownPair) as caught:
        named("qwen2.5-coder-7b")
    assert "qwen2.5-coder-7b+0.5b" in caught.value.hint


def user_pair(text: str, name: str = "mine") -> Path:
    path = users_folder() / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


MINE = '[[pair]]\nname = "mine"\n[pair.target]\npath = "t.gguf"\n[pair.draft]\npath = "d.gguf"\n'


def test_the_users_pairs_come_on_top_and_replace():
    user_pair(MINE)
    user_pair(MINE.replace("mine", "qwen3-4b+0.6b"), "qwen3-4b+0.6b")
    assert named("mine").target == ModelFile.at(users_folder() / "t.gguf")
    assert isinstance(named("qwen3-4b+0.6b").target, ModelFile)
    assert len(all_pairs()) == 27


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("name =", "nam ="), "nam is not a field"),
        (('name = "mine"', ""), "missing required field `name`"),
        (('"mine"', '"Mine!"'), "lower-case"),
        (('"mine"', "5"), r"Expected `str`, got `int` - at `\$.name`"),
        (('"mine"', '"mine"\nkind = "magic"'), "magic"),
        (('"mine"', '"mine"\ncontext = -5'), "negative"),
        (('"mine"', '"mine"\naliases = "a"'), r"Expected `array`, got `str` - at `\$.aliases`"),
        (('"mine"', '"mine"\ncolour = "red"'), "colour is not a field"),
        (('path = "t.gguf"', 'repo = "a/b"\nfile = "c"\nrevision = "d"'), "bytes and sha256 are missing"),
        (('path = "t.gguf"', 'path = "t.gguf"\nsha256 = "xyz"'), "hexadecimal"),
        (('path = "t.gguf"', 'path = "~nobody-here/t.gguf"'), "~nobody-here/t.gguf"),
        (("[pair.target]", "[pair.tarket]"), "tarket is not a field"),
        (("[[pair]]", "[[pear]]"), "nothing but"),
        (('[pair.draft]\npath = "d.gguf"\n', ""), "draft-simple goes with a draft file"),
        (('"mine"', '"mine"\nkind = "draft-lookup"'), "draft-lookup goes without a draft file"),
        (('"mine"', '"other"'), "does not hold one pair of its name"),
        (("[[pair]]", MINE + "[[pair]]"), "does not hold one pair of its name"),
        (('"mine"', '"mine'), "not valid TOML"),
    ],
)
def test_a_mistake_in_the_users_file_is_named_with_its_place(change, says):
    path = user_pair(MINE.replace(*change))
    with pytest.raises(BadSetting, match=says) as caught:
        all_pairs()
    assert str(path) in str(caught.value)


def test_a_file_that_may_not_be_looked_at_is_a_mistake_and_not_an_empty_file(monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", "/" + "x" * 300)
    with pytest.raises(BadSetting, match="cannot be read"):
        users_pairs()


@pytest.mark.parametrize(
    "file",
    ["../../x", "/x", "a/../x", r"..\..\x", "c:x", r"\\server\x", "NUL", "aux/x", "com1.gguf", "x /y", "x."],
)
def test_a_file_of_a_repository_cannot_lead_out_of_it(file):
    entry = f"repo = 'a/b'\nfile = '{file}'\nrevision = 'r'\nbytes = 1\nsha256 = '{'0' * 64}'"
    user_pair(MINE.replace('path = "t.gguf"', entry))
    with pytest.raises(BadSetting, match="not a file of a repository"):
        all_pairs()
    with pytest.raises(BadSetting, match="not name a file of a repository"):
        model_file(f"a/b:{file}/x.gguf")


def test_a_known_pair_that_is_not_here_names_the_command():
    with pytest.raises(NotOnDisk, match=r"5.7 GB") as caught:
        find("llama-3-8b+1b")
    assert "localspec pull llama-3.1-8b+1b" in caught.value.hint
    assert isinstance(caught.value, PairNotOnDisk)


def test_every_known_pair_can_be_run():
    for name in ("qwen3.5-9b+mtp", "gemma-4-e2b+mtp"):
        with pytest.raises(PairNotOnDisk):
            find(name)


def test_files_are_taken_as_they_are_given(tiny_gguf):
    files = find(target=tiny_gguf(), draft=tiny_gguf(layers=1))
    assert [file.path for file in files.files] == [tiny_gguf(), tiny_gguf(layers=1)]


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
    targets = [
        hub.add("org/target", f"{name}.gguf", tiny_gguf(layers=n)) for name, n in (("one", 2), ("two", 3))
    ]
    draft = hub.add("org/draft", "draft.gguf", tiny_gguf(layers=1))
    pairs = []
    for name, target in zip(("one", "two"), targets, strict=True):
        files = [
            ModelFile(
                f"org/{repo}", file, "0123456789abcdef0123456789abcdef01234567", served.size, served.sha256
            )
            for repo, file, served in (("target", f"{name}.gguf", target), ("draft", "draft.gguf", draft))
        ]
        pairs.append(Pair(name, DraftKind.MODEL, *files))
        add_pair(pairs[-1])
        fetch(named(name))
    return pairs


def test_a_cache_that_cannot_be_looked_into_is_empty(monkeypatch):
    monkeypatch.setenv("HF_HOME", "/" + "x" * 300)
    assert not named("llama-3-8b+1b").on_disk


def test_nothing_named_means_the_demo_where_there_is_nothing_else():
    assert default_pair().name == "demo"


def test_nothing_named_means_the_only_pair_on_disk(two_pairs):
    remove(named("two"))
    assert find().name == "one"


def test_nothing_named_and_none_used_means_the_newest_on_disk(two_pairs):
    """Never the demo beside real pairs."""
    for seconds, name in enumerate(("two", "one"), 1_700_000_000):
        os.utime(named(name).target.path, (seconds, seconds))
    assert default_pair().name == "one"
    os.utime(named("two").target.path)
    assert find().name == "two"


def test_nothing_named_means_the_pair_used_last(two_pairs):
    places.mark_used("two")
    places.mark_used("one")
    places.mark_used("demo")
    assert find().name == "one"


def test_a_use_while_the_clock_ran_ahead_is_not_the_last_one_for_ever(two_pairs, monkeypatch):
    ahead = time.time() + 10 * 365 * 86_400
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: ahead)
        places.mark_used("two")
    places.mark_used("one")
    assert find().name == "one"


def test_nothing_named_means_the_files_used_last_while_they_are_there(two_pairs, tiny_gguf, tmp_path):
    target, draft = (shutil.copy(tiny_gguf(), tmp_path / f"{name}.gguf") for name in ("mine", "small"))
    os.utime(target, (0, 0))
    places.mark_used("one")
    for paths in ([target], [target, draft]):
        with localspec.load(target=paths[0], draft=paths[1] if paths[1:] else None):
            pass
        found = find()
        assert [str(file.path) for file in found.files] == [str(path) for path in paths]
        assert asked_as(found) == dict(zip(("target", "draft"), map(str, paths), strict=False))
    os.remove(draft)
    assert find().files[0].path == target
    os.remove(target)
    assert asked_as(find()) == {"pair": "one"}


def test_a_pair_that_is_gone_is_not_the_last_used_one(two_pairs):
    places.mark_used("two")
    places.mark_used("one")
    remove(named("one"))
    assert find().name == "two"


def test_removing_keeps_what_another_pair_uses(two_pairs):
    removal = remove(named("one"))
    assert [path.name for path in removal.removed] == ["one.gguf"]
    assert removal.kept == (("draft.gguf", "two uses it"),)
    assert named("two").on_disk
    remove(named("two"))
    assert not places.models_dir().exists() or list(places.models_dir().rglob("*.gguf")) == []


def test_removing_a_file_of_the_users_own_keeps_it(tiny_gguf):
    pair = Pair("mine", DraftKind.MODEL, ModelFile.at(tiny_gguf()), ModelFile.at(tiny_gguf(layers=1)))
    add_pair(
        Pair(
            "mine",
            DraftKind.MODEL,
            ModelFile.at(tiny_gguf(), 1, "0" * 64),
            ModelFile.at(tiny_gguf(), 1, "0" * 64),
        )
    )
    assert remove(pair).removed == ()
    assert tiny_gguf().exists()


def test_an_added_pair_is_read_back_the_same_and_can_be_replaced(tiny_gguf):
    odd = tiny_gguf().parent / 'a "quoted" \\ path ü.gguf'
    first = Pair(
        "mine", DraftKind.MODEL, ModelFile.at(odd, 5, "1" * 64), ModelFile.at(odd, 6, "2" * 64), use="x"
    )
    add_pair(first)
    assert named("mine") == first
    add_pair(Pair("other", DraftKind.MODEL, first.target, first.draft))
    add_pair(Pair("mine", DraftKind.MODEL, first.target, first.draft, use="y"))
    assert named("mine").use == "y"
    assert named("other").target == first.target
    assert sorted(path.name for path in users_folder().iterdir()) == ["mine.toml", "other.toml"]


@pytest.mark.parametrize("name", ["con", "nul.x", "x.", "a" * 80])
def test_a_pair_may_have_the_name_of_a_device(tiny_gguf, name):
    add_pair(Pair(name, DraftKind.LOOKUP, ModelFile.at(tiny_gguf(), 1, "0" * 64), None))
    (path,) = users_folder().iterdir()
    assert stays_inside(path.name)
    assert [pair.name for pair in users_pairs()] == [name]
    assert take_out(name) == path
    assert users_pairs() == ()


def test_a_file_that_another_process_removes_meanwhile_is_no_mistake(monkeypatch):
    user_pair(MINE)
    monkeypatch.setattr(os, "listdir", lambda folder: ["gone.toml", "mine.toml"])
    assert [pair.name for pair in users_pairs()] == ["mine"]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX links")
@pytest.mark.parametrize("name", ["", "x.toml"])
def test_a_link_to_nothing_is_a_mistake_and_not_an_empty_file(name):
    """The files of its pairs would be pruned."""
    link = users_folder() / name
    link.parent.mkdir(parents=True)
    link.symlink_to("nowhere")
    with pytest.raises(BadSetting, match="cannot be read"):
        users_pairs()


def test_everything_that_a_pair_says_is_in_its_file():
    extra = 'published = ["2x, by me"]\naliases = ["m"]\n'
    user_pair(MINE.replace("[pair.target]", extra + '[pair.target]\nquant = "Q8_0"\nlicense = "MIT"'))
    before = named("mine")
    add_pair(before)
    assert users_pairs() == (before,)


def test_a_name_that_cannot_be_typed_is_refused():
    with pytest.raises(BadSetting, match="cannot be called"):
        add_pair(Pair("My Pair", DraftKind.MODEL, named("demo").target, None))


@pytest.mark.parametrize("damage", ["1e30", "-1", "[]", '"soon"'])
def test_a_damaged_time_of_use_is_none(two_pairs, capsys, damage):
    path = places._uses_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{{"one": {damage}}}')
    assert places.last_uses() == {}
    assert main(["list"]) == 0


def test_zeros_count_as_not_given():
    user_pair(MINE.replace('"mine"', '"mine"\nstarting_depth = 0\ncontext = 0'))
    assert (named("mine").starting_depth, named("mine").context) == (4, None)
