"""Small files are there as a whole or not at all, and stay what they were: a link, a mode."""

import errno
import json
import os
import stat
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec import files
from localspec.errors import BadSetting
from localspec.files import (
    FileLock,
    change_json_object,
    expanded,
    loads_as,
    locked,
    program,
    read_json_object,
    read_numbers,
    remember_number,
    repaired,
    text_of,
    write_text_atomically,
)

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes and links")


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@POSIX
def test_a_new_file_and_its_folder_are_their_owners_only_and_an_old_file_keeps_its_mode(tmp_path):
    path = tmp_path / "new" / "x.json"
    write_text_atomically(path, "ü")
    assert path.read_text("utf-8") == "ü"
    assert (mode_of(path), mode_of(path.parent)) == (0o600, 0o700)
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
    path, reported = tmp_path / "x.json", []
    path.write_text("old")
    fsync, rename = os.fsync, os.replace

    def on_fsync(descriptor):
        fsync(descriptor)
        reported.append(os.fstat(descriptor).st_size)

    def on_rename(*paths):
        reported.append("renamed")
        rename(*paths)

    monkeypatch.setattr(os, "fsync", on_fsync)
    monkeypatch.setattr(os, "replace", on_rename)
    write_text_atomically(path, "brand-new")
    assert reported[:2] == [len("brand-new"), "renamed"]
    assert len(reported) == 3 or sys.platform == "win32", "the new name is on the disk as well"


@pytest.mark.parametrize("refused", [1, 3])
def test_a_file_that_another_process_reads_for_a_moment_is_replaced_all_the_same(
    tmp_path, monkeypatch, refused
):
    """As on Windows: up to two attempts are made again here, so that the third refusal is an error."""
    path, replace, attempts = tmp_path / "x.json", os.replace, []

    def open_elsewhere(*names):
        attempts.append(names)
        if len(attempts) <= refused:
            raise PermissionError(errno.EACCES, "The process cannot access the file")
        replace(*names)

    path.write_text("old")
    monkeypatch.setattr(files, "_PAUSES", (0.0, 0.0))
    monkeypatch.setattr(os, "replace", open_elsewhere)
    if refused == 1:
        write_text_atomically(path, "new")
    else:
        with pytest.raises(PermissionError):
            write_text_atomically(path, "new")
    assert path.read_text() == ("new" if refused == 1 else "old")
    assert [each.name for each in tmp_path.iterdir()] == ["x.json"]


def test_a_value_of_a_name_is_changed_and_all_others_stay(tmp_path):
    path = tmp_path / "new" / "x.json"
    assert change_json_object(path, {"a": "caf\udce9 é", "b": 1}) == ""
    assert change_json_object(path, {"b": None, "of a newer release": [1]}) == ""
    assert read_json_object(path) == {"a": "caf\ufffd é", "of a newer release": [1]}
    assert repaired("caf\udce9 \ud83d\ude42") == "caf\ufffd 🙂"
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
        reported = change_json_object(path, {"a": "b"})
        assert reported.startswith(f"{path} was damaged (")
        assert reported.endswith(f"; it is kept as {name}")
        assert (tmp_path / name).read_bytes() == content
        assert read_json_object(path) == {"a": "b"}


def test_numbers_that_make_no_sense_are_none_and_a_damaged_file_is_reported(tmp_path, caplog):
    path = tmp_path / "x.json"
    numbers = '{"a": 1, "b": 2.5, "c": -1, "d": 1e99, "e": "x", "f": true, "g": NaN, "h": 1%s}'
    path.write_text(numbers % ("0" * 400))
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


@pytest.mark.process
@POSIX
def test_a_full_disk_ends_in_a_sentence_and_loses_nothing(tmp_path, tiny_gguf):
    table = "[[pair]]\nname = 'a'\nkind = 'draft-lookup'\ntarget = {path = 't.gguf'}\n"
    (tmp_path / "pairs.d").mkdir()
    (tmp_path / "pairs.d" / "a.toml").write_text(table)
    add = (
        "import localspec.cli\nsys.exit(localspec.cli.main(['pairs', 'add', 'b', '--target', *sys.argv[1:]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", LITTLE.format(add), tiny_gguf(), "--draft", tiny_gguf(layers=1)],
        cwd=tmp_path,
        env=os.environ | {"LOCALSPEC_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "error: " in done.stderr
    assert "File too large" in done.stderr
    assert "made a mistake" not in done.stderr
    assert (tmp_path / "pairs.d" / "a.toml").read_text() == table
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


@pytest.mark.process
@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no file without an end")
def test_a_file_without_an_end_is_not_read_to_its_end(tmp_path):
    with pytest.raises(BadSetting, match="not a text file"):
        text_of("/dev/zero")
    endless = tmp_path / "pipe"
    os.mkfifo(endless)
    writer = subprocess.Popen(["sh", "-c", f"yes > {endless}"], stderr=subprocess.DEVNULL)
    try:
        with pytest.raises(BadSetting, match="longer than any model"):
            text_of(endless)
        command = [sys.executable, "-m", "localspec", "run", "demo", "-"]
        with subprocess.Popen(["yes"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as yes:
            ended = subprocess.run(command, stdin=yes.stdout, capture_output=True, text=True, timeout=300)
            yes.kill()
        assert "the piped text is longer than any model" in ended.stderr
    finally:
        writer.kill()
        writer.wait()


HOLD = """
import sys
from pathlib import Path
from localspec.files import FileLock
lock = FileLock(Path(sys.argv[1]))
print(lock.try_acquire(), flush=True)
sys.stdin.read()
"""


def holder(path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "True\n"
    return process


def test_one_holder_at_a_time_and_no_file_afterwards(tmp_path):
    path = tmp_path / "x.lock"
    first, second = FileLock(path), FileLock(path)
    assert first.try_acquire()
    assert not second.try_acquire()
    first.release()
    first.release()
    assert second.try_acquire()
    second.release()
    assert not path.exists()


@pytest.mark.process
def test_another_process_holds_it_until_it_dies(tmp_path):
    path = tmp_path / "x.lock"
    other = holder(path)
    assert not FileLock(path).try_acquire()
    other.kill()
    other.communicate()
    assert path.exists()
    mine = FileLock(path)
    assert mine.try_acquire()
    mine.release()
    assert not path.exists()


COUNT = """
import sys
from pathlib import Path
from localspec.files import FileLock
path, count = Path(sys.argv[1]), Path(sys.argv[2])
for _ in range(100):
    lock = FileLock(path)
    while not lock.try_acquire():
        pass
    count.write_text(str(int(count.read_text()) + 1))
    lock.release()
"""


@pytest.mark.process
def test_a_file_that_its_holder_removed_is_no_lock(tmp_path):
    """Whoever waits for the file of a finished holder begins anew: of three that count, none overtakes another."""
    path, count = tmp_path / "x.lock", tmp_path / "count"
    count.write_text("0")
    counting = [subprocess.Popen([sys.executable, "-c", COUNT, path, count]) for _ in range(3)]
    assert [process.wait() for process in counting] == [0, 0, 0]
    assert count.read_text() == "300"
    assert not path.exists()


def test_the_folder_of_small_files_is_changed_by_one_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("localspec.files._TIMEOUT_SECONDS", 0.05)
    with locked(tmp_path), pytest.raises(TimeoutError, match="another localspec"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="flock")
def test_where_there_are_no_locks_nobody_waits(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    with locked(tmp_path), locked(tmp_path):
        pass


@dataclass(frozen=True)
class Part:
    name: str
    size: float
    whole: bool


@dataclass(frozen=True)
class Known:
    parts: tuple[Part, ...]
    sizes: dict[str, int]
    note: str | None


KNOWN = Known((Part("a", 1.5, True), Part("b", 2.0, False)), {"a": 1}, None)


def test_what_was_written_is_read():
    assert loads_as(Known, json.dumps(asdict(KNOWN))) == KNOWN


def places(document, path=()):
    yield path
    if isinstance(document, dict | list):
        for key, value in document.items() if isinstance(document, dict) else enumerate(document):
            yield from places(value, (*path, key))


def replaced(document, path, value):
    if not path:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[path[0]] = replaced(copy[path[0]], path[1:], value)
    return copy


WRITTEN = json.loads(json.dumps(asdict(KNOWN)))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
ANYTHING = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner))


def types_of(value):
    if isinstance(value, dict):
        return {key: types_of(part) for key, part in value.items()}
    return [types_of(part) for part in value] if isinstance(value, list) else type(value)


@pytest.mark.process
@given(st.sampled_from([path for path in places(WRITTEN) if path]), ANYTHING)
def test_any_damage_gives_the_right_types_or_a_value_error(path, value):
    try:
        read = loads_as(Known, json.dumps(replaced(WRITTEN, path, value)))
    except ValueError:
        return
    assert all(types_of(asdict(part)) == {"name": str, "size": float, "whole": bool} for part in read.parts)
    assert all(type(size) is int for size in read.sizes.values())
    assert isinstance(read.note, str | None)


@pytest.mark.parametrize("text", ["", "[" * 100_000, '{"parts": []', "NaN", "[1]", "5"])
def test_what_is_no_document_of_the_type_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"."):
        loads_as(Known, text)
