"""The race: clocks, the past of a side, the headline, and the picture."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from localspec.display import counted
from localspec.events import Cycle, Kind, Origin, Piece, Source, Stats
from localspec.measure.race import CROWDED, UNFAIR, Lane, Race, clock, headline, picture

GUESSED = Stats(cycles=4, emitted=10, drafted=4, accepted=3, draft_seconds=0.6, verify_seconds=0.4)


def lane(*texts):
    found = Lane()
    for text in texts:
        found = found.after(
            Cycle((1, 2), (Origin.ACCEPTED, Origin.BONUS), (1,), 1, 1, Source.MODEL, 2, 0.1, 0.3, 0.1)
        )
        found = found.after(Piece(text, Kind.ANSWER, Origin.ACCEPTED, Source.MODEL))
    return found


def test_a_clock_counts_passes_and_goes_back():
    whole = lane("one ", "two ", "three ")
    assert (whole.seconds, whole.tokens, whole.cycles, whole.drafted) == (1.5, 6, 3, 3)
    before = whole.until(1.0)
    assert [text for text, _ in before.written] == ["one ", "two "]
    assert (before.tokens, before.cycles) == (4, 2)
    assert whole.until(1.5) is whole


@pytest.mark.parametrize(
    ("speedup", "said"),
    [
        (2.34, "2.3 times as fast, the same text: 1.0 s instead of 2.0 s, 3 of 4 guesses kept."),
        (1.01, "As fast as plain decoding, the same text: "),
        (0.5, "Slower, 0.50 times as fast, the same text: "),
        (0.0, "Too little was decoded"),
    ],
)
def test_the_headline_says_the_gain_first_then_the_text(speedup, said):
    assert headline(speedup, True, (2.0, 1.0), GUESSED).startswith(said)
    assert "the texts differ" in headline(2.0, False, (2.0, 1.0), GUESSED)
    assert "differ" not in headline(2.0, False, (2.0, 1.0), GUESSED, sampled=True)


@pytest.mark.parametrize("speedup", [0.7, 1.2])
@pytest.mark.parametrize(
    ("drafted", "took", "said"),
    [
        (0, "took no part", "0 of 0 guesses kept in 40 tokens"),
        (1, "hardly took part", "0 of 1 guess kept in 40 tokens"),
    ],
)
def test_where_hardly_anything_was_guessed_a_difference_is_noise(speedup, drafted, took, said):
    found = headline(speedup, True, (1.2, 1.0), Stats(cycles=40, emitted=40, drafted=drafted))
    assert found == f"Drafting {took}, the same text: {said}. A difference in time is noise."


def test_no_gain_is_claimed_that_the_guesses_cannot_have_brought():
    """Two tokens a pass save at most half of the passes."""
    drafting = Stats(cycles=20, emitted=40, drafted=40, accepted=20)
    assert headline(2.05, True, (2.05, 1.0), drafting).startswith("2.0 times as fast")
    unfair = headline(2.2, True, (2.2, 1.0), drafting)
    assert unfair == f"Not measured, the same text: 20 of 40 guesses kept. {UNFAIR}"


def test_no_loss_is_claimed_that_the_guesses_cannot_have_caused():
    few = Stats(cycles=316, emitted=338, drafted=24, accepted=22, verify_seconds=10.0)
    unfair = headline(0.78, True, (7.8, 10.0), few)
    assert unfair == f"Not measured, the same text: 22 of 24 guesses kept. {UNFAIR}"
    costly = replace(few, verify_seconds=7.0, draft_seconds=3.0)  # the draft read and guessed for long
    assert headline(0.78, True, (7.8, 10.0), costly).startswith("Slower, 0.78 times as fast")
    wrong = replace(few, cycles=320, drafted=1000, accepted=18)  # wide passes that brought little
    assert headline(0.5, True, (5.0, 10.0), wrong).startswith("Slower, 0.50 times as fast")
    assert "Not measured" in headline(0.9, True, (9.0, 10.0), GUESSED, crowded=True)
    said = headline(1.5, True, (15.0, 10.0), GUESSED, crowded=True)
    assert said.startswith("1.5 times as fast")
    assert said.endswith(CROWDED)


def test_the_clock_of_a_toy_counts_passes_alone():
    toy = Lane(is_toy=True)
    for cycle in (1, 2):
        toy = toy.after(plain_cycle())
        assert clock(toy) == f"{counted(cycle, 'token')} · {counted(cycle, 'pass', 'passes')}"
    assert toy.until(toy.seconds / 2).cycles == 1
    assert clock(Lane().after(plain_cycle())) == "0.50 s · 1 token · 1 pass"


def plain_cycle():
    return Cycle((1,), (Origin.PLAIN,), (), 0, 0, Source.PLAIN, 1, 0.0, 0.5, 0.0)


def test_no_text_of_a_model_steers_the_terminal_that_shows_the_race():
    race = Race(lane("\x1b[2J\x1b]52;c;eA==\x07"), lane("[bold]x"))
    console = Console(file=io.StringIO(), width=80)
    console.print(picture(race.lanes, "\x1b[31m[b]", "about", "headline"))
    assert "\x1b" not in console.file.getvalue()
    assert "[bold]x" in console.file.getvalue()
