"""Many clients at once, on a real engine."""

import asyncio

import pytest

from tests.serve.conftest import start, stop
from tests.serve.crowd import crowd


@pytest.mark.timeout(120)
def test_every_client_gets_its_own_word_while_others_leave_and_an_engine_is_killed(tmp_path):
    endpoint = start(tmp_path, "demo", "--parallel", "4")
    try:
        outcome = asyncio.run(crowd(endpoint.url, 30, 8, kills=1))
    finally:
        stop(endpoint)
    assert outcome.wrong == []
    assert outcome.counts["hung"] == 0
    assert outcome.counts["answered"] >= 14
    assert outcome.counts["killed"] >= 1
    assert outcome.most_at_once == 4
