"""A terminal shows whole words, whatever its width and whichever command writes; a pipe gets whole lines."""

import io
import re
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest

from localspec.cli import main
from localspec.cli.commands import HELP
from localspec.display import Row, say, wrapped

pytestmark = pytest.mark.usefixtures("home")

WIDTHS = (40, 80, 120)
TEXT = "Checking is faster than writing, so right guesses save time: a pass checks many tokens at once."
LINES = [
    *(f"{command} --help" for command in HELP),
    "--help",
    "config",
    "pairs",
    "list",
    "rm demo",
    "info demo",
    "doctor",
    "pull nothing",
    "info nothing",
    "chat --nothing x",
    "serve --host 0.0.0.0",
    "fit --report",
    "run --stats",
    "run Hi --stats --max-tokens 40 --threads 1",
    "bench Hi --max-tokens 4 --threads 1",
    "bench --runs 1 --only json --max-tokens 16 --temperature 0 --threads 1",
    "tune --seconds 2 --threads 1",
    "verify --seconds 2 --threads 1",
    "completion tcsh",
]


class Screen(io.StringIO):
    def __init__(self, is_terminal=True):
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal

    def rows(self):
        """The rows as they stand in the end: what was drawn over or erased is gone."""
        text = re.sub(r"\x1b\[2m|\x1b\[0m", "", self.getvalue())
        text = re.sub(r"[^\n]*\r\x1b\[K", "", text)
        while moved := re.search(r"\x1b\[(\d+)D\x1b\[K", text):
            text = text[: moved.start() - int(moved[1])] + text[moved.end() :]
        return text.split("\n")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("line", LINES)
def test_no_word_crosses_the_edge(line, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    screen = Screen()
    with redirect_stdout(screen), redirect_stderr(screen):
        main(line.split())
    rows = screen.rows()
    assert "".join(rows)
    assert [row for row in rows if len(row) > width and len(row.split()) > 1 and row[:5].strip()] == []


@pytest.mark.parametrize("line", ["run", "pull nothing", "serve --host 0.0.0.0", "pairs"])
def test_a_pipe_gets_whole_lines(line, monkeypatch):
    texts = []
    for width in WIDTHS:
        monkeypatch.setenv("COLUMNS", str(width))
        pipe = Screen(is_terminal=False)
        with redirect_stdout(pipe), redirect_stderr(pipe):
            main(line.split())
        texts.append(pipe.getvalue())
    assert len(set(texts)) == 1


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_a_reply_in_pieces_looks_like_the_whole_of_it(size, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr(sys, "stdout", screen := Screen())
    monkeypatch.setenv("TERM", "xterm")
    for start in range(0, len(TEXT), size):
        say(TEXT[start : start + size], end="")
    say("")
    assert [row.rstrip() for row in screen.rows()] == [
        "Checking is faster than",
        "writing, so right guesses",
        "save time: a pass checks many",
        "tokens at once.",
        "",
    ]


def test_code_in_a_reply_keeps_its_lines():
    code = "```python\nprint('one', 'two', 'three', 'four', 'five')\n```\n"
    row, shown = Row(), ""
    for letter in code + "and then more words than fit":
        shown += wrapped(letter, 20, row, whole=False)
    assert shown.startswith(code)
    assert len(shown.removeprefix(code).split("\n")) == 2


def test_a_line_continues_under_its_last_column_and_a_command_stays_whole():
    table = "name      a purpose of many words\n    pip install one two three four five"
    assert rows_of(table, 24) == [
        "name      a purpose of",
        "          many words",
        "    pip install one two three four five",
    ]


def test_a_word_that_is_longer_than_a_row_begins_a_row():
    assert rows_of("see https://example.org/a/long/way now", 12) == [
        "see",
        "https://example.org/a/long/way",
        "now",
    ]


def rows_of(text, width):
    return [row.rstrip() for row in wrapped(text, width, Row()).split("\n")]


def test_wide_letters_break_anywhere_and_count_twice():
    assert wrapped("推測的解碼比較快", 6, Row()) == "推測的\n解碼比\n較快"


def test_a_number_and_its_unit_stay_in_one_row():
    said = "This pair takes (about 6.0 GB), loads in 12 min and writes 20 tokens/s on a GPU."
    for width in range(12, 80):
        rows = wrapped(said, width, Row()).split("\n")
        for whole in ("(about", "6.0 GB)", "12 min", "20 tokens/s"):
            assert any(whole in row for row in rows), width
