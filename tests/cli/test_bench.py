"""`localspec bench` and `localspec tune` as a person uses them, on the demo pair."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from localspec import demo
from localspec.chat.loaded_pair import TOY
from localspec.cli import main
from localspec.measure.race import CROWDED
from localspec.models.drafting import Drafting
from localspec.options import data_dir

pytestmark = pytest.mark.usefixtures("home_of_processes")

QUICK = ("--runs", "1", "--only", "json", "--max-tokens", "24", "--threads", "1")


def run(capsys, *arguments):
    code = main([*map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_report_has_table_and_verdict_and_the_progress_goes_to_stderr(capsys, tmp_path):
    """Copies of the demo's files are no toy."""
    target = shutil.copy(demo.target_path(), tmp_path / "target.gguf")
    draft = shutil.copy(demo.draft_path(), tmp_path / "draft.gguf")
    code, out, err = run(capsys, "bench", "--target", target, "--draft", draft, *QUICK, "--depths", "2")
    assert code == 0
    for word in (
        "speed-up",
        "a pass",
        "json",
        "at temperature 0:",
        "at temperature 0.8:",
    ):
        assert word in out
    assert out.startswith("Drafting ") or out.startswith("Undecided")
    assert max(map(len, out[out.index("depth") :].partition("\n\n")[0].splitlines())) < 80
    assert "json: order record" in err
    assert "json: order record" not in out


def test_the_toy_has_counts_of_guesses_and_no_speed(capsys):
    code, out, err = run(capsys, "bench", "demo", *QUICK)
    assert code == 0
    assert out.startswith(TOY)
    assert "a pass" in out
    assert not re.search(r"slower|pays?\b|speed-up|\dx\b", out.removeprefix(TOY))
    assert "tokens/s" not in err


def test_json_is_one_object_with_every_reply(capsys):
    code, out, _ = run(capsys, "bench", "demo", *QUICK, "--temperature", "0", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["pair"] == "demo"
    assert found["machine"]["threads"] == 1
    assert {m["arm"] for m in found["measurements"]} == {"plain", "auto", "depth 4"}
    assert len(found["measurements"]) == 4 * 3
    assert all(m["drafted"] == 0 for m in found["measurements"] if m["arm"] == "plain")


def test_a_processor_that_is_busy_is_told_beside_the_json(capsys, monkeypatch):
    """The decision is faked, as a busy machine cannot be had at will."""
    monkeypatch.setattr(Drafting, "crowded", True)
    _, out, err = run(capsys, "bench", "demo", *QUICK, "--temperature", "0", "--json")
    assert json.loads(out)
    assert CROWDED in err


def test_what_the_bench_learned_is_where_the_next_run_starts(capsys):
    run(capsys, "bench", "demo", *QUICK, "--temperature", "0")
    assert list((data_dir() / "lessons").glob("*.json"))


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("demo", "--only", "jokes"), "code, chat, prose, json, edit, long"),
        (("demo", "Hi", "--svg", "/there/is/no/folder/x.svg"), "make it"),
    ],
)
def test_mistakes_are_found_before_anything_is_measured(capsys, arguments, hint):
    code, out, err = run(capsys, "bench", *arguments)
    assert code == 2
    assert not out
    assert "error: " in err
    assert hint in err


def test_lookup_alone_can_be_measured_too(capsys):
    code, out, _ = run(capsys, "bench", "demo", "--draft", "lookup", *QUICK, "--json")
    assert code == 0
    assert json.loads(out)["draft"] == "lookup"


def test_a_context_without_room_for_any_prompt_is_said(capsys):
    code, out, err = run(capsys, "bench", "demo", "--only", "long", "--context", "64", "--threads", "1")
    assert code == 1
    assert not out
    assert "context" in err


def test_tune_shows_the_curve_and_later_runs_start_from_it(capsys):
    code, out, _ = run(capsys, "tune", "demo", "--threads", "1", "--seconds", "20")
    assert code == 0
    assert "tokens in a pass" in out
    (lessons,) = (data_dir() / "lessons").glob("*.json")
    assert json.loads(lessons.read_text())["costs"][0]["widths"][:8] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_too_little_time_to_tune_is_one_sentence_and_a_hint(capsys):
    code, out, err = run(capsys, "tune", "demo", "--threads", "1", "--seconds", "0.00001")
    assert (code, out) == (2, "")
    assert "too few" in err
    assert "--seconds" in err


@pytest.mark.skipif(sys.platform == "win32", reason="a console's Ctrl-C cannot be sent to one process there")
def test_ctrl_c_keeps_what_was_measured_and_exits_130():
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "localspec", "bench", "demo", "--threads", "1", "--seconds", "30"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in process.stderr:
        if re.search(r" [1-9]\d% ", line):  # the second tenth: a category was measured
            break
    time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Stopped early" in out
    assert "code" in out
    assert "Traceback" not in err
    assert not (data_dir() / "bench").exists()


def test_a_target_alone_drafts_from_the_text_as_in_run(capsys):
    code, out, _ = run(capsys, "bench", "--target", str(demo.target_path()), *QUICK, "--temperature", "0")
    assert code == 0
    assert "with lookup" in out
