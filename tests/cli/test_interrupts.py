"""Ctrl-C before a command has begun: no traceback, and the exit code that a shell expects."""

import subprocess
import sys

import pytest

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


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C goes to all processes of a console there")
@pytest.mark.parametrize(
    "module", ["localspec.cli.program", "argparse", "logging", "localspec.models.registry"]
)
def test_ctrl_c_while_modules_are_imported_is_no_traceback(home_of_processes, module):
    done = subprocess.run([sys.executable, "-c", CODE, module], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.skipif(sys.platform == "win32", reason="no jobs in the background")
def test_a_job_in_the_background_ignores_ctrl_c(home_of_processes):
    ignoring = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n{CODE}"
    command = [sys.executable, "-c", ignoring, "localspec.models.registry"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_command_line_imports_nothing_before_ctrl_c_is_heeded():
    code = "import sys; before = set(sys.modules); import localspec.cli; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["localspec", "localspec.cli"]
