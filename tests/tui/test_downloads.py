"""Lists and pulls share a process, and the failure of one is not the end of the other."""

import pytest
from localspec.tui.state.engine import Downloads

from localspec.engine.messages import Died, Failure, PullProgress


class Reporting:
    """An engine that says what the test says."""

    alive = True

    def __init__(self):
        self.reports = []

    def send(self, request):
        pass

    def drain(self):
        reports, self.reports = self.reports, []
        return reports


@pytest.fixture
def engine():
    return Reporting()


@pytest.fixture
def downloads(engine):
    found = Downloads(lambda: engine)
    found.pull("mine")
    return found


def test_a_list_that_fails_leaves_the_pull_running(downloads, engine):
    failure = Failure("BadSetting", "models.toml is damaged", "repair it")
    engine.reports = [PullProgress("mine", "x.gguf", 1, 9), failure]
    assert downloads.take_news() == [failure]
    assert downloads.progress == PullProgress("mine", "x.gguf", 1, 9)
    assert downloads.rows == ()


@pytest.mark.parametrize("end", [Failure("DownloadFailed", "no network", "", serial=1), Died("killed", "")])
def test_a_pull_that_fails_is_over(downloads, engine, end):
    engine.reports = [end]
    assert downloads.take_news()
    assert downloads.progress is None
