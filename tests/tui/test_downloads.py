"""Lists and pulls run in threads of the chat, and the failure of one is not the end of the other."""

import threading
import time

import pytest
from scripted_pairs import Gate, ScriptedPairs

from localspec.errors import BadSetting, DownloadFailed


def ends(downloads):
    """What the next pull or list that ends reports."""
    deadline = time.monotonic() + 20
    while not (found := downloads.take_ended()):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return found


@pytest.fixture
def downloads():
    found = ScriptedPairs(Gate(hold_after=3))
    yield found
    found.close()


def test_a_list_that_fails_leaves_the_pull_running(downloads):
    downloads.pull("mine")
    while not downloads.progress.done_bytes:
        time.sleep(0.002)
    downloads.failure = BadSetting("models.toml is damaged", hint="repair it")
    downloads.refresh()
    assert [failure.what for _name, failure in ends(downloads)] == ["models.toml is damaged"]
    assert downloads.progress.name == "mine"
    assert downloads.rows == ()


@pytest.mark.parametrize("error", [DownloadFailed("no network", hint=""), KeyError("x")])
def test_a_pull_that_fails_is_over_and_says_why(downloads, error):
    downloads.failure = error
    downloads.pull("mine")
    downloads.gate.opened.set()
    ((name, failure),) = ends(downloads)
    assert (str(error) in failure.what, name, downloads.progress) == (True, "mine", None)


def test_leaving_stops_the_pull(downloads):
    downloads.pull("mine")
    downloads.close()
    assert [failure.error for _name, failure in ends(downloads)] == ["PullCancelled"]
    assert not [thread for thread in threading.enumerate() if thread is downloads._thread]
