"""Stored texts are whole or not there, the nearest is found, and the folder keeps to its budget."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import time
from dataclasses import replace
from itertools import islice, takewhile
from operator import eq

import numpy as np
import pytest

from localspec.caches import store
from localspec.caches.store import Facts, Store, Stored, empty, packed, unpacked, usage

KEY = "this model"
FACTS = Facts(KEY, sys.executable, steps_back=True, marks=(), parts=())


@pytest.fixture(autouse=True)
def disk_with_room(monkeypatch):
    monkeypatch.setattr(store, "LEFT_FREE", 0)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "caches"


def text(seed, count=600):
    return np.random.default_rng(seed).integers(0, 50_000, count).tolist()


def content(seed, size=3_000):
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def save(kept, tokens, *parts, **changes):
    facts = replace(FACTS, parts=tuple(len(part) for part in parts), **changes)
    return kept.write(packed(tokens), facts, parts)


def file_size(folder):
    """The bytes of the file of one prompt cache."""
    save(Store(folder, 10**9), text(0), content(0))
    return files(folder)[0].stat().st_size


def found(kept, tokens, key=KEY):
    return next(iter(kept.nearest(key, packed(tokens))), (None, 0))


def files(folder):
    return sorted(path for path in folder.iterdir() if path.name != ".lock")


def test_a_text_comes_back_as_it_was(folder):
    parts = [content(1, 3_000_000), content(2, 1), content(3, 0)]
    assert save(Store(folder, 10**9), text(0), *parts, marks=(7,), steps_back=False)
    kept = Store(folder, 10**9)
    stored, shared = found(kept, [*text(0)[:300], 1])
    assert (shared, stored.length, stored.facts.marks) == (300, 600, (7,))
    assert unpacked(stored.tokens) == text(0)
    assert all(np.array_equal(*both) for both in zip(kept.read(stored), parts, strict=True))


def test_the_room_of_a_text_is_taken_before_it_is_written(folder, monkeypatch):
    rooms, write = [], store.write_text

    def noted(file, *given):
        rooms.append(os.fstat(file.fileno()).st_size)
        write(file, *given)

    monkeypatch.setattr(store, "write_text", noted)
    assert save(Store(folder, 10**9), text(0), content(0))
    assert rooms == [path.stat().st_size for path in files(folder)]


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_nobody_else_may_read_it(folder):
    save(Store(folder, 10**6), text(0), content(0))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in files(folder)] == [0o600]


def test_texts_come_by_the_length_of_their_common_beginning_as_by_comparing_all(folder):
    kept, rng = Store(folder, 10**9), np.random.default_rng(0)
    texts = []
    for _ in range(60):
        begins = texts[rng.integers(len(texts))][: rng.integers(1, 40)] if texts else []
        texts.append([*begins, *rng.integers(0, 3, 40).tolist()])
        save(kept, texts[-1], content(0, 10))
    save(kept, texts[0], content(0, 10), key="another model")
    held = [unpacked(one.tokens) for one in kept._texts if one.facts.key == KEY]
    for asked in [*texts, *([*one[:20], 9] for one in texts), [9]]:
        alike = (sum(takewhile(bool, map(eq, asked, other))) for other in held)
        shared = [found for _, found in kept.nearest(KEY, packed(asked))]
        assert shared == sorted(filter(None, alike), reverse=True)


def test_a_cache_that_cannot_step_back_is_used_to_its_checkpoints():
    head = replace(FACTS, steps_back=False, marks=(100, 300))
    stored = Stored(None, head, packed(text(0)), 0)
    assert [stored.usable(shared) for shared in (99, 100, 299, 599, 600)] == [0, 100, 100, 300, 600]
    assert replace(stored, facts=FACTS).usable(599) == 599


def test_a_text_that_went_on_takes_the_place_of_what_it_was(folder):
    kept = Store(folder, 10**9)
    for count in (500, 550, 600):
        save(kept, text(0)[:count], content(0))
    assert usage(folder)[0] == 1
    # Half of it may serve other conversations with the same instructions.
    save(kept, text(0, 1_300), content(0))
    assert sorted(stored.length for stored, _ in kept.nearest(KEY, packed(text(0, 1_300)))) == [600, 1_300]


def damaged(kind, whole, other, rng):
    changed, at = bytearray(whole), int(rng.integers(len(whole)))
    match kind:
        case "cut":
            del changed[at:]
        case "flipped":
            changed[at] ^= 1 << int(rng.integers(8))
        case "zeros":
            changed[at : at + 4096] = bytes(len(changed[at : at + 4096]))
        case "longer":
            changed += whole[:at] or b"x"
        case "mixed":
            changed[at:] = other[at:]
        case "format":
            changed[15] += 1
    return bytes(changed)


@pytest.mark.nightly
def test_no_damaged_file_is_used_and_every_whole_one_is(folder):
    rng = np.random.default_rng(0)
    kept = Store(folder, 10**9)
    contents = {seed: content(seed, 5_000) for seed in range(200)}
    for seed, part in contents.items():
        save(kept, text(seed), part)
    wholes = [path.read_bytes() for path in files(folder)]
    kinds = ("cut", "flipped", "zeros", "longer", "mixed", "format")
    spoilt = 0
    while spoilt < 750:
        one, other = (wholes[index] for index in rng.integers(0, len(wholes), 2))
        if (bad := damaged(kinds[spoilt % len(kinds)], one, other, rng)) not in wholes:
            folder.joinpath(f"{spoilt:032x}.cache").write_bytes(bad)
            spoilt += 1
    for seed in range(250):
        facts = replace(FACTS, key=("another build", "another model", "q8_0")[seed % 3], parts=(5_000,))
        kept.write(packed(text(seed % 200)), facts, [content(seed + 500, 5_000)])
    fresh = Store(folder, 10**9)
    for seed, part in contents.items():
        near = fresh.nearest(KEY, packed(text(seed)))
        reads = list(filter(None, (fresh.read(stored) for stored, shared in near if shared == 600)))
        assert reads
        assert all(np.array_equal(each[0], part) for each in reads)
    assert usage(folder)[0] == 450  # whole ones, those of other models as well


@pytest.mark.skipif(os.name != "posix", reason="links are made without rights there")
def test_links_are_neither_followed_nor_removed(folder, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    kept = Store(folder, 4_000)
    save(kept, text(0), content(0, 100))
    link = folder / f"{0:032x}.cache"
    link.symlink_to(precious)
    foreign = folder / "notes.txt"
    foreign.write_text("mine too")
    other = Store(folder, 1)
    other.clean()
    assert files(folder) == [link, foreign]
    assert empty(folder) == []
    assert precious.read_text() == "mine"
    stored = Stored(link, FACTS, packed(text(0)), 4)
    assert other.read(stored) is None
    linked = tmp_path / "a link to the folder"
    linked.symlink_to(folder, target_is_directory=True)
    kept = Store(linked, 10**6)
    save(kept, text(0), content(0))
    assert np.array_equal(kept.read(found(kept, text(0))[0])[0], content(0))


def test_texts_of_a_model_that_is_gone_are_removed_unless_its_disk_is_not_mounted(folder, tmp_path):
    kept, disk = Store(folder, 10**6), store.disk_of(tmp_path)
    gone = str(tmp_path / "mounted" / "model.gguf")
    save(kept, text(0), content(0), model=gone, disk=disk + 1)
    save(kept, text(1), content(1), model=gone, disk=disk)
    save(kept, text(2), content(2))  # its model is here
    Store(folder, 10**6).clean()
    assert [found(Store(folder, 10**6), text(seed))[1] for seed in range(3)] == [600, 0, 600]


def test_what_was_not_used_for_thirty_days_goes(folder):
    kept, day = Store(folder, 10**6), 86_400
    for seed in range(2):
        save(kept, text(seed), content(seed))
        os.utime(found(kept, text(seed))[0].path, (time.time() - (29 + 2 * seed) * day,) * 2)
    Store(folder, 10**6).clean()
    assert [found(Store(folder, 10**6), text(seed))[1] for seed in range(2)] == [600, 0]


@pytest.mark.parametrize("checks", [0, 1, 2])
def test_a_conversation_that_is_deleted_while_its_text_is_written_leaves_none(folder, checks):
    """It is there for that many looks; whoever deletes it looks for its texts, before the last look here or after."""
    looks = iter([True] * checks)
    kept = Store(folder, 10**6, lambda name: next(looks, False))
    save(kept, text(0), content(0), conversation="a")
    if checks == 2:
        store.forget_conversation(folder, "a")
    assert usage(folder)[0] == 0
    save(Store(folder, 10**6), text(1), content(1), conversation="b")
    store.forget_conversation(folder, "a")
    assert usage(folder)[0] == 1


@pytest.mark.skipif(sys.platform == "win32", reason="no owners and modes")
def test_what_others_could_have_written_is_not_used(folder):
    save(Store(folder, 10**6), text(0), content(0))
    assert store.why_not_trusted(folder) == ""
    folder.chmod(0o770)
    assert "other users may write" in store.why_not_trusted(folder)
    folder.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(found(Store(folder, 10**6), text(0))[0].path, 1, 1)
        assert found(Store(folder, 10**6), text(0)) == (None, 0)
        os.chown(folder, 1, 1)
        assert "another user's" in store.why_not_trusted(folder)


def test_the_text_that_was_used_last_stays(folder, tmp_path):
    size = file_size(tmp_path / "one")
    kept = Store(folder, 3 * size + 10)
    for seed in range(3):
        save(kept, text(seed), content(seed))
        time.sleep(0.01)
    kept.read(found(kept, text(0))[0])
    save(kept, text(3), content(3))
    assert [found(kept, text(seed))[1] for seed in range(4)] == [600, 0, 600, 600]


def test_texts_of_a_clock_that_ran_ahead_make_room_for_new_ones(folder, tmp_path):
    size = file_size(tmp_path / "one")
    kept, ahead = Store(folder, 2 * size + 10), time.time() + 10 * 365 * 86_400
    for seed in range(2):
        save(kept, text(seed), content(seed))
    for file in files(folder):
        os.utime(file, (ahead, ahead))
    for seed in (2, 3):
        save(kept, text(seed), content(seed))
    assert [found(kept, text(seed))[1] for seed in range(4)] == [0, 0, 600, 600]


def test_the_budget_holds_over_many_turns_and_at_every_start(folder, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    rng, budget, turns = np.random.default_rng(0), 400_000, 300
    conversations = [text(seed, 40) for seed in range(20)]
    kept = Store(folder, budget)
    for turn in range(turns):
        which = int(rng.integers(20))
        conversations[which] = conversations[which][: rng.integers(20, 400)] + text(turn + 100, 20)
        save(kept, conversations[which], content(turn, 100 * len(conversations[which])))
        assert usage(folder)[1] <= budget
        if turn % 50 == 49:
            budget = int(rng.integers(200_000, 500_000))
            kept = Store(folder, budget)
            kept.clean()
            assert usage(folder)[1] <= budget
    assert usage(folder)[1] > budget / 2


def test_what_is_larger_than_the_budget_removes_nothing_and_a_nearly_full_disk_gets_its_room_back(
    folder, monkeypatch
):
    kept = Store(folder, 10_000)
    save(kept, text(0), content(0))
    assert not save(kept, text(1), content(1, 20_000))
    assert usage(folder)[0] == 1
    monkeypatch.setattr(store, "LEFT_FREE", 10**18)
    assert not save(kept, text(1), content(1))
    kept.clean()
    assert usage(folder) == (0, 0)


def test_a_full_disk_leaves_no_half_file(folder):
    resource = pytest.importorskip("resource", reason="Windows has no limit for files")
    kept = Store(folder, 10**9)
    save(kept, text(0), content(0))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            save(kept, text(1), content(1, 1_000_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(files(folder)) == 1
    assert save(kept, text(1), content(1))


def test_a_folder_that_cannot_be_written_is_an_error_and_nothing_more(tmp_path):
    (tmp_path / "file").touch()
    kept = Store(tmp_path / "file" / "caches", 10**9)
    assert found(kept, text(0)) == (None, 0)
    kept.clean()
    with pytest.raises(NotADirectoryError):
        save(kept, text(0), content(0))


WRITER = """
import sys, time
from pathlib import Path
from tests.caches.test_store import *
kept, first = Store(Path(sys.argv[1]), int(sys.argv[2])), int(sys.argv[3])
print("began", flush=True)
for seed in range(first, first + int(sys.argv[4])):
    save(kept, text(seed), content(seed, 2_000_000))
"""


def start_writer(folder, budget, first, count):
    command = [sys.executable, "-c", WRITER, str(folder), str(budget), str(first), str(count)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=os.getcwd())
    assert process.stdout.readline() == b"began\n"
    return process


def check_whole(folder, seeds):
    """Every text that is found is right; returns their number."""
    kept, right = Store(folder, 10**12), 0
    for seed in seeds:
        for stored, _ in islice(kept.nearest(KEY, packed(text(seed))), 1):
            if stored.tokens == packed(text(seed)):
                assert np.array_equal(kept.read(stored)[0], content(seed, 2_000_000))
                right += 1
    return right


def kill_writers(folder, times):
    rng = np.random.default_rng(0)
    for turn in range(times):
        with start_writer(folder, 20_000_000, 1000 * turn, 1000) as writer:
            time.sleep(rng.uniform(0.02, 0.12))
            writer.send_signal(signal.SIGKILL)
        check_whole(folder, range(1000 * turn, 1000 * turn + 60))
        assert usage(folder)[1] <= 20_000_000


@pytest.mark.process
def test_a_writer_that_is_killed_leaves_nothing_half(folder, monkeypatch):
    save(Store(folder, 20_000_000), text(0), content(0, 2_000_000))  # on a slow disk the writers finish none
    kill_writers(folder, 8)
    monkeypatch.setattr(store, "_DEAD_SECONDS", -1.0)
    Store(folder, 20_000_000).clean()
    left = files(folder)
    assert left
    assert all(path.suffix == ".cache" for path in left)


@pytest.mark.process
def test_two_processes_share_a_store(folder):
    with contextlib.ExitStack() as both:
        for first in (0, 100):
            both.enter_context(start_writer(folder, 30_000_000, first, 15))
    assert usage(folder)[1] <= 30_000_000
    assert check_whole(folder, [*range(15), *range(100, 115)]) == usage(folder)[0] >= 10
