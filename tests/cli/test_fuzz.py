"""Some of the cases of benchmarks/fuzz_command_line.py: no traceback, no hang, a known exit code."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parent.parent.parent / "benchmarks" / "fuzz_command_line.py"


@pytest.mark.skipif(sys.platform == "win32", reason="processes are forked")
def test_random_command_lines_environments_and_files_end_in_sentences(cache_of_all_homes):
    process = subprocess.run(
        [sys.executable, BENCHMARK, "--cases", "120", "--seed", "2", "--cache", cache_of_all_homes],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stdout.splitlines()[-1].startswith("120 cases")
