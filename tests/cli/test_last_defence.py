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
    def fail():
        raise ZeroDivisionError("by\nnothing \x1b[2J")

    monkeypatch.setattr(registry, "all_pairs", fail)


def test_a_mistake_of_ours_is_a_sentence_and_a_report(broken, capsys):
    assert main(["pairs", "--json"]) == 1
    told = capsys.readouterr().err
    error, hint = told.splitlines()
    assert error == "error: localspec made a mistake: ZeroDivisionError: by nothing \ufffd[2J"
    (report,) = (options.data_dir() / "reports").iterdir()
    assert str(report) in hint
    text = report.read_text("utf-8")
    assert "localspec pairs --json" in text
    assert "Traceback" in text
    assert "llama-cpp-python" in text


@pytest.mark.parametrize(
    "line",
    [
        ["serve", "--api-key", "SEKRET 1", "-m", "demo"],
        ["serve", "--api-key=SEKRET 1", "-m", "demo"],
        ["run", "-m", "demo", "SEKRET 1"],
        ["run", "-sSEKRET 1", "-m", "demo", "Hi"],
        ["chat", "-s", "SEKRET 1", "-m", "demo"],
        ["chat", "--system", "SEKRET 1", "-m", "demo"],
        ["bench", "--json", "SEKRET 1", "-m", "demo"],
        ["SEKRET 1", "-m", "demo"],
        ["info", "https://SEKRET:1@hub/org/repo", "--no-draft", "-m", "demo"],
    ],
)
def test_keys_prompts_and_passwords_stay_out_of_a_report(home, line):
    secret = "https://SEKRET:1@hub" if line[0] == "info" else "SEKRET 1"
    error = ValueError(f"Invalid header value {secret!r}")
    told = reported(error, line)
    (report,) = (options.data_dir() / "reports").iterdir()
    for text in (report.read_text("utf-8"), str(told)):
        assert "SEKRET" not in text
        assert "Invalid header value" in text
    assert "-m demo" in report.read_text("utf-8")


def test_keys_of_the_environment_stay_out_of_a_report(home, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_API_KEY", "SEKRET\n1")
    reported(ValueError("Invalid header value b'Bearer SEKRET\\n1'"), ["chat"])
    (report,) = (options.data_dir() / "reports").iterdir()
    assert "SEKRET" not in report.read_text("utf-8")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes")
def test_a_report_is_its_owners_only(broken):
    main(["pairs"])
    (report,) = (options.data_dir() / "reports").iterdir()
    assert report.stat().st_mode & 0o77 == 0


def test_a_report_goes_elsewhere_where_the_home_cannot_be_written(
    broken, home, tmp_path, monkeypatch, capsys
):
    home.touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["pairs"]) == 1
    (report,) = tmp_path.glob("localspec-*.txt")
    assert str(report) in capsys.readouterr().err


def test_without_any_place_for_a_report_there_is_the_sentence_alone(
    broken, home, tmp_path, monkeypatch, capsys
):
    home.touch()
    monkeypatch.setattr("tempfile.tempdir", str(home))
    assert main(["pairs"]) == 1
    assert "no report could be written" in capsys.readouterr().err


def test_what_the_system_refuses_is_named_and_no_mistake_of_ours(home, capsys, monkeypatch):
    def refuse():
        raise PermissionError(13, "Permission denied", "/somewhere/x")

    monkeypatch.setattr(registry, "all_pairs", refuse)
    assert main(["pairs"]) == 1
    assert capsys.readouterr().err.startswith("error: /somewhere/x cannot be used: Permission denied\nhint: ")
    assert not home.exists()
