"""A draft that is kept far less often than was published is worth one warning."""

import pytest

from localspec.algorithm.protocols import Proposal
from localspec.chat.reply import ENOUGH, Expectation
from localspec.events import Source
from tests.drafters.machine import cycle_of


def said(expected, kept, source=Source.HEAD, cycles=200):
    expectation = Expectation(expected)
    proposal = Proposal((1,) * 4, source=source, depth=4)
    found = [
        (4 * n, notice.text)
        for n in range(1, cycles + 1)
        for notice in expectation.after_cycle(cycle_of(proposal, kept))
    ]
    return found


def test_far_too_few_are_told_once_after_enough_tokens():
    ((tokens, text),) = said(0.65, kept=1)
    assert tokens == ENOUGH
    assert "keeps 25%" in text
    assert "65% were published" in text


@pytest.mark.parametrize(("expected", "kept", "source"), [(0.65, 2, Source.HEAD), (None, 0, Source.HEAD)])
def test_enough_are_not_and_nothing_is_expected_where_nothing_was_published(expected, kept, source):
    assert said(expected, kept, source) == []


def test_tokens_that_lookup_drafted_say_nothing_of_the_draft():
    assert said(0.65, kept=0, source=Source.LOOKUP) == []
