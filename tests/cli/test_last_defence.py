"""Whatever goes wrong, a person reads a sentence and never a traceback; what no command foresaw leaves a report."""

import subprocess
import sys

import pytest

from localspec import options
from localspec.cli import main
from localspec.cli.program import reported
from localspec.models import registry

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def broken(monkeypatch):
    def fail(_):
        raise ZeroDivisionError("by\nnothing \x1b[2J")

    monkeypatch.setattr(registry, "pairs_like", fail)


def test_a_mistake_of_ours_is_a_sentence_and_a_report(broken, capsys):
    assert main(["pairs", "--json"]) == 1
    printed = capsys.readouterr().err
    error, hint = printed.splitlines()
    assert error == "error: localspec made a mistake: ZeroDivisionError: by nothing \ufffd[2J"
    (report,) = (options.data_dir() / "reports").iterdir()
    assert str(report) in hint
    assert report.stat().st_mode & 0o77 == 0 or sys.platform == "win32", "its owner's only"
    text = report.read_text("utf-8")
    for words in ("localspec pairs --json", "ZeroDivisionError, raised in", "llama-cpp-python"):
        assert words in text


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
    for words in (" -m", "ValueError, raised in", "KeyError, raised in"):
        assert words in text


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


CODE = """
import os, signal, sys
module, sys.argv[1:] = sys.argv[1], ["pairs"]
class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, CtrlC())
from localspec.cli import main
sys.exit(main())
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C goes to all processes of a console there")
@pytest.mark.parametrize(
    "module", ["localspec.cli.program", "argparse", "logging", "localspec.models.registry"]
)
def test_ctrl_c_while_modules_are_imported_is_no_traceback(home_of_processes, module):
    done = subprocess.run([sys.executable, "-c", CODE, module], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="no jobs in the background")
def test_a_job_in_the_background_ignores_ctrl_c(home_of_processes):
    ignoring = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n{CODE}"
    command = [sys.executable, "-c", ignoring, "localspec.models.registry"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.process
def test_the_command_line_imports_nothing_before_ctrl_c_is_heeded():
    code = "import sys; before = set(sys.modules); import localspec.cli; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["localspec", "localspec.cli"]
