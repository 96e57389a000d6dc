"""Command lines that are wrong, prompts that are piped in, output that nobody takes: each as a person meets it."""

import argparse
import ast
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from localspec.algorithm import verification
from localspec.cli import main
from localspec.cli.commands import HELP
from localspec.cli.program import parser
from localspec.cli.prompt import piped_text, prompt_of, something_is_piped
from localspec.options import Rule
from tests.sources import SOURCES, nodes_of
from tests.tiny_images import pictures

pytestmark = pytest.mark.usefixtures("home_of_processes")


def shell(words, **options):
    return subprocess.run(
        [sys.executable, "-m", "localspec", *words], text=True, timeout=300, stderr=subprocess.PIPE, **options
    )


# Options of pip, of nvidia-smi and of vulkaninfo
FOREIGN = {"--force-reinstall", "--no-deps", "--no-cache-dir", "--no-binary", "--only-binary", "--upgrade"}
FOREIGN |= {"--index-url", "--query-gpu", "--format", "--summary"}


def options_of(described):
    for action in described._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            yield from (option for each in action.choices.values() for option in options_of(each))


def test_every_option_that_a_message_names_exists():
    known = {option for command in HELP for option in options_of(parser(command))} | FOREIGN
    for path in SOURCES:
        texts = [node.value for node in nodes_of(path) if isinstance(node, ast.Constant)]
        sentences = [text for text in texts if isinstance(text, str) and " " in text]
        named = {option for text in sentences for option in re.findall(r"(?<![\w-])--[a-z-]+[a-z]", text)}
        assert named <= known, path


@pytest.mark.process
@pytest.mark.parametrize(
    ("kind", "option"),
    [("dot.png", "--image"), ("small.bmp", "--image"), ("Milk", "-f")],
)
def test_a_file_before_the_prompt_leads_to_the_option_that_reads_it(kind, option, tmp_path, capsys):
    file = tmp_path / "sha256-ab"
    file.write_bytes(pictures().get(kind, kind.encode()))
    assert main(["run", str(file), "Say hi"]) == 2
    assert f': localspec run {option} {file} "Say hi"' in capsys.readouterr().err


def test_the_rules_that_can_be_named_are_the_rules_that_there_are():
    assert set(get_args(Rule)) == set(verification.RULES)


@pytest.mark.parametrize(
    ("words", "think", "prompt"),
    [
        ("run Hi", None, "Hi"), ("run --think Hi", True, "Hi"), ("run Hi --think", True, "Hi"),
        ("run --no-think Hi", False, "Hi"), ("run --think 16 Hi you", 16, "Hi you"), ("run Hi --think 0", 0, "Hi"),
        ("run --think=off Hi", False, "Hi"), ("run Say --think it", True, "Say it"),
        ("run -- --think 5", None, "--think 5"), ("bench Hi --think 16", 16, "Hi"),
    ],
)  # fmt: skip
def test_the_number_of_think_may_be_left_out(words, think, prompt):
    parsed = parser(words.split()[0]).parse_args(words.split())
    assert repr(parsed.think) == repr(think)
    assert " ".join(parsed.words) == prompt


def pipe_of(text):
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as written:
        written.write(text)
    return os.fdopen(reader)


def test_piped_text_follows_the_prompt(tmp_path, monkeypatch):
    notes, alone, together = tmp_path / "notes.txt", "Say it again:", "Say it again:\n\nOnce upon a time"
    notes.write_text("Once upon a time")

    def prompt_with(stdin):
        monkeypatch.setattr("sys.stdin", stdin)
        return prompt_of(argparse.Namespace(words=[alone], file=[]))

    for path, expected in ((Path(os.devnull), alone), (notes, together)):
        with path.open() as stdin:
            assert prompt_with(stdin) == expected
    for text, expected in (("", alone), ("Once upon a time", together)):
        with pipe_of(text) as stdin:
            assert prompt_with(stdin) == expected


@pytest.mark.process
def test_a_pipe_that_stays_open_is_waited_for_with_a_word():
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "localspec", "run", "Hi", "--pair", "demo", "--max-tokens", "2"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert "waiting for the end of the piped text" in process.stderr.readline()
    process.communicate(timeout=300)
    assert process.returncode == 0


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8"])
def test_piped_text_is_utf_8_whatever_the_code_page(encoding, monkeypatch):
    piped = io.TextIOWrapper(io.BytesIO("漢 ö\r\nx\n".encode()), encoding=encoding)
    monkeypatch.setattr("sys.stdin", piped)
    assert piped_text() == "漢 ö\nx\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("漢 ö"))  # a Python program may replace it
    assert piped_text() == "漢 ö"


@pytest.mark.process
def test_bytes_that_are_no_text_are_refused():
    command = [sys.executable, "-m", "localspec", "run", "Read this:"]
    done = subprocess.run(command, input=b"\x80\xff", capture_output=True, timeout=300)
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: the piped text is not UTF-8")


@pytest.mark.process
@pytest.mark.parametrize("words", [["run"], ["run", "-"]])
def test_without_any_standard_input_there_is_no_prompt(words, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", None)
    assert main(words) == 2
    assert "error: there is no prompt" in capsys.readouterr().err
    assert not something_is_piped()


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="another shell")
def test_notes_never_reach_stdout_where_stderr_is_closed():
    command = f"{sys.executable} -m localspec run Hi --json --pair demo --max-tokens 4 </dev/null 2>&-"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0
    assert json.loads(done.stdout)["pair"] == "demo"


@pytest.mark.process
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "line",
    [
        *("--help", "run --help", "--version", "pairs", "doctor"),
        *("run Hi -q -m demo --max-tokens 4", "run Hi -q -m demo --json --max-tokens 4"),
    ],
)
def test_output_that_cannot_be_written_is_no_success(line, unbuffered):
    with open("/dev/full", "w") as full:
        done = shell(line.split(), stdout=full, env=os.environ | {"PYTHONUNBUFFERED": unbuffered})
    assert done.returncode == 1
    assert done.stderr.startswith("error: the output cannot be written: No space left on device\nhint: ")
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="another shell")
@pytest.mark.parametrize("line", ["--help", "run --help", "pairs", "pairs --json", "info demo"])
def test_a_reader_that_goes_away_early_is_nothing_to_speak_of(line):
    done = subprocess.run(
        f"{sys.executable} -m localspec {line} | head -1", shell=True, capture_output=True, timeout=300
    )
    assert done.stdout
    assert done.stderr == b""
