"""Nothing that a file or a model says steers the terminal, whichever command prints it."""

import ast
import io
import logging
import re
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from localspec.cli import main
from localspec.display import NotesOfLibraries

pytestmark = pytest.mark.usefixtures("home")

CLI = Path(__file__).resolve().parent.parent.parent / "localspec" / "cli"
EVIL = "evil\x1b]52;c;ZXZpbA==\x07\x1b[2J\u202etxt"
DRAWING = re.compile(r"\x1b\[(K|[\d;]*[mA]|2K|\?25[lh])")  # what the program itself sends


def printing(node: ast.AST) -> bool:
    """Whether it writes to a stream by itself."""
    match node:
        case ast.Name(id="print" | "pprint"):
            return True
        case ast.Call(func=ast.Name(id="input"), args=[_, *_]):
            return True
        case ast.Attribute(attr="write" | "writelines"):
            return True
    return False


@pytest.mark.parametrize(
    "path",
    sorted(CLI.glob("**/*.py")),
    ids=lambda path: path.name,
)
def test_only_the_filter_prints(path):
    tree = ast.parse(path.read_text("utf-8"))
    assert [node.lineno for node in ast.walk(tree) if printing(node)] == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def terminal():
    """A terminal behind both streams."""
    screen = Terminal()
    with redirect_stdout(screen), redirect_stderr(screen):
        yield screen


def steering(text: str) -> set[str]:
    text = DRAWING.sub("", text)
    return {c for c in text if c in "\x07\x1b\u202e"}


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
        logging.getLogger("somebody").handlers = [NotesOfLibraries()]
        logging.getLogger("somebody").warning("about %s", EVIL)
    assert "note: about evil\ufffd" in screen.getvalue()
    assert steering(screen.getvalue()) == set()


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
