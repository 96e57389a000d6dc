"""`doctor --prove`: a part each in a child, kept for the day, and one page of what they found."""

import json
import signal
import sys

import pytest

from localspec.cli import CANCELLED, main, proof
from localspec.gguf.enlarging import Shape

SMALL = Shape(320, 6, 8, 4, 64, 1024, 2560)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def child(monkeypatch):
    """child(script): parts run this instead; `part` is what they are asked for."""

    def plant(script):
        begin = "import json, os, sys, time\npart = json.loads(sys.argv[1])\n"
        say = "def say(text, failed=False): print(json.dumps({'text': text, 'failed': failed}), flush=True)\n"
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
    assert "**Failed:** nothing. **Left out:** nothing." in said
    for title in ("Rows beside", "Texts and laws", "Prices by width (the demo enlarged", "Drafting against"):
        assert f"## {title}" in said
    assert "A pass of the demo takes" in said
    assert "x one token" in said or "Too slow" in said
    assert "padded" in said or "Too slow" in said
    assert "for two replies" in said
    assert "a pass" in said or "too short to time" in said
    assert not list(home.rglob("*.gguf")), "the enlarged pair is removed"


def test_what_is_known_is_not_asked_again_but_for_what_failed(capsys, child):
    child("say(f'first {part[\"name\"]}', failed=part['name'] == 'verify')")
    assert "**Failed:** Texts and laws. **Left out:** nothing." in page(capsys)[1]
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
    assert (
        "**Failed:** Texts and laws. **Left out:** the rest of Prices by width (stopped after 1 s)." in said
    )
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
    assert "the rest of Texts and laws (stopped by Ctrl-C)" in said
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
    assert "Left out:** Rows beside those of the CPU; Texts and laws" in said
    assert "Models in several places" not in said, "that is for GPUs"


def test_an_unknown_device_is_one_sentence(capsys):
    assert main(["doctor", "--prove", "--on", "CUDA7"]) == 2
    assert "no device called CUDA7" in capsys.readouterr().err
