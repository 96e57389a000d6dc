"""Pulling a pair from a Hub that behaves, and from one that does not."""

import errno
import io
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from localspec import demo
from localspec.errors import BadModelFile, DownloadFailed, IncompatiblePair, LocalspecError
from localspec.models import local_models
from localspec.models.download import Fetching, PartialFile, bytes_to_fetch, fetch, part_of
from localspec.models.removal import remove
from tests.gguf.mutations import by_meaning, taken_apart
from tests.models.conftest import pair_of
from tests.models.hub import COMMIT, Hub

pytestmark = pytest.mark.process


def files_below(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


def test_a_pulled_pair_is_on_disk_and_nothing_else_is(served, hub, impatient):
    target, draft = fetch(served.pair)
    assert target.read_bytes() == served.target.path.read_bytes()
    assert draft.read_bytes() == served.draft.path.read_bytes()
    assert files_below(local_models.models_dir()) == {"target.gguf", "draft.gguf"}
    assert served.pair.on_disk

    asked = len(hub.requests)
    fetch(served.pair)
    assert len(hub.requests) == asked, "a second pull asks nobody"


def test_the_pair_is_proved_before_most_of_it_came_and_progress_ends_at_the_total(served, impatient):
    events = []
    fetch(served.pair, on_progress=events.append)
    proved = next(i for i, event in enumerate(events) if event == "target and draft fit each other")
    assert proved < next(i for i, event in enumerate(events) if "sha256 verified" in str(event))
    steps = [event for event in events if isinstance(event, Fetching)]
    assert steps[-1].done == steps[-1].total == served.target.size + served.draft.size
    assert all(step.done <= step.total for step in steps)


def left_behind(served, count, junk=b""):
    part = part_of(served.pair.target.place)
    part.parent.mkdir(parents=True)
    part.write_bytes(served.target.path.read_bytes()[:count] + junk)


def test_a_pull_takes_up_what_an_earlier_one_left(served, hub, impatient):
    left_behind(served, 200_000)
    assert bytes_to_fetch(served.pair) == served.target.size - 200_000 + served.draft.size
    target, _ = fetch(served.pair)
    assert target.read_bytes() == served.target.path.read_bytes()
    assert hub.sent[served.target.path.name] == served.target.size - 200_000


def test_a_damaged_part_is_found_out_and_fetched_again(served, impatient):
    left_behind(served, 300_000, bytes(1000))
    notes = []
    target, _ = fetch(served.pair, on_progress=notes.append)
    assert target.read_bytes() == served.target.path.read_bytes()
    assert any("downloading it again" in str(note) for note in notes)


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


def test_a_server_that_ignores_ranges_still_serves_the_rest_and_is_given_up_if_it_always_breaks_off(
    served, impatient
):
    served.target.ignores_range, served.target.drops = True, [200_000] * 50
    with pytest.raises(DownloadFailed, match="connection broke"):
        fetch(served.pair)
    assert len(served.target.drops) > 40
    served.target.drops = [200_000]
    target, _ = fetch(served.pair)
    assert target.read_bytes() == served.target.path.read_bytes()


def test_416_falls_back_to_the_whole_file(served, impatient):
    left_behind(served, 50_000)
    served.target.drops, served.target.statuses = [300_000], [416]
    assert fetch(served.pair)[0].read_bytes() == served.target.path.read_bytes()


def test_flipped_bytes_are_named_with_both_hashes_and_removed(served, impatient):
    served.draft.flip = served.draft.size - 10
    with pytest.raises(DownloadFailed) as caught:
        fetch(served.pair)
    assert served.draft.sha256 in str(caught.value)
    assert str(caught.value).count("sha256") == 1
    assert "draft.gguf" not in files_below(local_models.models_dir())
    assert "target.gguf" in files_below(local_models.models_dir())
    assert part_of(served.pair.draft.place).exists() is False


def test_a_replaced_file_is_refused_before_a_byte_comes(served, hub, impatient):
    served.target.sent_sha256 = "f" * 64
    with pytest.raises(
        DownloadFailed,
        match=f"nothing was downloaded: its sha256 is {'f' * 64} instead of {served.target.sha256}",
    ):
        fetch(served.pair)
    served.target.sent_size = 5
    with pytest.raises(DownloadFailed, match="nothing was downloaded: its size is 5 bytes"):
        fetch(served.pair)
    assert hub.gets() == []


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (401, "RepoNotFound", "does not exist, or is private"),
        (401, "", "does not accept the token"),
        (403, "", "does not let this token"),
        (403, "GatedRepo", "gated"),
        (404, "RepoNotFound", "does not exist"),
        (404, "EntryNotFound", "has no file"),
        (404, "RevisionNotFound", "revision"),
        (404, "", "not on the server"),
        (429, "", "too many requests"),
        (500, "", "problem of its own"),
        (503, "", "problem of its own"),
    ],
)
@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_every_refusal_is_one_sentence(served, impatient, method, status, code, says):
    served.target.error_code = code
    if method == "HEAD":
        served.target.head_status = status
    else:
        served.target.statuses = [status] * 20
    with pytest.raises(LocalspecError, match=says) as caught:
        fetch(served.pair)
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    assert files_below(local_models.models_dir()) == set()


def test_a_short_illness_of_the_server_passes_and_a_long_wait_is_quoted(served, impatient):
    served.target.statuses, served.target.retry_after = [429], "3600"
    with pytest.raises(DownloadFailed, match="3600 s"):
        fetch(served.pair)
    served.target.statuses, served.target.retry_after = [503, 429, 500], None
    fetch(served.pair)
    assert served.pair.on_disk


@pytest.mark.parametrize(
    ("retry_after", "rate_limit", "waits"),
    [
        ("", '"resolvers";r=0;t=9', 9.0),
        ("7", '"resolvers";r=0;t=9', 7.0),
        ("nan", "", 0.5),
        ("-inf", "", 0.5),
    ],
)
def test_the_wait_that_the_server_names_is_kept(served, monkeypatch, retry_after, rate_limit, waits):
    waited = []
    monkeypatch.setattr("localspec.models.hub.sleep", waited.append)
    served.target.statuses = [429]
    served.target.retry_after, served.target.rate_limit = retry_after, rate_limit
    fetch(served.pair)
    assert waited == [waits]


def test_the_token_goes_to_the_hub_and_never_to_another_origin(served, hub, monkeypatch, impatient):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with Hub() as cdn:
        cdn.files = hub.files.copy()
        served.target.elsewhere = cdn.endpoint
        fetch(served.pair)
        assert [request.authorization for request in cdn.requests] == [None]
    assert {request.authorization for request in hub.requests} == {"Bearer hf_secret"}


def test_an_address_that_has_expired_is_asked_for_again(served, hub, impatient):
    with Hub() as cdn:
        cdn.files = hub.files.copy()
        served.target.elsewhere = cdn.endpoint
        served.target.drops, served.target.statuses = [100_000], []
        served.target.after_a_drop = [403]
        target, _ = fetch(served.pair)
    assert target.read_bytes() == served.target.path.read_bytes()


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
    assert files_below(local_models.models_dir()) == set()


@pytest.mark.parametrize(
    ("endpoint", "says"),
    [
        ("nonsense", "not the address of a server"),
        ("http://[bad", "not the address of a server"),
        ("ftp://hub", "not the address of a server"),
        ("http://127.0.0.1:9", r"127\.0\.0\.1 cannot be reached"),
    ],
)
def test_a_hub_that_cannot_be_reached_is_one_sentence(served, monkeypatch, impatient, endpoint, says):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(DownloadFailed, match=says) as caught:
        fetch(served.pair)
    assert "\n" not in str(caught.value)


def test_a_server_without_an_address_is_asked_once_and_named(served, monkeypatch):
    waits = []
    monkeypatch.setattr("localspec.models.hub.sleep", waits.append)
    monkeypatch.setenv("HF_ENDPOINT", "http://no-such-host.invalid")
    with pytest.raises(DownloadFailed, match=r"no-such-host\.invalid cannot be reached: no network"):
        fetch(served.pair)
    assert waits == []


def test_files_in_the_hugging_face_cache_are_used_where_they_are(served, hub, impatient):
    repository = local_models.folders_of(local_models.HUGGING_FACE)[0] / "models--org--target"
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
    assert not local_models.is_ours(target)


def test_a_corrupt_copy_in_the_cache_is_left_alone_and_not_used(served, impatient):
    blob = (
        local_models.folders_of(local_models.HUGGING_FACE)[0]
        / "models--org--target"
        / "blobs"
        / served.target.sha256
    )
    blob.parent.mkdir(parents=True)
    blob.write_bytes(bytes(served.target.size))
    target, _ = fetch(served.pair)
    assert local_models.is_ours(target)
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
    assert files_below(local_models.models_dir()) == set()


def test_space_is_checked_before_the_first_byte(served, hub, monkeypatch, impatient):
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1_000_000})())
    with pytest.raises(DownloadFailed, match=r"has 1.0 MB"):
        fetch(served.pair)
    assert hub.gets() == []


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


@pytest.mark.parametrize("revision", [COMMIT, "f" * 40])
def test_a_pair_whose_two_files_are_one_is_fetched_once(served, hub, impatient, revision):
    one = served.pair.target
    pair = replace(served.pair, draft=replace(one, revision=revision, quant="Q8_0"))
    target, draft = fetch(pair)
    assert target == draft == one.place
    assert hub.sent.total() == one.bytes
    assert pair.file_bytes == one.bytes


@pytest.mark.skipif(sys.platform == "win32", reason="flock")
def test_a_home_without_locks_is_fetched_into_without_one(served, monkeypatch, impatient):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    fetch(served.pair)
    assert files_below(local_models.models_dir()) == {"target.gguf", "draft.gguf"}
    remove(served.pair)
    assert files_below(local_models.models_dir()) == set()
