"""The race: clocks, the past of a side, the headline, and the picture."""

import io

import pytest
from rich.console import Console

from localspec.events import Cycle, Kind, Origin, Piece, Source
from localspec.measure.race import Lane, Race, headline, picture


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
    assert headline(speedup, True, (2.0, 1.0), 3, 4).startswith(said)
    assert "drafted" in headline(2.0, True, (2.0, 1.0), 0, 0)
    assert "the texts differ" in headline(2.0, False, (2.0, 1.0), 3, 4)
    assert "differ" not in headline(2.0, False, (2.0, 1.0), 3, 4, sampled=True)


def test_no_text_of_a_model_steers_the_terminal_that_shows_the_race():
    race = Race(lane("\x1b[2J\x1b]52;c;eA==\x07"), lane("[bold]x"))
    console = Console(file=io.StringIO(), width=80)
    console.print(picture(race.lanes, "\x1b[31m[b]", "about", "headline"))
    assert "\x1b" not in console.file.getvalue()
    assert "[bold]x" in console.file.getvalue()
