"""The suite says which copy of localspec it tested, and which tier a test belongs to."""

import socket
import subprocess
import sys

import pytest

from tests import tiers
from tests.tiers import differing_files, is_without_quick_tests


def copy_of(folder, **modules):
    folder.mkdir()
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def test_modules_that_differ_or_are_missing_in_one_copy_are_named(tmp_path):
    checkout = copy_of(tmp_path / "a", same="1", changed="1", added="1", tui="link")
    installed = copy_of(tmp_path / "b", same="1", changed="2", gone="1")
    assert differing_files(checkout, installed) == ["added.py", "changed.py", "gone.py"]
    assert differing_files(checkout, checkout) == []


@pytest.mark.process
def test_the_guard_sees_processes_and_ports_and_no_other_sockets(monkeypatch):
    seen = []
    monkeypatch.setattr(tiers, "_seen", seen)
    left, right = socket.socketpair()
    left.close()
    right.close()
    assert seen == []
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
    subprocess.run([sys.executable, "-c", ""], check=True)
    assert {"socket.bind", "subprocess.Popen"} <= {*seen}


def test_the_default_expression_is_that_of_pyproject(pytestconfig):
    assert tiers.QUICK in pytestconfig.getini("addopts")


@pytest.mark.process
@pytest.mark.parametrize(
    "body",
    [
        "def unclosed():\n    try:\n        yield\n    finally:\n        1 / 0\ndef test_it():\n    next(unclosed())",
        "from threading import Thread\ndef test_it():\n    Thread(target=lambda: 1 / 0).start()",
    ],
    ids=["finaliser", "thread"],
)
def test_what_fails_outside_of_a_test_fails_the_test(tmp_path, pytestconfig, body):
    """A test that had hung for an hour passed, because the close of a generator failed with a warning alone."""
    (tmp_path / "test_one.py").write_text(body)
    words = [
        "-m",
        "pytest",
        "-c",
        str(pytestconfig.inipath),
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
    ]
    run = subprocess.run(
        [sys.executable, *words, str(tmp_path)], capture_output=True, text=True, cwd=tmp_path
    )
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout + run.stderr


@pytest.mark.parametrize(
    ("mark", "left_out"),
    [
        ("pytestmark = pytest.mark.process", True),
        ("pytestmark = [\n    pytest.mark.nightly,\n    pytest.mark.skipif(True)]", True),
        ("pytestmark = pytest.mark.usefixtures('home')", False),
        ("@pytest.mark.process\ndef test(): ...", False),
    ],
)
def test_a_file_of_another_tier_is_known_before_it_is_imported(mark, left_out):
    assert is_without_quick_tests(f"import pytest\n\n{mark}\n") is left_out
