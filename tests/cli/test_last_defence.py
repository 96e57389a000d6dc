"""Whatever goes wrong, a person reads a sentence: what no command foresaw leaves a report, and never a traceback."""

import sys

import pytest

from localspec import options
from localspec.cli import main
from localspec.cli.last_defence import reported
from localspec.models import registry

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def broken(monkeypatch):
    def fail(_):
        raise ZeroDivisionError("by\nnothing \x1b[2J")

    monkeypatch.setattr(registry, "pairs_like", fail)


def test_a_mistake_of_ours_is_a_sentence_and_a_report(broken, capsys):
    assert main(["pairs", "--json"]) == 1
    told = capsys.readouterr().err
    error, hint = told.splitlines()
    assert error == "error: localspec made a mistake: ZeroDivisionError: by nothing \ufffd[2J"
    (report,) = (options.data_dir() / "reports").iterdir()
    assert str(report) in hint
    text = report.read_text("utf-8")
    assert "localspec pairs --json" in text
    assert "ZeroDivisionError, raised in" in text
    assert "llama-cpp-python" in text


@pytest.mark.parametrize(
    "line",
    [
        ["serve", "--api-key", "SEKRET 1", "-m", "demo"],
        ["serve", "--api-key=SEKRET 1", "-m", "demo"],
        ["run", "-sSEKRET 1", "-m", "demo", "SEKRET 2"],
        ["SEKRET 1", "-m", "demo"],
    ],
)
def test_keys_and_prompts_stay_out_of_a_report(home, line):
    try:
        raise ValueError(line) from KeyError(line[0])
    except ValueError as error:
        reported(error, line)
    (report,) = (options.data_dir() / "reports").iterdir()
    text = report.read_text("utf-8")
    assert "SEKRET" not in text
    assert " -m" in text
    assert "ValueError, raised in" in text
    assert "KeyError, raised in" in text


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes")
def test_a_report_is_its_owners_only(broken):
    main(["pairs"])
    (report,) = (options.data_dir() / "reports").iterdir()
    assert report.stat().st_mode & 0o77 == 0


def test_without_a_place_for_a_report_there_is_the_sentence_alone(broken, home, capsys):
    home.touch()
    assert main(["pairs"]) == 1
    assert "no report could be written" in capsys.readouterr().err


def test_what_the_system_refuses_is_named_and_no_mistake_of_ours(home, capsys, monkeypatch):
    def refuse(_):
        raise PermissionError(13, "Permission denied", "/somewhere/x")

    monkeypatch.setattr(registry, "pairs_like", refuse)
    assert main(["pairs"]) == 1
    assert capsys.readouterr().err.startswith("error: /somewhere/x cannot be used: Permission denied\nhint: ")
    assert not home.exists()
