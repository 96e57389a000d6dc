"""Pulling a pair from a Hub that behaves, and from one that does not."""

import errno
import io
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from localspec import demo
from localspec.errors import BadModelFile, DownloadFailed, IncompatiblePair
from localspec.models import places
from localspec.models.download import Fetching, PullCancelled, bytes_to_fetch, check_space, fetch
from localspec.models.inspection import file_bytes
from localspec.models.partial_file import PartialFile, part_of
from localspec.models.removal import remove
from tests.gguf.mutations import by_meaning, taken_apart
from tests.pairs.conftest import pair_of
from tests.pairs.hub import COMMIT, Hub


def files_below(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


def test_a_pulled_pair_is_on_disk_and_nothing_else_is(served, impatient):
    target, draft = fetch(served.pair)
    assert target.read_bytes() == served.target.path.read_bytes()
    assert draft.read_bytes() == served.draft.path.read_bytes()
    assert files_below(places.models_dir()) == {"target.gguf", "draft.gguf"}
    assert served.pair.on_disk


def test_a_second_pull_asks_nobody(served, hub, impatient):
    fetch(served.pair)
    asked = len(hub.requests)
    fetch(served.pair)
    assert len(hub.requests) == asked


def test_the_pair_is_proved_before_most_of_it_came(served, hub, impatient):
    events = []
    fetch(served.pair, on_progress=events.append)
    proved = next(i for i, event in enumerate(events) if event == "target and draft fit each other")
    ready = next(i for i, event in enumerate(events) if "sha256 verified" in str(event))
    assert proved < ready


def test_progress_ends_at_the_total_and_never_beyond(served, impatient):
    events = []
    fetch(served.pair, on_progress=events.append)
    steps = [event for event in events if isinstance(event, Fetching)]
    assert steps[-1].done == steps[-1].total == served.target.size + served.draft.size
    assert all(step.done <= step.total for step in steps)


def test_a_pull_takes_up_what_an_earlier_one_left(served, hub, impatient):
    part = part_of(served.pair.target.place)
    part.parent.mkdir(parents=True)
    part.write_bytes(served.target.path.read_bytes()[:200_000])
    assert bytes_to_fetch(served.pair) == served.target.size - 200_000 + served.draft.size
    target, _ = fetch(served.pair)
    assert target.read_bytes() == served.target.path.read_bytes()
    assert hub.sent[served.target.path.name] == served.target.size - 200_000


def test_a_damaged_part_is_found_out_and_fetched_again(served, impatient):
    part = part_of(served.pair.target.place)
    part.parent.mkdir(parents=True)
    part.write_bytes(served.target.path.read_bytes()[:300_000] + bytes(1000))
    notes = []
    target, _ = fetch(served.pair, on_progress=notes.append)
    assert target.read_bytes() == served.target.path.read_bytes()
    assert any("fetching it again" in str(note) for note in notes)


def test_dropped_connections_are_taken_up_where_they_broke(served, hub, impatient):
    served.target.drops = [100_000, 1, 150_000]
    fetch(served.pair)
    assert hub.sent[served.target.path.name] == served.target.size


def test_a_server_that_stops_sending_is_given_up_with_what_came(served, impatient):
    served.target.drops = [400_000, *[0] * 20]
    with pytest.raises(DownloadFailed, match="connection broke"):
        fetch(served.pair)
    assert part_of(served.pair.target.place).stat().st_size == 400_000
    assert not served.pair.target.place.exists()


def test_a_server_that_ignores_ranges_still_serves_the_rest(served, impatient):
    served.target.ignores_range = True
    served.target.drops = [200_000]
    target, _ = fetch(served.pair)
    assert target.read_bytes() == served.target.path.read_bytes()


def test_a_server_that_ignores_ranges_and_breaks_off_each_time_is_given_up(served, impatient):
    served.target.ignores_range = True
    served.target.drops = [200_000] * 50
    with pytest.raises(DownloadFailed, match="connection broke"):
        fetch(served.pair)
    assert len(served.target.drops) > 40


def test_416_falls_back_to_the_whole_file(served, impatient):
    served.target.drops = [300_000]
    served.target.statuses = []
    original = served.target.path.read_bytes()
    part = part_of(served.pair.target.place)
    part.parent.mkdir(parents=True)
    part.write_bytes(original[:50_000])
    served.target.statuses = [416]
    assert fetch(served.pair)[0].read_bytes() == original


def test_flipped_bytes_are_named_with_both_hashes_and_removed(served, impatient):
    served.draft.flip = served.draft.size - 10
    with pytest.raises(DownloadFailed) as caught:
        fetch(served.pair)
    assert served.draft.sha256 in str(caught.value)
    assert str(caught.value).count("sha256") == 1
    assert "draft.gguf" not in files_below(places.models_dir())
    assert "target.gguf" in files_below(places.models_dir())
    assert part_of(served.pair.draft.place).exists() is False


def test_a_replaced_file_is_refused_before_a_byte_comes(served, hub, impatient):
    served.target.said_sha256 = "f" * 64
    with pytest.raises(DownloadFailed, match="replaced") as caught:
        fetch(served.pair)
    assert "f" * 64 in str(caught.value)
    assert served.target.sha256 in str(caught.value)
    assert hub.gets() == []


def test_a_wrong_size_is_refused_before_a_byte_comes(served, hub, impatient):
    served.target.said_size = 5
    with pytest.raises(DownloadFailed, match="replaced: its size is 5 bytes"):
        fetch(served.pair)
    assert hub.gets() == []


@pytest.mark.parametrize(
    ("status", "code", "kind", "says"),
    [
        (401, "RepoNotFound", DownloadFailed, "does not exist, or is private"),
        (401, "", DownloadFailed, "does not accept the token"),
        (403, "", DownloadFailed, "does not let this token"),
        (403, "GatedRepo", DownloadFailed, "gated"),
        (404, "RepoNotFound", DownloadFailed, "does not exist"),
        (404, "EntryNotFound", DownloadFailed, "has no file"),
        (404, "RevisionNotFound", DownloadFailed, "revision"),
        (404, "", DownloadFailed, "not on the server"),
        (429, "", DownloadFailed, "too many requests"),
        (500, "", DownloadFailed, "problem of its own"),
        (503, "", DownloadFailed, "problem of its own"),
    ],
)
@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_every_refusal_is_one_sentence(served, impatient, method, status, code, kind, says):
    served.target.error_code = code
    if method == "HEAD":
        served.target.head_status = status
    else:
        served.target.statuses = [status] * 20
    with pytest.raises(kind, match=says) as caught:
        fetch(served.pair)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def test_a_short_illness_of_the_server_passes(served, impatient):
    served.target.statuses = [503, 429, 500]
    fetch(served.pair)
    assert served.pair.on_disk


def test_a_server_that_asks_for_a_long_wait_is_quoted(served, impatient):
    served.target.statuses, served.target.retry_after = [429], "3600"
    with pytest.raises(DownloadFailed, match="3600 s"):
        fetch(served.pair)


def test_the_token_goes_to_the_hub_and_never_to_another_origin(served, hub, monkeypatch, impatient):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with Hub() as cdn:
        cdn.files = hub.files.copy()
        served.target.elsewhere = cdn.endpoint
        fetch(served.pair)
        assert [request.authorization for request in cdn.requests] == [None]
    assert {request.authorization for request in hub.requests} == {"Bearer hf_secret"}


@pytest.mark.parametrize("endpoint", ["nonsense", "http://[bad", "ftp://hub"])
def test_an_endpoint_that_is_none_is_one_sentence(served, monkeypatch, impatient, endpoint):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(DownloadFailed) as caught:
        fetch(served.pair)
    assert "\n" not in str(caught.value)


def test_an_address_that_has_expired_is_asked_for_again(served, hub, impatient):
    with Hub() as cdn:
        cdn.files = hub.files.copy()
        served.target.elsewhere = cdn.endpoint
        served.target.drops, served.target.statuses = [100_000], []
        served.target.after_a_drop = [403]
        target, _ = fetch(served.pair)
    assert target.read_bytes() == served.target.path.read_bytes()


def test_a_refused_pull_leaves_nothing_behind(served, impatient):
    served.target.statuses = [403]
    with pytest.raises(DownloadFailed):
        fetch(served.pair)
    assert files_below(places.models_dir()) == set()


def test_a_file_on_which_llama_cpp_aborts_is_refused_by_its_header_and_not_kept(
    hub, tiny_gguf, tmp_path, impatient
):
    raw, path = taken_apart(tiny_gguf(vocab_size=1024, layers=3)), tmp_path / "target.gguf"
    broken = next(m for m in by_meaning(raw) if "layer_norm_rms_epsilon" in m.note and "nan" in m.note)
    path.write_bytes(broken.written())
    target = hub.add("org/target", "target.gguf", path)
    draft = hub.add("org/draft", "draft.gguf", tiny_gguf(vocab_size=1024, layers=1))
    with pytest.raises(BadModelFile, match=r"target\.gguf has nan"):
        fetch(pair_of(target, draft))
    assert files_below(places.models_dir()) == set()


def test_progress_counts_only_what_has_to_come(served, impatient):
    fetch(served.pair)
    served.pair.draft.place.unlink()
    events = []
    fetch(served.pair, on_progress=events.append)
    last = [event for event in events if isinstance(event, Fetching)][-1]
    assert (last.done, last.total) == (served.draft.size, served.draft.size)


def test_an_unreachable_hub_is_one_sentence(served, monkeypatch, impatient):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DownloadFailed, match=r"127\.0\.0\.1 cannot be reached") as caught:
        fetch(served.pair)
    assert caught.value.hint == "check the network, then run the same command again later"


def test_a_server_without_an_address_is_asked_once_and_named(served, monkeypatch):
    waits = []
    monkeypatch.setattr("localspec.models.hub.sleep", waits.append)
    monkeypatch.setenv("HF_ENDPOINT", "http://no-such-host.invalid")
    with pytest.raises(DownloadFailed, match=r"no-such-host\.invalid cannot be reached: no network"):
        fetch(served.pair)
    assert waits == []


def test_files_in_the_hugging_face_cache_are_used_where_they_are(served, hub, impatient):
    repository = places.hub_cache() / "models--org--target"
    blob = repository / "blobs" / served.target.sha256
    snapshot = repository / "snapshots" / served.pair.target.revision
    blob.parent.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    blob.write_bytes(served.target.path.read_bytes())
    (snapshot / "target.gguf").symlink_to(blob)
    assert bytes_to_fetch(served.pair) == served.draft.size
    target, _ = fetch(served.pair)
    assert target == snapshot / "target.gguf"
    assert hub.sent[served.target.path.name] == 0
    assert served.pair.target.path == target
    assert not places.is_ours(target)


def test_a_corrupt_copy_in_the_cache_is_left_alone_and_not_used(served, impatient):
    blob = places.hub_cache() / "models--org--target" / "blobs" / served.target.sha256
    blob.parent.mkdir(parents=True)
    blob.write_bytes(bytes(served.target.size))
    target, _ = fetch(served.pair)
    assert places.is_ours(target)
    assert blob.exists()


def test_a_file_that_rotted_on_disk_is_removed_named_and_fetched_again(served, impatient):
    target, _ = fetch(served.pair)
    target.write_bytes(bytes(served.target.size))
    notes = []
    fetch(served.pair, on_progress=notes.append)
    (removed,) = (note for note in notes if "was damaged" in str(note))
    assert served.target.sha256 in removed
    assert target.read_bytes() == served.target.path.read_bytes()


def test_an_incompatible_pair_costs_its_headers_only(hub, tiny_gguf, impatient):
    target = hub.add("org/target", "target.gguf", tiny_gguf(vocab_size=1024, layers=40))
    draft = hub.add("org/draft", "draft.gguf", demo.draft_path())
    with pytest.raises(IncompatiblePair, match="their vocabularies differ"):
        fetch(pair_of(target, draft))
    assert files_below(places.models_dir()) == set()


def test_a_file_that_is_no_model_costs_its_first_bytes_only(hub, tiny_gguf, tmp_path, impatient):
    (tmp_path / "junk").write_bytes(os.urandom(3_000_000))
    target = hub.add("org/target", "target.gguf", tmp_path / "junk")
    draft = hub.add("org/draft", "draft.gguf", tiny_gguf())
    with pytest.raises(BadModelFile, match="not a GGUF"):
        fetch(pair_of(target, draft))
    assert files_below(places.models_dir()) == set()


def test_stopping_keeps_what_came_and_the_next_pull_goes_on(served, hub, impatient):
    came = []
    with pytest.raises(PullCancelled):
        fetch(
            served.pair,
            on_progress=came.append,
            cancelled=lambda: hub.sent.total() > 150_000,
        )
    assert part_of(served.pair.target.place).stat().st_size > 0
    fetch(served.pair)
    assert served.pair.on_disk
    assert files_below(places.models_dir()) == {"target.gguf", "draft.gguf"}


def test_two_pulls_at_once_fetch_every_byte_once(served, hub, impatient):
    hub.bytes_per_second = 2_000_000
    failures = []

    def one() -> None:
        try:
            fetch(served.pair)
        except Exception as error:  # noqa: BLE001  carried over to the main thread
            failures.append(error)

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert served.pair.on_disk
    assert files_below(places.models_dir()) == {"target.gguf", "draft.gguf"}
    assert hub.sent.total() == served.target.size + served.draft.size


def test_space_is_checked_before_the_first_byte(served, hub, monkeypatch, impatient):
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1_000_000})())
    with pytest.raises(DownloadFailed, match=r"has 1.0 MB"):
        fetch(served.pair)
    assert hub.gets() == []


def test_no_space_is_asked_for_when_nothing_is_needed(tmp_path):
    check_space(tmp_path / "not" / "made", 0)


@pytest.mark.parametrize(
    ("code", "says"),
    [(errno.ENOSPC, "disk is full"), (errno.EROFS, "no permission"), (errno.EACCES, "no permission")],
)
def test_a_disk_that_refuses_is_one_sentence(served, monkeypatch, impatient, code, says):
    class Refusing(io.FileIO):
        def write(self, chunk):
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(
        PartialFile, "take_up", lambda part: setattr(part, "_file", Refusing(part.path, "r+"))
    )
    with pytest.raises(DownloadFailed, match=says):
        fetch(served.pair)


def test_a_folder_that_cannot_be_made_is_one_sentence(served, impatient, own_home):
    own_home.mkdir()
    (own_home / "data").write_text("in the way")
    with pytest.raises(DownloadFailed, match="cannot be stored"):
        fetch(served.pair)


def test_offline_says_so(served, monkeypatch, impatient):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DownloadFailed, match="HF_HUB_OFFLINE"):
        fetch(served.pair)


@pytest.mark.parametrize("revision", [COMMIT, "f" * 40])
def test_a_pair_whose_two_files_are_one_is_fetched_once(served, hub, impatient, revision):
    one = served.pair.target
    pair = replace(served.pair, draft=replace(one, revision=revision, quant="Q8_0"))
    waited = threading.Event()
    limit = threading.Timer(20, waited.set)
    limit.start()
    target, draft = fetch(pair, cancelled=waited.is_set)
    limit.cancel()
    assert target == draft == one.place
    assert hub.sent.total() == one.bytes
    assert file_bytes(pair) == one.bytes


@pytest.mark.skipif(sys.platform == "win32", reason="flock")
def test_a_home_without_locks_is_fetched_into_without_one(served, monkeypatch, impatient):
    """Some network homes have none: there is nothing to wait for, and no reason to refuse."""

    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    fetch(served.pair)
    assert files_below(places.models_dir()) == {"target.gguf", "draft.gguf"}
    remove(served.pair)
    assert files_below(places.models_dir()) == set()
