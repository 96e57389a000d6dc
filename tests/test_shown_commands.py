"""Commands and Python that the README and the docs show: each block runs, or is marked and parsed.

A block whose commands need more than a test has stands below `<!-- only parsed: REASON -->`.
"""

import contextlib
import importlib.util
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from localspec import demo
from localspec.cli.commands import HELP
from localspec.cli.commands.config import HEEDED
from localspec.cli.program import _spelled_out, parser
from localspec.cli.prompt import is_pair
from localspec.options import SETTINGS
from tools import commands as command_pages

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
REASONS = {*("network", "installs", "gigabytes", "GPU", "minutes", "terminal", "server"), "other machines"}
REASONS |= {"placeholders"}
OTHER_PROGRAMS = {
    "pip",
    "pytest",
    "git",
    "docker",
    "tar",
    "export",
    "ggml-rpc-server",
    "cd",
    ".",
    "eval",
    "zensical",
}
BLOCK = re.compile(r"(?:^<!-- only parsed: ([^>\n]+) -->\n+)?^```(\w*)\n(.*?)^```", re.M | re.S)
SCHEMA = '{"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}'
FILES = {
    "main.py": "def add(a, b):\n    return a + b\n",
    "notes.txt": "The target checks the draft's tokens.\n",
    "invoice.json": SCHEMA,
    "person.json": SCHEMA,
    "answer.gbnf": 'root ::= "yes" | "no"',
}


class Block(NamedTuple):
    page: str
    reason: str  # "" runs
    language: str
    text: str


def blocks():
    for page in PAGES:
        for reason, language, text in BLOCK.findall(page.read_text("utf-8")):
            yield Block(page.relative_to(ROOT).as_posix(), reason, language, text)


BLOCKS = list(blocks())


def named(block):
    return f"{block.page}: {block.text.splitlines()[0][:40]}"


@pytest.fixture
def folder(tmp_path, home_of_processes, monkeypatch):
    """A folder with the files that the examples name, and a shell that finds localspec."""
    there = tmp_path / "there"
    there.mkdir()
    for name, text in FILES.items():
        (there / name).write_text(text, "utf-8")
    shutil.copy(demo.target_path(), there / "big.gguf")
    shutil.copy(demo.draft_path(), there / "small.gguf")
    program = tmp_path / "bin" / "localspec"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m localspec "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return there


@pytest.mark.process
@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "sh" and not b.reason], ids=named)
def test_the_commands_of_a_page_run(block, folder):
    script = ["bash", "-e", "-o", "pipefail", "-c", block.text]
    done = subprocess.run(script, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.process
@pytest.mark.parametrize("page", sorted({b.page for b in BLOCKS if b.language == "python" and not b.reason}))
def test_the_python_of_a_page_runs(page, folder):
    """In one process, block after block, as a reader types it."""
    code = "\n".join(b.text for b in BLOCKS if b.page == page and b.language == "python" and not b.reason)
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "sh" and b.reason], ids=named)
def test_commands_that_are_not_run_are_parsed(block, tmp_path, monkeypatch):
    assert block.reason in REASONS
    for name in FILES:
        (tmp_path / name).write_text("{}", "utf-8")
    monkeypatch.chdir(tmp_path)
    for words in commands(block.text):
        parse(words)


def test_python_that_is_not_run_compiles():
    for block in BLOCKS:
        if block.language == "python" and block.reason:
            compile(block.text, block.page, "exec", flags=0x2000)  # await at the top


def test_commands_stand_in_blocks_for_the_shell():
    command = re.compile(r"^(?:localspec|pip|python) .*", re.M)
    wrong = [
        f"{b.page}: {found[0]}"
        for b in BLOCKS
        if b.language not in ("sh", "python")
        for found in command.finditer(b.text)
    ]
    for page in PAGES:
        outside = BLOCK.sub("", page.read_text("utf-8"))
        wrong += [
            f"{page.name}: {found[0]}"
            for found in re.finditer(r"^    (?:localspec|pip|python) .*", outside, re.M)
        ]
    assert wrong == []


def test_commands_and_options_in_running_text_exist():
    for page in PAGES:
        outside = BLOCK.sub("", page.read_text("utf-8"))
        for code in re.findall(r"`(?:[^`]*[|&] )?localspec ([a-z]+)\b([^`]*)`", outside):
            assert code[0] in {*HELP, "help"}, f"{page.name}: {code[0]}"
            known = options_of(code[0])
            unknown = set(re.findall(r"(?<!\S)--[a-z][\w-]*", code[1])) - known
            assert not unknown, f"{page.name}: localspec {' '.join(code)}"
            if not re.search(r"[A-Z]{2}|\.\.\.|\[|\b[CNX]\b", code[1]) and code[1].strip().startswith("-"):
                for words in commands(" ".join(["localspec", *" ".join(code).split()])):
                    parse(words)


def options_of(command):
    of_command = next(a for a in parser(command)._actions if a.dest == "command").choices[command]
    pending, found = [of_command], set()
    while pending:
        for action in pending.pop()._actions:
            found |= set(action.option_strings)
            pending += (action.choices or {}).values() if isinstance(action.choices, dict) else []
    return found


def commands(text):
    """The commands of a script as words, without variables, redirections and comments."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;>")
        lexer.whitespace_split = True
        command, behind = list[str](), ""
        for word in [*lexer, ";"]:
            if word in ("|", "&&", ";"):
                if command:
                    yield command
                command = []
            elif word != ">" and behind != ">" and (command or not re.match(r"[A-Z_]+=", word)):
                command.append(word)
            behind = word


def parse(words):
    """Check that a command can be given: localspec's by its parser, Python's by its file."""
    program, *rest = words
    if program == "localspec":
        with contextlib.redirect_stdout(io.StringIO()):
            parsed = _spelled_out(rest) if rest else ["chat"]
            found = vars(parser(parsed[0]).parse_args(parsed))
        names = [found.get("pair"), found.get("name") if parsed[:2] != ["pairs", "add"] else None]
        for name in filter(None, names):  # placeholders have capital letters
            assert is_pair(name) or name != name.lower() or "/" in name, words
    elif program == "python" and rest[0] == "-m":
        assert rest[1] == "venv" or importlib.util.find_spec(rest[1]), words
    elif program == "python":
        assert (ROOT / rest[0]).exists(), words
    else:
        assert program in OTHER_PROGRAMS, words


DOCS = Path(__file__).resolve().parent.parent / "docs"


def test_the_page_of_commands_is_what_the_parser_gives():
    assert command_pages.PAGE.read_text("utf-8") == command_pages.page(), "python -m tools.commands"


def test_every_option_is_explained():
    unexplained = [
        row for row in command_pages.page().splitlines() if row.startswith("- ") and row.endswith(":")
    ]
    assert unexplained == []


def test_the_page_of_settings_has_every_setting_and_every_variable():
    page = (DOCS / "config.md").read_text("utf-8")
    names = [*SETTINGS, *HEEDED]
    assert [name for name in names if f"`{name}`" not in page] == []


def test_pages_link_to_pages_that_are_there():
    for page in [*DOCS.rglob("*.md"), *DOCS.parent.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
