"""What a bench says in words is what its intervals allow to say."""

import re
from dataclasses import replace

import pytest

from localspec.display import aligned
from localspec.measure.bench import Category
from localspec.measure.intervals import Interval
from localspec.measure.summary import (
    COLUMNS,
    Decision,
    Finding,
    Row,
    Summary,
    cells,
    finding,
    headlines,
    in_words,
    report,
    verdict,
)

CODE, CHAT = Category.CODE, Category.CHAT


def row(category, low, middle, high, **changes):
    row = Row(category, 0.0, "auto", 10.0, 10.0 * middle, Interval(middle, low, high), 0.7, 2.4, 0.12, 4, 8)
    return replace(row, **changes)


def decided(*rows):
    return verdict(Summary(rows, 0, 1.0, 100), 0.0)


@pytest.mark.parametrize(
    ("low", "middle", "high", "expected"),
    [
        (1.5, 1.8, 2.1, Finding.FASTER),
        (1.01, 1.03, 1.06, Finding.SLIGHTLY_FASTER),
        (0.99, 1.0, 1.01, Finding.SAME),
        (0.975, 0.985, 0.995, Finding.SAME),
        (0.7, 0.8, 0.9, Finding.SLOWER),
        (0.8, 1.1, 1.6, Finding.UNSURE),
        (0.0, 3.0, float("inf"), Finding.UNSURE),
    ],
)
def test_a_finding_is_never_stronger_than_its_interval(low, middle, high, expected):
    assert finding(Interval(middle, low, high)) is expected


def test_go_when_the_mix_is_surely_faster_and_the_losers_are_named():
    verdict = decided(row(CODE, 1.7, 1.9, 2.1), row(CHAT, 0.8, 0.85, 0.9), row(None, 1.1, 1.3, 1.5))
    assert verdict.decision is Decision.GO
    assert "Slower on chat (0.85x)" in verdict.reason
    assert "70% of the guesses are kept" in verdict.reason
    assert "12% of the time of a plain token" in verdict.reason


def test_go_for_some_categories_when_the_mix_gains_nothing():
    verdict = decided(row(CODE, 1.2, 1.3, 1.4), row(CHAT, 0.7, 0.75, 0.8), row(None, 0.98, 0.99, 1.0))
    assert verdict.decision is Decision.GO
    assert "code (1.30x) only" in verdict.reason


def test_no_go_when_nothing_is_gained_anywhere():
    off = {"mean_accepted_length": 1.0, "acceptance_rate": 0.0}
    verdict = decided(row(CODE, 0.99, 1.0, 1.01, **off), row(None, 0.98, 0.99, 1.01, **off))
    assert verdict.decision is Decision.NO_GO
    assert "Hardly a guess was kept" in verdict.reason


@pytest.mark.parametrize("high", [1.7, float("inf")])
def test_a_gain_without_a_kept_guess_is_no_gain(high):
    lucky = row(CODE, 1.4 if high < 2 else 0.0, 1.58, high, mean_accepted_length=1.0, acceptance_rate=0.0)
    assert in_words(lucky) == "no gain: hardly a guess was kept"
    assert decided(lucky, replace(lucky, category=None)).decision is Decision.NO_GO


def test_undecided_while_the_interval_holds_both():
    assert decided(row(CODE, 0.8, 1.1, 1.5), row(None, 0.8, 1.1, 1.5)).decision is Decision.UNDECIDED


def test_too_few_prompts_are_said_to_be_too_few():
    assert "2 prompts cannot tell" in in_words(row(CODE, 0.0, 3.0, float("inf"), prompts=2))


def test_the_report_has_a_line_for_each_category_and_the_depth_that_beat_auto():
    rows = (
        row(CODE, 1.7, 1.9, 2.1),
        row(CODE, 1.9, 2.1, 2.3, arm="depth 4"),
        row(None, 1.7, 1.9, 2.1),
        row(None, 1.9, 2.1, 2.3, arm="depth 4"),
    )
    summary = Summary(rows, 3, 1.5, 900)
    text = report(summary)
    assert "Ahead of auto: depth 4, by 10.5%." in text
    assert headlines(summary).startswith("Drafting pays at temperature 0: ")
    assert "3 pairs of replies too short" in text
    assert "1.5 s of reading 900 prompt tokens" in text
    assert len({len(line) for line in aligned([COLUMNS, *map(cells, rows)]).splitlines()}) == 1


def test_the_speed_of_a_toy_is_left_out():
    text = report(Summary((row(CODE, 0.5, 0.6, 0.7), row(None, 0.5, 0.6, 0.7)), 0, 1.0, 100), toy=True)
    assert "70%" in text
    assert not re.search(r"0\.[67]|slower|speed", text)
    assert "auto: drafting is off here" not in text
    idle = row(None, 0.5, 0.6, 0.7, acceptance_rate=0.0, mean_accepted_length=1.0)
    text = report(Summary((idle, row(None, 0.5, 0.6, 0.7, arm="depth 4")), 0, 1.0, 100), toy=True)
    assert "auto: drafting is off here, because a pass of this toy is shorter than a guess." in text
