"""`localspec verify` as a person uses it: a table, a verdict, and an exit code that says it to a script."""

import json
import signal
import subprocess
import sys
import time

import pytest

from localspec.cli import main
from localspec.measure import verify as verify_module
from tests.measure import faults

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def home(home_of_processes, monkeypatch):
    monkeypatch.setitem(verify_module.verify.__kwdefaults__, "prompts", verify_module.VERIFY_PROMPTS[:4])
    monkeypatch.setattr(verify_module, "ROUNDS", 4)


def verify(capsys, *arguments):
    code = main(["verify", *map(str, arguments), "--threads", "1"])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_demo_pair_passes_with_a_table_a_verdict_and_progress(capsys):
    code, out, err = verify(capsys, "demo", "--seed", 4)
    assert code == 0
    assert out.index("NO DIFFERENCE: all 8 texts") < out.index("Temperature 0:") < out.index("nats")
    assert "greedy texts" in err
    assert "sampled texts" in err


def test_json_is_one_object(capsys):
    code, out, _ = verify(capsys, "--pair", "demo", "--json", "--seed", 4)
    found = json.loads(out)
    assert code == 0
    assert found["pair"] == "demo"
    assert found["problems"] == []
    assert found["seed"] == 4
    assert found["sampled"]["texts"] == 16
    assert found["cases"][0]["parts"] == []


@pytest.mark.nightly
def test_a_verifier_that_keeps_what_it_should_not_ends_with_code_3(capsys, monkeypatch):
    monkeypatch.setattr(verify_module, "ROUNDS", 8)  # drafts hold only likely tokens: fewer texts may hide it
    with faults.leaky_coins(0.5):
        code, out, _ = verify(capsys, "demo", "--seed", 4)
    assert code == 3
    assert "DIFFERENT" in out


@pytest.mark.skipif(sys.platform == "win32", reason="a console's Ctrl-C cannot be sent to one process there")
def test_ctrl_c_keeps_what_was_found_and_exits_130():
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "localspec", "verify", "demo", "--threads", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    for line in process.stderr:
        if b"sampled texts" in line:
            break
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert b"Temperature 0:" in out
    assert b"Traceback" not in err
