"""Where reading the prompt took most of the time, the numbers of a reply say so."""

import pytest

from localspec.cli.commands.run import report, summary
from localspec.events import FinishReason, Reply, Stats


def reply(prefill_seconds, verify_seconds):
    stats = Stats(
        cycles=4,
        emitted=4,
        prompt_tokens=900,
        reused_tokens=100,
        prefill_seconds=prefill_seconds,
        verify_seconds=verify_seconds,
    )
    return Reply("text", "", (1, 2, 3, 4), 7, FinishReason.STOP, stats)


def test_a_reply_that_was_mostly_reading_says_how_much():
    assert "98% of this was reading the prompt (800 tokens in 9.8 s)" in summary(reply(9.8, 0.2))


def test_a_reply_that_was_mostly_decoding_says_nothing_of_it():
    assert "reading" not in summary(reply(0.2, 9.8))
    assert "reading" not in summary(reply(0.0, 0.0))


def test_all_numbers_tell_prefill_from_decoding():
    lines = {line.split()[0]: line for line in report(reply(9.0, 1.0)).splitlines()}
    assert "90%" in lines["reading"]
    assert "10%" in lines["writing"]


def test_the_share_is_of_all_seconds():
    assert reply(3.0, 1.0).stats.prefill_share == pytest.approx(0.75)
    assert Stats().prefill_share == 0.0
