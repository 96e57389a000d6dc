"""What a reply says of drafting: once each, and not of pauses that are part of trying."""

from localspec.chat.reply import WORTH_A_WORD, DraftingNotices
from localspec.errors import BackendFailure


def said(*cycles):
    """The notices after cycles of (why drafting is off, how the draft failed)."""
    remarks = DraftingNotices()
    return [notice.text for cycle in cycles for notice in remarks.after_cycle(*cycle)]


def test_drafting_that_stays_off_is_explained_once():
    assert said(*[("slow", None)] * 3 * WORTH_A_WORD) == ["slow"]
    again = [*[("slow", None)] * WORTH_A_WORD, (None, None)]
    assert said(*again * 3) == ["slow"]


def test_a_pause_is_not_worth_a_word():
    pause = [*[("slow", None)] * (WORTH_A_WORD - 1), (None, None)]
    assert said(*pause * 4) == []


def test_a_failure_is_told_at_once_and_once():
    failure = BackendFailure("out of luck")
    (told,) = said((None, failure), (None, failure), ("slow", failure))
    assert told.endswith("out of luck")
