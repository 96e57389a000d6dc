"""A damaged file of conversations: nothing that can be read is lost, whatever interrupts the recovery."""

import os
import random
import re
import shutil
import sqlite3
import subprocess
from contextlib import closing, suppress

import pytest

from localspec.conversations import conversations, database, recovery
from localspec.conversations.conversations import Conversation, StoredMessage
from localspec.conversations.database import FILE, StoreFailed
from localspec.conversations.recovery import Pages
from localspec.errors import BadSetting

pytestmark = pytest.mark.usefixtures("home")

SIZE = 4096


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Forty conversations of 20 bytes to 12 kB, each of whose words has its number."""
    folder = tmp_path_factory.mktemp("whole")
    for n in range(40):
        question = StoredMessage("user", f"<{n}> " * (4 + 60 * (n % 9) ** 2 // 2))
        about = {
            "talked": 1e9 + n,
            "messages": (question, StoredMessage("assistant", f"reply <{n}>"), StoredMessage("user", "ok")),
        }
        conversations.save(folder, Conversation(f"n{n:02}", "demo", "", **about))
        conversations.add_prompt(folder, question.content, f"n{n:02}")
    return (folder / FILE).read_bytes()


def damaged(folder, whole, *pages):
    content = bytearray(whole)
    for page in pages:
        content[page * SIZE : (page + 1) * SIZE] = bytes(SIZE)
    (folder / FILE).write_bytes(content)


def rows_outside(folder, content, page):
    """The conversations whose records have no byte in a page."""
    (folder / "copy").write_bytes(content)
    with closing(Pages(folder / "copy")) as pages:
        cells = [cell for cell in pages.cells() if cell.kind == 13 and cell.columns == 8]
    begin, end = page * SIZE, (page + 1) * SIZE
    return {c.values[0] for c in cells if all(b >= end or e <= begin for b, e in c.parts)}


def readable(folder):
    """The names that are listed and can be read; the list itself may be whole where the rows are damaged."""
    names = set()
    for row in conversations.listing(folder):
        with suppress(BadSetting, StoreFailed):
            names.add(conversations.read(folder, row.name).name)
    return names


@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.nightly)])
def test_the_rows_of_whole_pages_survive_a_damaged_page_and_the_deletion_that_meets_it(
    tmp_path, whole, caplog, step
):
    for page in range(0, len(whole) // SIZE, step):
        folder = tmp_path / str(page)
        folder.mkdir()
        damaged(folder, whole, page)
        expected = rows_outside(folder, whole, page)
        victim = min(expected)
        conversations.delete(folder, victim)
        assert readable(folder) >= expected - {victim}, page
        left = b"".join(path.read_bytes() for path in folder.glob(f"{FILE}*"))
        assert not re.search(rb"<%d>" % int(victim[1:]), left), page
        conversations.add_prompt(folder, "more")
    assert "recovered" in caplog.text


def rows_of(path):
    with closing(Pages(path)) as pages:
        return {
            c.values[0]: c.values for c in pages.cells() if c.kind == 13 and c.columns == 8 and c.is_whole
        }


@pytest.mark.parametrize("page", [None, 5])
def test_a_large_file_is_read_as_a_whole_by_a_deletion_and_by_nothing_else(
    tmp_path, whole, monkeypatch, page
):
    monkeypatch.setattr(database, "CHECKED_BYTES", len(whole) // 2)
    monkeypatch.setattr(database, "_checked", checked := set())
    damaged(tmp_path, whole, *([page] if page else []))
    expected = rows_outside(tmp_path, whole, page or 10**6)
    conversations.save(tmp_path, Conversation("new", messages=(StoredMessage("user", "a new one"),)))
    assert not database.kept_files(tmp_path), "adding to a large file does not look for damage"
    assert not checked
    conversations.delete(tmp_path, "n00")
    assert readable(tmp_path) >= expected - {"n00"} | {"new"}
    assert len(checked) == 1
    assert len(database.kept_files(tmp_path)) == bool(page)


def test_a_deletion_leaves_every_other_conversation_in_the_kept_file_as_it_is(tmp_path, whole):
    damaged(tmp_path, whole, 5)
    before = rows_of(tmp_path / FILE)
    victim = min(rows_outside(tmp_path, whole, 5))
    conversations.delete(tmp_path, victim)
    del before[victim]
    assert rows_of(tmp_path / f"{FILE}.damaged") == before


def test_a_link_to_the_file_stays_a_link(tmp_path, whole):
    (tmp_path / "elsewhere").mkdir()
    damaged(tmp_path / "elsewhere", whole, 5)
    (tmp_path / "elsewhere" / FILE).rename(tmp_path / "elsewhere" / "mine.db")
    (tmp_path / FILE).symlink_to(tmp_path / "elsewhere" / "mine.db")
    conversations.add_prompt(tmp_path, "more")
    assert (tmp_path / FILE).is_symlink()
    assert (tmp_path / "elsewhere" / "mine.db.damaged").exists()
    assert len(readable(tmp_path)) > 30


def test_several_pages_and_random_bytes_cost_only_their_own_rows(tmp_path, whole):
    chance = random.Random(3)
    for round_ in range(10):
        folder = tmp_path / str(round_)
        folder.mkdir()
        content, pages = bytearray(whole), chance.sample(range(1, len(whole) // SIZE), 4)
        for page in pages:
            content[page * SIZE : (page + 1) * SIZE] = chance.randbytes(SIZE)
        (folder / FILE).write_bytes(content)
        expected = set.intersection(*(rows_outside(folder, whole, page) for page in pages))
        conversations.add_prompt(folder, "more")
        assert readable(folder) >= expected


def test_pages_of_the_write_ahead_log_are_recovered(tmp_path, whole):
    damaged(tmp_path, whole)
    with closing(sqlite3.connect(tmp_path / FILE)) as other:
        other.execute("BEGIN").connection.execute("SELECT * FROM conversations").fetchone()  # keeps the log
        conversations.save(tmp_path, Conversation("late", messages=(StoredMessage("user", "late words"),)))
        for name in (FILE, f"{FILE}-wal"):
            shutil.copyfile(tmp_path / name, tmp_path / f"{name}.copy")
    for name in (FILE, f"{FILE}-wal"):
        os.replace(tmp_path / f"{name}.copy", tmp_path / name)
    with (tmp_path / FILE).open("r+b") as file:
        file.write(bytes(100))
    conversations.add_prompt(tmp_path, "more")
    assert len(readable(tmp_path)) == 41


class Killed(BaseException):
    """The end of the process."""


@pytest.mark.parametrize("step", ["replace", "unlink", "_build", "fsync", "sync_folder"])
def test_a_recovery_that_was_killed_at_any_step_is_ended_by_the_next_start(
    tmp_path, whole, monkeypatch, step
):
    owner = recovery if step in ("_build", "sync_folder") else os if step != "unlink" else recovery.Path
    usual = getattr(owner, step)
    for late in (False, True):
        for number in range(5):
            folder = tmp_path / f"{late}{number}"
            folder.mkdir()
            damaged(folder, whole, 5)
            expected, calls = rows_outside(folder, whole, 5), []

            def dying(*values, number=number, late=late, calls=calls, **more):
                calls.append(values)
                done = usual(*values, **more) if late else None
                if len(calls) > number:
                    raise Killed
                return done if late else usual(*values, **more)

            with monkeypatch.context() as patch:
                patch.setattr(owner, step, dying)
                with suppress(Killed):
                    conversations.add_prompt(folder, "more")
            assert readable(folder) >= expected
            conversations.add_prompt(folder, "more")
            assert readable(folder) >= expected
            assert not recovery.in_progress(folder / FILE)


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="mounts small disks")
@pytest.mark.parametrize("kilobytes", [8, 200, 400, 900])
def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path, whole, kilobytes):
    disk = tmp_path / "disk"
    disk.mkdir()
    size = len(whole) // 1024 + kilobytes
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this machine mounts nothing")
    try:
        damaged(disk, whole, 5)
        expected = rows_outside(tmp_path, whole, 5)
        refused = ""
        try:
            conversations.add_prompt(disk, "more")
        except StoreFailed as error:
            refused = str(error)
        if refused:
            assert "the disk is full" in refused
            subprocess.run(["mount", "-o", f"remount,size={size + 4000}k", str(disk)], check=True)
            conversations.add_prompt(disk, "more")
        assert readable(disk) >= expected
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_writer_that_comes_while_the_file_is_renamed_makes_no_empty_one_in_its_place(
    tmp_path, whole, monkeypatch, caplog
):
    """A recovery that finds a file under the name believes that its own work is done."""
    (tmp_path / FILE).write_bytes(whole)
    made, renamed = database._made, []

    def between(path):
        found = made(path)
        if not renamed:
            path.rename(f"{path}.recovering")
            renamed.append(path)
        return found

    monkeypatch.setattr(database, "_made", between)
    conversations.add_prompt(tmp_path, "written meanwhile")
    assert len(readable(tmp_path)) == 40
    assert "written meanwhile" in conversations.prompts(tmp_path)
    assert "recovered: 40 conversations" in caplog.text
