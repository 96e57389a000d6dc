import itertools

import pytest


@pytest.fixture(autouse=True)
def steady_decisions(monkeypatch):
    """Let each decision on drafting take a microsecond: after a long one some steps have none."""
    ticks = itertools.count()
    monkeypatch.setattr("localspec.drafters.selection.perf_counter", lambda: next(ticks) / 1e6)
