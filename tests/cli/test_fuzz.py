"""Some random command lines: no traceback, no hang, a known exit code."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(sys.platform == "win32", reason="processes are forked")
def test_random_command_lines_environments_and_files_end_in_sentences(cache_of_all_homes):
    options = ("--cases", "120", "--seed", "2", "--cache", cache_of_all_homes)
    process = subprocess.run(
        [sys.executable, "-m", "tests.cli.fuzz", *options],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stdout.splitlines()[-1] == "120 cases, 0 failed"
