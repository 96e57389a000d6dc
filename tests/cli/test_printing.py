"""What commands print: nothing of a file or a model steers the terminal, and a terminal shows whole words."""

import io
import logging
import re
import sys
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import pytest

from localspec.cli import main
from localspec.cli.commands import HELP
from localspec.display import Cursor, LibraryNotices, say, wrapped

pytestmark = pytest.mark.usefixtures("home")

EVIL = "evil\x1b]52;c;ZXZpbA==\x07\x1b[2J\u202etxt"
DRAWING = re.compile(r"\x1b\[(K|[\d;]*[mA]|2K|\?25[lh])")  # what the program itself sends


@contextmanager
def terminal():
    """A terminal behind both streams."""
    screen = Screen()
    with redirect_stdout(screen), redirect_stderr(screen):
        yield screen


def steering(text: str) -> set[str]:
    text = DRAWING.sub("", text)
    return {c for c in text if c in "\x07\x1b\u202e"}


@pytest.mark.process
@pytest.mark.parametrize(
    "line",
    [
        "bench --runs 1 --only json --max-tokens 24 --temperature 0 --draft lookup --threads 1 --target",
        "verify --seconds 5 --threads 1 --draft MODEL --target",
        "run Hi --max-tokens 2 --stats --threads 1 --target",
        "bench Hi --max-tokens 2 --draft lookup --threads 1 --target",
        "info",
    ],
)
def test_a_models_own_name_steers_no_terminal(line, tiny_gguf, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    path = str(tiny_gguf(name=EVIL, vocab_size=400))
    with terminal() as screen:
        assert main([*line.replace("MODEL", path).split(), path]) == 0, screen.getvalue()
    assert "evil\ufffd" in screen.getvalue() or line.split()[0] in ("run", "bench")
    assert steering(screen.getvalue()) == set()


def test_what_libraries_log_is_a_note_and_steers_nothing():
    with terminal() as screen:
        logging.getLogger("somebody").handlers = [LibraryNotices()]
        logging.getLogger("somebody").warning("about %s", EVIL)
    assert "notice: about evil\ufffd" in screen.getvalue()
    assert steering(screen.getvalue()) == set()


@pytest.mark.process
def test_names_out_of_the_users_own_file_steer_nothing(tmp_path):
    folder = tmp_path / "home" / "pairs.d"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text(
        '[[pair]]\nname = "mine"\nuse = "\\u001b[2J"\n[pair.target]\npath = "\\u001b]52.gguf"\n'
        '[pair.draft]\npath = "d.gguf"\n'
    )
    with terminal() as screen:
        for line in ("pairs", "list", "pull mine", "info mine", "run --pair mine x", "rm mine"):
            main(line.split())
    assert "mine" in screen.getvalue()
    assert steering(screen.getvalue()) == set()


WIDTHS = (40, 80, 120)
TEXT = "Checking is faster than writing, so right guesses save time: a pass checks many tokens at once."
LINES = """config; pairs; list; rm demo; info demo; doctor; pull nothing; info nothing; chat --nothing x;
serve --host 0.0.0.0; fit --report; run --stats; run Hi --stats --max-tokens 40 --threads 1;
bench Hi --max-tokens 4 --threads 1; verify --seconds 2 --threads 1; completion tcsh; --help;
bench --runs 1 --only json --max-tokens 16 --temperature 0 --threads 1"""


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


@pytest.mark.process
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("line", [*LINES.split(";"), *(f"{command} --help" for command in HELP)])
def test_no_word_crosses_the_edge(line, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    screen = Screen()
    with redirect_stdout(screen), redirect_stderr(screen):
        main(line.split())
    rows = [
        row for row in screen.rows() if not row.startswith("    CMAKE_ARGS=")
    ]  # stays whole, to be copied
    assert "".join(rows)
    assert [row for row in rows if len(row) > width and len(row.split()) > 1 and row[:5].strip()] == []


@pytest.mark.process
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
    row, shown = Cursor(), ""
    for letter in code + "and then more words than fit":
        shown += wrapped(letter, 20, row, whole=False)
    assert shown.startswith(code)
    assert len(shown.removeprefix(code).split("\n")) == 2


@pytest.mark.parametrize(
    ("text", "width", "rows"),
    [
        ("name      a purpose of many words", 24, ["name      a purpose of", "          many words"]),
        ("    pip install one two three four", 24, ["    pip install one two three four"]),
        ("see https://example.org/a/way now", 12, ["see", "https://example.org/a/way", "now"]),
    ],
)
def test_columns_go_on_below_themselves_and_commands_and_long_words_stay_whole(text, width, rows):
    assert [row.rstrip() for row in wrapped(text, width, Cursor()).split("\n")] == rows


def test_wide_letters_break_anywhere_and_count_twice():
    assert wrapped("推測的解碼比較快", 6, Cursor()) == "推測的\n解碼比\n較快"
