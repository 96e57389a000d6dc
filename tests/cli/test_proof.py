"""`doctor --prove`: a part each in a child, kept for the day, and one page of what they found."""

import json
import re
import signal
import sys

import pytest

from localspec.cli import CANCELLED, main, proof
from localspec.gguf.enlarging import Shape

pytestmark = pytest.mark.usefixtures("home")

SMALL = Shape(320, 6, 8, 4, 64, 1024, 2560)


@pytest.fixture
def child(monkeypatch):
    """child(script): parts run this instead; `part` is what they are asked for."""

    def plant(script):
        begin = "import json, os, sys, time\npart = json.loads(sys.argv[1])\n"
        say = "def say(text, **marks): print(json.dumps({'text': text} | marks), flush=True)\n"
        monkeypatch.setattr(proof, "CHILD", (sys.executable, "-c", begin + say + script))

    return plant


def page(capsys, *arguments, pair=()):
    code = main(["doctor", "--prove", *pair, "--on", "CPU", *arguments])
    return code, capsys.readouterr().out


def test_the_cpu_is_proved_by_real_parts(capsys, home, monkeypatch):
    monkeypatch.setattr(proof, "WORKING", 0.06)
    monkeypatch.setattr(proof.Prover, "_shape", lambda self: SMALL)
    code, said = page(capsys)
    assert code == 0
    assert "**Failed:** nothing. **Incomplete:**" in said
    assert "**Left out:** nothing." in said
    for title in ("Logits: passed (", "Texts: ", "Times of passes: ", "Speed: "):
        assert f"\n## {title}" in said
    assert "| models | the demo; for times and speed the demo enlarged to " in said
    assert "| software | localspec " in said
    assert "\n| q4_0 | all | 0.9" in said
    assert "| at least | |\n|---|---|---|---|---|\n| q8_0 |" in said, "rows of a table stand together"
    assert "gain above" in said or "Too slow" in said
    assert "\n| Does a pass for two replies take less than two passes? |" in said
    assert "a pass" in said or "too short to time" in said
    assert not list(home.rglob("*.gguf")), "the enlarged pair is removed"


def test_what_is_known_is_not_asked_again_but_for_what_failed(capsys, child):
    child("say(f'first {part[\"name\"]}', failed=part['name'] == 'verify')")
    said = page(capsys)[1]
    assert "**Failed:** Texts. **Incomplete:** nothing. **Left out:** nothing." in said
    assert "## Texts: FAILED (" in said
    assert "## Logits: passed (" in said
    assert "## Speed: measured (" in said
    child("say(f'second {part[\"name\"]}')")
    _, said = page(capsys)
    assert "**Failed:** nothing" in said
    assert "first speed" in said
    assert "second verify" in said
    assert said.count("second") == 1


def test_a_part_that_dies_or_takes_too_long_is_named_and_the_others_are_there(capsys, child, monkeypatch):
    monkeypatch.setattr(proof, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(proof, "SECONDS", proof.SECONDS | {"prices": 1.0})
    child(
        "say(part['name'])\n"
        "if part['name'] == 'verify': print('the last words', file=sys.stderr); os._exit(3)\n"
        "if part['name'] == 'prices': time.sleep(60)\n"
    )
    _, said = page(capsys)
    assert "**Failed:** Texts. **Incomplete:** Times of passes. **Left out:** nothing." in said
    assert "## Times of passes: incomplete, stopped after 2 s (" in said
    assert "It ended with exit code 3. the last words" in said
    assert "speed" in said


def test_ctrl_c_keeps_what_was_found(capsys, child):
    child("say(part['name'])\nif part['name'] == 'verify': os.kill(os.getppid(), 2); time.sleep(60)\n")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code, said = page(capsys)
    finally:
        signal.signal(signal.SIGINT, before)
    assert code == CANCELLED
    assert "## Texts: incomplete, stopped by Ctrl-C (" in said
    assert "\nrows" in said
    assert "\nverify" in said
    child("say('again')")
    assert page(capsys)[1].count("\nagain") == 3


def test_a_named_pair_is_proved_as_well_and_time_that_is_up_leaves_parts_out(capsys, child):
    child("say(json.dumps(part['load']))")
    _, said = page(capsys, pair=["demo"])
    assert said.count("## demo: ") == 3
    assert said.count(json.dumps({"pair": "demo"})) == 7
    _, said = page(capsys, "--seconds", "5")
    assert "**Left out:** Logits, Texts, Times of passes, Speed." in said
    assert "| models | the demo |" in said
    assert "Places" not in said, "that is for GPUs"


def test_more_time_is_for_every_part(capsys, child):
    child("say('seconds ' + str(part['seconds']), missing=True)")
    usual, double = (
        [float(found) for found in re.findall(r"^seconds (.+)$", page(capsys, *more)[1], re.M)]
        for more in ((), ("--seconds", "1200"))
    )
    assert len(usual) == 4
    assert double == [2 * seconds for seconds in usual]


def test_a_part_that_leaves_something_out_is_incomplete(capsys, child):
    child("say('too slow', missing=part['name'] == 'prices')")
    said = page(capsys)[1]
    assert "**Incomplete:** Times of passes. **Left out:** nothing." in said
    assert "## Times of passes: incomplete (" in said
    child("say('again')")
    said = page(capsys)[1]
    assert "**Incomplete:** nothing." in said
    assert said.count("again") == 1, "the others are known"


@pytest.mark.parametrize(("load", "state"), [(0.2, "idle"), (40.0, "BUSY")])
def test_the_page_says_whether_other_programs_ran_before(capsys, child, monkeypatch, load, state):
    child("say('first ' + part['name'])")
    monkeypatch.setattr("os.getloadavg", lambda: (load, load, load), raising=False)
    assert f"| load | {state}" in page(capsys)[1]
    child("say('second ' + part['name'])")
    assert "second" not in page(capsys)[1]
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0), raising=False)
    said = page(capsys)[1]
    assert "| load | idle" in said
    again = {"prices", "speed"} if state == "BUSY" else set()
    assert set(re.findall(r"second (\w+)", said)) == again, "beside other programs nothing is timed for good"
    assert "first rows" in said


def test_an_unknown_device_is_one_sentence(capsys):
    assert main(["doctor", "--prove", "--on", "CUDA7"]) == 2
    assert "no device called CUDA7" in capsys.readouterr().err
