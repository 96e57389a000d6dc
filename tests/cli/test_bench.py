"""`localspec bench` as a person uses it, on the demo pair; `bench PROMPT` with its verdict, race and JSON."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from localspec import demo
from localspec.chat.loaded_pair import DEMO_MODEL
from localspec.cli import main
from localspec.cli.commands import bench as bench_command
from localspec.llama.threads import Contention
from localspec.measure.race import CONTENDED
from localspec.measure.summary import VERDICTS
from localspec.options import data_dir

pytestmark = pytest.mark.usefixtures("home_of_processes")

QUICK = ("--runs", "1", "--only", "json", "--max-tokens", "16", "--threads", "1")


def run(capsys, *arguments):
    code = main([*map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_report_has_verdicts_and_one_table_and_the_progress_goes_to_stderr(capsys, tmp_path):
    """Copies of the files of the demo count as a pair of the user."""
    target = shutil.copy(demo.target_path(), tmp_path / "target.gguf")
    draft = shutil.copy(demo.draft_path(), tmp_path / "draft.gguf")
    files = ("--target", target, "--draft", draft)
    code, out, err = run(capsys, "bench", *files, *QUICK, "--depths", "2")
    assert code == 0
    lines = out.splitlines()
    assert all(line.startswith(tuple(VERDICTS.values())) for line in lines[:2])
    assert [f"at T={t}:" in line for t, line in zip(("0", "0.8"), lines, strict=False)] == [True, True]
    assert "speed-up" in lines[3]
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 24
    assert "json: order record" in err
    assert "json: order record" not in out


def test_the_demo_pair_has_counts_of_guesses_and_no_speed(capsys):
    code, out, err = run(capsys, "bench", "demo", *QUICK, "--temperature", "0")
    assert code == 0
    assert out.startswith(DEMO_MODEL)
    assert "tokens/pass" in out
    assert not re.search(r"slower|pays?\b|speed-up|\dx\b", out.removeprefix(DEMO_MODEL))
    assert "tokens/s" not in err


def test_json_is_one_object_with_every_reply_and_a_busy_processor_is_reported_beside_it(capsys, monkeypatch):
    """The demo pair needs one round, and later runs start from the cost of passes."""
    monkeypatch.setattr(Contention, "contended", True)  # a busy machine cannot be had at will
    monkeypatch.setattr(bench_command, "SECONDS", 20.0)
    quick = ("--only", "json", "--max-tokens", "16", "--threads", "1", "--temperature", "0", "--json")
    code, out, err = run(capsys, "bench", "demo", *quick)
    assert code == 0
    found = json.loads(out)
    assert found["pair"] == "demo"
    assert found["machine"]["threads"] == 1
    assert {m["round"] for m in found["measurements"]} == {0}
    assert {m["arm"] for m in found["measurements"]} == {"plain", "auto", "depth 4"}
    assert len(found["measurements"]) == 4 * 3
    assert all(m["drafted"] == 0 for m in found["measurements"] if m["arm"] == "plain")
    assert CONTENDED in err
    (learned,) = (data_dir() / "lessons").glob("*.json")
    tables = json.loads(learned.read_text())["tables"]
    assert any(table["measured"] and len(table["widths"]) > 4 for table in tables)


def test_a_context_without_room_for_any_prompt_is_reported(capsys):
    code, out, err = run(capsys, "bench", "demo", "--only", "long", "--context", "64", "--threads", "1")
    assert code == 1
    assert not out
    assert "context" in err


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="a console's Ctrl-C cannot be sent to one process there")
def test_ctrl_c_keeps_what_was_measured_and_exits_130():
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "localspec", "bench", "demo", "--threads", "1", "--seconds", "30"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in process.stderr:
        if " chat: " in line:  # a prompt of the first category was measured
            break
    time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "Stopped early" in out, err
    assert "code" in out
    assert "Traceback" not in err
    assert not (data_dir() / "bench").exists()


def test_a_target_alone_drafts_from_the_text_as_in_run(capsys):
    code, out, _ = run(
        capsys, "bench", "--target", demo.target_path(), *QUICK, "--temperature", "0", "--json"
    )
    assert code == 0
    assert json.loads(out)["draft"] == "lookup"


def raced(capsys, *arguments):
    return run(capsys, "bench", *arguments, "--pair", "demo", "--threads", "1", "--max-tokens", "16")


def test_the_verdict_of_the_demo_has_passes_and_no_times(capsys):
    code, out, err = raced(capsys, "Tell me a story", "--temperature", 0)
    first, *others = out.splitlines()
    assert code == 0
    assert re.fullmatch(
        r"The same text in \d+ passes instead of 16, \d+ of \d+ draft tokens accepted\.", first
    )
    assert others == [DEMO_MODEL]
    assert "small demo pair" in err


def test_a_terminal_shows_both_sides_as_they_are_written(capsys, monkeypatch):
    monkeypatch.setattr("localspec.cli.commands.bench.obeys_sequences", lambda stream: True)
    code, out, _ = raced(capsys, "Tell me a story")
    assert code == 0
    assert "plain decoding" in out
    assert "16 tokens · 16 passes ✓" in out


@pytest.mark.parametrize(("flags", "count"), [([], 12), (["--max-tokens", "14"], 14)])
def test_replies_to_your_own_prompt_have_a_limit_and_a_terminal_shows_how_far_they_are(
    capsys, monkeypatch, flags, count
):
    """A small model in a loop would fill its context twice."""
    monkeypatch.setattr("localspec.cli.commands.bench.TOKENS", 12)
    arguments = ("bench", "demo", "Tell me a story", "--threads", "1", "--json", *flags)
    _code, out, err = run(capsys, *arguments)
    found = json.loads(out)
    for side in ("plain", "speculative"):
        assert (found[side]["stats"]["emitted"], found[side]["finish_reason"]) == (count, "length")
    assert "of 2" not in err
    monkeypatch.setattr("localspec.display.obeys_sequences", lambda stream: stream is sys.stderr)
    _code, _out, err = run(capsys, *arguments)
    assert "plain, 1 of 2: 10 tokens" in err
    assert f"drafting, 2 of 2: {count} tokens" in err


def test_json_is_one_object_with_both_sides(capsys):
    code, out, _ = raced(capsys, "Tell me a story", "--seed", 3, "--temperature", 0.8, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["plain"]["stats"]["drafted"] == 0
    assert found["plain"]["seed"] == found["speculative"]["seed"] == 3
    assert found["rule"] == "coupled"
    assert found["machine"]["threads"] == 1
    assert json.loads(raced(capsys, "Tell me a story", "--json")[1])["rule"] == "greedy"
    assert found["identical"] == (found["divergence"] is None)
    assert DEMO_MODEL in found["verdict"]


def test_a_model_without_a_choice_of_attention_is_named(capsys):
    assert main(["bench", "demo", "--attention"]) == 1
    assert "demo-target.gguf has no choice of attention" in capsys.readouterr().err
