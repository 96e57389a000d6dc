"""A damaged file of conversations: nothing that can be read is lost, whatever interrupts the recovery."""

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing, suppress

import pytest

from localspec.conversations import conversations, database
from localspec.conversations.conversations import Conversation, StoredMessage
from localspec.conversations.database import FILE, StoreFailed
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


def readable(folder):
    """The names that are listed and can be read; the list itself may be whole where the rows are damaged."""
    names = set()
    for row in conversations.listing(folder):
        with suppress(BadSetting, StoreFailed):
            names.add(conversations.read(folder, row.name).name)
    return names


@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_damaged_page_costs_only_its_rows_and_the_file_is_kept(tmp_path, whole, step):
    """The first pages hold the file's header and the roots of its tables: without them SQLite reads no row."""
    for page in range(0, len(whole) // SIZE, step):
        folder = tmp_path / str(page)
        folder.mkdir()
        damaged(folder, whole, page)
        conversations.add_prompt(folder, "more")
        assert "more" in conversations.prompts(folder)
        assert len(readable(folder)) >= (30 if page > 1 else 0), page
        kept = database.kept_files(folder)
        assert [len(path.read_bytes()) for path in kept] == [len(whole)] * len(kept)
        assert kept or page > 1


@pytest.mark.parametrize("page", [None, 5])
def test_a_large_file_is_read_as_a_whole_by_a_deletion_and_by_nothing_else(
    tmp_path, whole, monkeypatch, page
):
    monkeypatch.setattr(database, "CHECKED_BYTES", len(whole) // 2)
    monkeypatch.setattr(database, "_checked", checked := set())
    damaged(tmp_path, whole, *([page] if page else []))
    conversations.save(tmp_path, Conversation("new", messages=(StoredMessage("user", "a new one"),)))
    assert not database.kept_files(tmp_path), "adding to a large file does not look for damage"
    assert not checked
    conversations.delete(tmp_path, "n00")
    assert len(readable(tmp_path)) == (37 if page else 40)
    assert len(checked) == 1
    assert not database.kept_files(tmp_path), "it might hold the deleted conversation"


def test_a_link_to_the_file_stays_a_link(tmp_path, whole):
    (tmp_path / "elsewhere").mkdir()
    damaged(tmp_path / "elsewhere", whole, 5)
    (tmp_path / "elsewhere" / FILE).rename(tmp_path / "elsewhere" / "mine.db")
    (tmp_path / FILE).symlink_to(tmp_path / "elsewhere" / "mine.db")
    conversations.add_prompt(tmp_path, "more")
    assert (tmp_path / FILE).is_symlink()
    assert (tmp_path / "elsewhere" / "mine.db.damaged").exists()
    assert len(readable(tmp_path)) > 30


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
        file.seek(5 * SIZE)
        file.write(bytes(SIZE))
    conversations.add_prompt(tmp_path, "more")
    assert "late" in readable(tmp_path)
    assert len(readable(tmp_path)) == 37


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
        refused = ""
        try:
            conversations.add_prompt(disk, "more")
        except StoreFailed as error:
            refused = str(error)
        if refused:
            assert "the disk is full" in refused
            subprocess.run(["mount", "-o", f"remount,size={size + 4000}k", str(disk)], check=True)
            conversations.add_prompt(disk, "more")
        assert len(readable(disk)) == 36
    finally:
        subprocess.run(["umount", str(disk)], check=True)
