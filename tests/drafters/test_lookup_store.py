"""Earlier replies on disk: bounded, private, and never a reason to fail."""

import os
import stat

import numpy as np
import pytest

from localspec.drafters.lookup import LookupDrafter
from localspec.drafters.lookup_store import ReplyStore


def stored(store):
    return store.index(vocabulary=1000).tokens.tolist()


def test_replies_are_found_again(tmp_path):
    store = ReplyStore(tmp_path / "new" / "replies.i32")
    assert stored(store) == []
    store.add([1, 2, 3, 4, 5])
    store.add([7, 8])
    assert stored(store) == [1, 2, 3, 4, 5, -1, 7, 8, -1]
    drafter = LookupDrafter(earlier=store.index(vocabulary=1000))
    assert drafter.find([9, 1, 2, 3], 1).tokens == (4,)


def test_no_guess_runs_from_one_reply_into_the_next(tmp_path):
    store = ReplyStore(tmp_path / "replies.i32")
    store.add([1, 2, 3])
    store.add([4, 5, 6])
    assert LookupDrafter(earlier=store.index(vocabulary=1000)).find([1, 2, 3], 4).tokens == ()


def test_the_oldest_replies_go_when_it_is_full(tmp_path):
    store = ReplyStore(tmp_path / "replies.i32", most=100)
    for i in range(200):
        store.add([i, i, i, i])
        assert len(stored(store)) <= 100
        assert stored(store)[-5:] == [i, i, i, i, -1]
        assert stored(store)[0] == stored(store)[3]
    assert len(stored(store)) >= 45
    assert {path.name for path in tmp_path.iterdir()} == {"replies.i32", ".lock"}


def test_a_full_disk_leaves_no_second_copy_of_the_replies(tmp_path, monkeypatch):
    store = ReplyStore(tmp_path / "replies.i32", most=20)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        store.add(range(30))
    assert {path.name for path in tmp_path.iterdir()} == {"replies.i32", ".lock"}


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX")
def test_only_the_owner_can_read_them(tmp_path):
    previous = os.umask(0)
    try:
        store = ReplyStore(tmp_path / "private" / "replies.i32", most=20)
        for _ in range(10):
            store.add([1, 2, 3])
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "private" / "replies.i32").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "content", [np.array([1, 2, 5000], "<i4").tobytes(), np.array([1, -7], "<i4").tobytes()]
)
def test_a_damaged_file_is_set_aside(tmp_path, content):
    path = tmp_path / "replies.i32"
    path.write_bytes(content)
    store = ReplyStore(path)
    assert stored(store) == []
    assert (tmp_path / "replies.i32.damaged").read_bytes() == content
    store.add([1])
    assert stored(store) == [1, -1]


@pytest.mark.parametrize("stray", [1, 2, 3])
def test_a_token_that_was_half_written_costs_nothing_else(tmp_path, stray):
    path = tmp_path / "replies.i32"
    path.write_bytes(b"\xff" * stray)
    store = ReplyStore(path)
    assert stored(store) == []
    store.add([1, 2, 3])
    with open(path, "ab") as file:
        file.write(b"\xff" * stray)
    assert stored(store) == [1, 2, 3, -1]
    store.add([4, 5])
    assert stored(store) == [1, 2, 3, -1, 4, 5, -1]


def test_a_file_that_cannot_be_read_is_no_earlier_replies_and_a_warning(tmp_path, caplog):
    (tmp_path / "replies.i32").mkdir()
    assert stored(ReplyStore(tmp_path / "replies.i32")) == []
    assert "cannot be read" in caplog.text


def test_a_damaged_file_that_cannot_be_moved_is_no_earlier_replies(tmp_path, caplog, monkeypatch):
    path = tmp_path / "replies.i32"
    path.write_bytes(np.array([1, 5000], "<i4").tobytes())

    def refuse(*_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "replace", refuse)
    assert stored(ReplyStore(path)) == []
    assert "cannot be read" in caplog.text


def test_forgetting_deletes(tmp_path):
    store = ReplyStore(tmp_path / "replies.i32")
    store.forget()
    store.add([1])
    store.forget()
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
