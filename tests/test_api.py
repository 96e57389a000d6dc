"""The Python interface as a script uses it."""

from concurrent.futures import ThreadPoolExecutor

import pytest

import localspec
from localspec import api


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    yield
    localspec.unload()


def test_run_keeps_the_pair_loaded_until_unload():
    first = localspec.run("Hello", temperature=0, max_tokens=20)
    session = localspec.api._loaded.session
    again = localspec.run("Hello", temperature=0, max_tokens=20)
    assert first.tokens == again.tokens
    assert localspec.api._loaded.session is session
    localspec.unload()
    assert localspec.api._loaded is None


def test_every_run_begins_a_new_conversation():
    localspec.run("My name is Ada.", temperature=0, max_tokens=10)
    fresh = localspec.run("Hello", temperature=0, max_tokens=20)
    localspec.unload()
    assert localspec.run("Hello", temperature=0, max_tokens=20).tokens == fresh.tokens


def test_threads_take_turns():
    with ThreadPoolExecutor(3) as pool:
        replies = list(pool.map(lambda _: localspec.run("Hello", temperature=0, max_tokens=10), range(3)))
    assert len({reply.tokens for reply in replies}) == 1


def test_a_pair_that_is_let_go_while_it_replies_is_an_error_that_says_so(monkeypatch):
    stream = localspec.api.stream

    def interrupted(*args, **options):
        events = stream(*args, **options)
        yield next(events)
        localspec.unload()
        yield from events

    monkeypatch.setattr(localspec.api, "stream", interrupted)
    with pytest.raises(localspec.LocalspecError, match="closed while it replied"):
        localspec.run("Hello")


def test_stream_ends_with_the_reply():
    *_, last = localspec.stream("Hello", temperature=0, max_tokens=10)
    assert isinstance(last, localspec.Finished)


def test_a_pair_and_files_cannot_both_be_named():
    with pytest.raises(localspec.LocalspecError):
        localspec.run("Hello", pair="demo", target="x.gguf")


def test_devices_have_the_memory_that_the_plan_counts_on(monkeypatch):
    monkeypatch.setattr("localspec.models.devices.available_bytes", lambda: 5_000_000_000)
    cpu = next(device for device in api.devices() if device.kind == "cpu")
    assert cpu.free_bytes == 5_000_000_000
    assert cpu.total_bytes >= cpu.free_bytes
