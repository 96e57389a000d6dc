"""Small files are there as a whole or not at all, and stay what they were: a link, a mode."""

import os
import stat
import subprocess
import sys

import pytest

from localspec.errors import BadSetting
from localspec.files import (
    append_json_lines,
    change_json_object,
    expanded,
    program,
    read_json_lines,
    read_json_object,
    read_numbers,
    remember_number,
    write_text_atomically,
)

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes and links")


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@POSIX
def test_a_new_file_and_its_folder_are_their_owners_only(tmp_path):
    path = tmp_path / "new" / "x.json"
    write_text_atomically(path, "ü")
    assert path.read_text("utf-8") == "ü"
    assert (mode_of(path), mode_of(path.parent)) == (0o600, 0o700)


@POSIX
def test_a_file_keeps_its_mode(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text("old")
    path.chmod(0o644)
    write_text_atomically(path, "new")
    assert (path.read_text(), mode_of(path)) == ("new", 0o644)


@POSIX
@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_a_link_to_what_is_written(tmp_path, exists):
    (tmp_path / "dotfiles").mkdir()
    real, link = tmp_path / "dotfiles" / "models.toml", tmp_path / "models.toml"
    if exists:
        real.write_text("old")
    link.symlink_to(real)
    write_text_atomically(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_content_is_on_the_disk_before_it_gets_the_name(tmp_path, monkeypatch):
    """After a power cut the name may be kept and what was not synced lost."""
    path, told = tmp_path / "x.json", []
    path.write_text("old")
    fsync, rename = os.fsync, os.replace

    def on_fsync(descriptor):
        fsync(descriptor)
        told.append(os.fstat(descriptor).st_size)

    def on_rename(*paths):
        told.append("renamed")
        rename(*paths)

    monkeypatch.setattr(os, "fsync", on_fsync)
    monkeypatch.setattr(os, "replace", on_rename)
    write_text_atomically(path, "brand-new")
    assert told[:2] == [len("brand-new"), "renamed"]
    assert len(told) == 3 or sys.platform == "win32", "the new name is on the disk as well"


def test_a_value_of_a_name_is_changed_and_all_others_stay(tmp_path):
    path = tmp_path / "new" / "x.json"
    assert change_json_object(path, {"a": "caf\udce9 é", "b": 1}) == ""
    assert change_json_object(path, {"b": None, "of a newer release": [1]}) == ""
    assert read_json_object(path) == {"a": "caf\ufffd é", "of a newer release": [1]}
    (tmp_path / "new" / ".x.json.k1ll3d").write_text("half")
    change_json_object(path, {"c": 2})
    assert {found.name for found in path.parent.iterdir()} == {"x.json", ".lock"}


@pytest.mark.parametrize("content", [b'{"a": "b",}', b"[1]", b"\xff", b"", b"[" * 100_000], ids=range(5))
def test_a_damaged_file_is_set_aside_each_time_and_never_written_over(tmp_path, content):
    path = tmp_path / "x.json"
    for name in ("x.json.damaged", "x.json.damaged-2"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"."):
            read_json_object(path)
        told = change_json_object(path, {"a": "b"})
        assert told.startswith(f"{path} was damaged (")
        assert told.endswith(f"; it is kept as {name}")
        assert (tmp_path / name).read_bytes() == content
        assert read_json_object(path) == {"a": "b"}


def test_numbers_that_make_no_sense_are_none_and_a_damaged_file_is_told(tmp_path, caplog):
    path = tmp_path / "x.json"
    path.write_text(
        '{"a": 1, "b": 2.5, "c": -1, "d": 1e99, "e": "x", "f": true, "g": NaN, "h": 1%s}' % ("0" * 400)
    )
    assert read_numbers(path, most=10) == {"a": 1.0, "b": 2.5}
    path.write_text("{")
    assert read_numbers(path, most=10) == {}
    remember_number(path, "a", 3)
    assert read_numbers(path, most=10) == {"a": 3.0}
    assert "it is kept as x.json.damaged" in caplog.text


LITTLE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # no file can grow, as on a full disk
{}
"""


@POSIX
@pytest.mark.parametrize(
    ("what", "said"),
    [
        (
            "localspec.tui.state.remembered.Presets(Path('x/presets.json')).save('a', 'b')",
            "presets.json cannot be written",
        ),
        ("sys.exit(localspec.cli.main(['pairs', 'add', 'b', '--target', *sys.argv[1:]]))", "error: "),
    ],
)
def test_a_full_disk_ends_in_a_sentence_and_loses_nothing(tmp_path, what, said, tiny_gguf):
    table = "[[pair]]\nname = 'a'\nkind = 'draft-lookup'\ntarget = {path = 't.gguf'}\n"
    for path, content in (("pairs.d/a.toml", table), ("x/presets.json", '{"old": "text"}')):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(content)
    names = "import localspec.cli, localspec.tui.state.remembered\nfrom pathlib import Path\n"
    done = subprocess.run(
        [sys.executable, "-c", LITTLE.format(names + what), tiny_gguf(), "--draft", tiny_gguf(layers=1)],
        cwd=tmp_path,
        env=os.environ | {"LOCALSPEC_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert said in done.stderr
    assert "File too large" in done.stderr
    assert "made a mistake" not in done.stderr
    assert (tmp_path / "pairs.d" / "a.toml").read_text() == table
    assert (tmp_path / "x" / "presets.json").read_text() == '{"old": "text"}'
    assert not [path for path in tmp_path.rglob(".*") if path.name != ".lock"]


def test_what_fails_leaves_the_old_text_and_nothing_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    path.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_text_atomically(path, "new")
    assert [found.name for found in tmp_path.iterdir()] == ["x.json"]
    assert path.read_text() == "old"


def test_a_home_folder_is_spelled_out_and_a_strangers_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert expanded("~/x.gguf") == tmp_path / "x.gguf"
    with pytest.raises(BadSetting, match=r"~nobody-here/x\.gguf"):
        expanded("~nobody-here/x.gguf")


@POSIX
def test_lines_are_appended_to_a_file_of_its_owners_after_its_head(tmp_path):
    path = tmp_path / "new" / "x.jsonl"
    append_json_lines(path, ["ü", {"a": [1]}], head={"version": 1})
    append_json_lines(path, [None], head={"version": 2})
    assert read_json_lines(path) == ([{"version": 1}, "ü", {"a": [1]}, None], 0)
    assert (mode_of(path), mode_of(path.parent)) == (0o600, 0o700)


def test_a_line_cut_short_stays_alone_and_is_counted(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'"one"\n"tw')
    append_json_lines(path, ["three"])
    path.write_bytes(path.read_bytes() + b"\xff\n\n" + b"[" * 100_000)
    assert read_json_lines(path) == (["one", "three"], 3)


@pytest.mark.parametrize("written", [0, 1, 5])
def test_lines_that_find_no_room_leave_no_piece_of_themselves(tmp_path, monkeypatch, written):
    path = tmp_path / "x.jsonl"
    append_json_lines(path, ["one"])
    before, write = path.read_bytes(), os.write

    def full(descriptor, data):
        if written and os.fstat(descriptor).st_size == len(before):
            return write(descriptor, data[:written])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            append_json_lines(path, ["two", "three"])
    assert path.read_bytes() == before


def test_halves_of_characters_are_joined_or_replaced(tmp_path):
    append_json_lines(tmp_path / "x.jsonl", ["caf\udce9 \ud83d\ude42"])
    assert read_json_lines(tmp_path / "x.jsonl") == (["caf\ufffd 🙂"], 0)


def executable(path):
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("platform", "name", "file"),
    [
        ("win32", "clip.exe", "clip.exe"),
        ("win32", "nvidia-smi", "nvidia-smi.exe"),
        ("linux", "xclip", "xclip"),
        ("linux", "clip.exe", "clip.exe"),
    ],
)
def test_a_program_in_the_working_directory_is_never_taken_with_the_platform_faked(
    tmp_path, monkeypatch, platform, name, file
):
    executable(tmp_path / "cloned" / file)
    executable(tmp_path / "cloned" / "bin" / file)
    monkeypatch.chdir(tmp_path / "cloned")
    monkeypatch.setattr("localspec.files.sys.platform", platform)
    monkeypatch.setenv("PATH", os.pathsep.join(["", ".", "bin", str(tmp_path / "system")]))
    assert program(name) is None
    expected = executable(tmp_path / "system" / file)
    assert program(name) == str(expected)
