"""`localspec run` as a person uses it: text on stdout, the rest on stderr, every mistake one sentence and a hint."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

import localspec
from localspec import demo
from localspec.cli import main
from localspec.cli.commands.run import as_json, report, show, summary
from localspec.display import JSON_VERSION
from localspec.events import Finished, FinishReason, Notice, Prefill, Reply, Started, Stats

pytestmark = pytest.mark.usefixtures("home_of_processes")

STATS = """drafted accepted cycles emitted acceptance_rate mean_accepted_length acceptance_by_position
tokens_per_second prefill_seconds draft_seconds verify_seconds other_seconds"""


def run(capsys, *arguments):
    code = main(["run", *map(str, arguments), "--threads", "1"])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.process
def test_the_demo_answers_with_text_on_stdout_and_numbers_on_stderr(capsys):
    code, out, err = run(capsys, "Hello", "--temperature", "0", "--max-tokens", "30", "--pair", "demo")
    assert (code, bool(out.strip()), "tokens/s" in out) == (0, True, False)
    for words in ("tokens/s", "cut at the token limit", "its speed says nothing about real pairs"):
        assert words in err
    _, _, err = run(capsys, "Hello", "--max-tokens", "0", "--pair", "demo")
    assert "[demo · 0 tokens · cut at the token limit]" in err


def test_each_load_of_the_demo_says_that_its_speed_says_nothing():
    for _ in range(2):
        with localspec.load("demo", threads=1) as session:
            notices = [e.text for e in session.stream("Hello", max_tokens=3) if isinstance(e, Notice)]
        assert "its speed says nothing about real pairs" in notices[0]


@pytest.mark.process
@pytest.mark.parametrize("line", ["demo -n 5 Hello", "-n 5 demo Hello", "demo Hello -n 5"])
def test_a_prompt_may_stand_behind_options(capsys, line):
    code, out, _ = run(capsys, *line.split(), "--temperature", "0")
    assert code == 0
    assert out.strip()
    assert run(capsys, "demo", "-n", "5", "two", "words") == (
        2,
        "",
        'error: unexpected argument words\nhint: put a prompt of several words in quotes: "two words"\n',
    )


def test_a_reply_without_an_accepted_draft_has_no_percentage():
    stats = Stats(cycles=3, emitted=3, drafted=1, verify_seconds=1.0)
    assert summary(Reply("a", "", (1, 2, 3), 0, FinishReason.STOP, stats), "mine") == (
        "[mine · 3 tokens · 3.0 tokens/s · 0 of 1 draft token accepted · 1.00 tokens per pass]"
    )


def test_a_thinking_that_was_cut_is_named():
    stats = Stats(cycles=1, emitted=3, verify_seconds=1.0, thinking_cut=True)
    reply = Reply("a", "", (1, 2, 3), 0, FinishReason.STOP, stats)
    assert summary(reply, "mine") == "[mine · 3 tokens · 3.0 tokens/s · thinking cut]"
    assert "thinking cut" in report(reply)


@pytest.mark.process
def test_the_last_line_says_why_hardly_anything_was_drafted(capsys, monkeypatch):
    alone = ("Explain recursion", "--target", demo.target_path(), "--temperature", "0", "-n", "30")
    numbers, last = run(capsys, *alone)[2].splitlines()[-2:]
    assert re.match(r"\[demo-target · \d+ tokens · .* tokens/s", numbers)
    assert last.startswith("notice: almost nothing was drafted: without a draft model")
    assert "was drafted" not in run(capsys, *alone, "--no-draft")[2]
    monkeypatch.setenv("LOCALSPEC_DEPTH", "0")
    assert "was drafted" not in run(capsys, *alone)[2]


def test_the_numbers_tell_prefill_from_decoding():
    stats = Stats(cycles=4, emitted=4, prompt_tokens=900, prefill_seconds=9.0, verify_seconds=1.0)
    lines = {line.split()[0]: line for line in report(reply_with(stats)).splitlines()}
    assert "90%" in lines["prefill"]
    assert "10%" in lines["decode"]


def test_the_rates_of_many_depths_widen_no_other_line():
    many = Stats(
        cycles=4, emitted=4, drafted=32, drafted_by_position=(4,) * 32, accepted_by_position=(4,) * 32
    )
    assert max(len(line) for line in report(reply_with(many)).splitlines() if "100%, " not in line) < 80


@pytest.mark.process
def test_a_context_longer_than_trained_is_one_note(capsys):
    _, _, err = run(capsys, "demo", "Hi", "-n", "2", "--context", "8192")
    assert "was trained" in err
    assert "n_ctx" not in err


@pytest.mark.process
def test_json_is_one_object_with_text_and_stats(capsys):
    asked = ("Hello", "--json", "--stats", "--seed", "7", "--max-tokens", "20", "--pair", "demo")
    code, out, err = run(capsys, *asked)
    assert code == 0
    assert "mean accepted length" in err
    found = json.loads(out)
    assert set(STATS.split()) <= set(found["stats"])
    assert found["seed"] == 7
    assert found["version"] == 1
    assert (found["pair"], bool(found["target"]), bool(found["draft"])) == ("demo", True, True)
    assert found["stats"]["emitted"] == len(found["tokens"]) <= 20


# A name that goes, or means something else, needs another JSON_VERSION.
VERSION_1 = f"""{STATS} decode_seconds first_token_seconds from_grammar from_head from_lookup from_model
from_prediction plain_seconds predicted prefill_share prompt_tokens reused_tokens saved_seconds speedup"""


def test_names_that_scripts_read_stay_as_long_as_the_version_does():
    assert set(as_json(reply_with(Stats()))["stats"]) >= set(VERSION_1.split())
    assert JSON_VERSION == 1


def test_json_says_what_drafting_won_and_nothing_where_that_is_unknown():
    stats = Stats(cycles=20, emitted=40, plain_seconds=3.0, plain_error_seconds=0.1, verify_seconds=2.0)
    measured = as_json(reply_with(stats))
    assert measured["stats"]["speedup"] == pytest.approx({"value": 1.5, "low": 1.402, "high": 1.598})
    assert measured["stats"]["saved_seconds"] == 1.0
    unknown = json.loads(json.dumps(as_json(reply_with(Stats(verify_seconds=2.0)))))
    assert unknown["stats"]["speedup"] is unknown["stats"]["saved_seconds"] is None


def reply_with(stats):
    return Reply("", "", (), 1, FinishReason.STOP, stats)


@pytest.mark.process
def test_a_seed_reproduces_a_run_and_depth_0_and_no_draft_are_plain(capsys):
    seeded = ("Tell me a story", "--seed", "3", "--max-tokens", "40", "--pair", "demo")
    assert run(capsys, *seeded)[1] == run(capsys, *seeded)[1]
    for flags in (["--depth", "0"], ["--no-draft"]):
        _, plain, _ = run(capsys, "Hi", "--json", *flags, "--max-tokens", "10", "--pair", "demo")
        assert json.loads(plain)["stats"]["drafted"] == 0


@pytest.mark.process
def test_stats_show_every_number_and_a_single_one_has_no_s_at_its_end(capsys):
    _, _, err = run(capsys, "demo", "Hello", "--draft", "lookup", "--stats", "--max-tokens", "1")
    for word in ("mean accepted length", "verify", "other", "seed", "1 token ", "1 pass of"):
        assert word in err
    assert not re.search(r"(?<![\d.,])1 (?:tokens|passes)", err)
    assert "the draft model" not in err.partition("\nseed")[0]


@pytest.mark.process
def test_raw_text_is_continued_without_a_template_up_to_a_stop_string(capsys):
    asked = ("def reverse(", "--raw", "--json", "--stop", " ", "--temperature", "0", "--pair", "demo")
    reply = json.loads(run(capsys, *asked)[1])
    assert reply["stats"]["prompt_tokens"] < 12
    assert (" " in reply["text"], reply["finish_reason"]) == (False, "stop")


def shell(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "localspec", "run", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        **options,
    )


@pytest.mark.process
def test_a_pipe_is_the_prompt_and_stdout_holds_the_object_alone():
    counts = []
    for words in ([], ["-"]):
        done = shell(*words, "--json", "--max-tokens", "4", "--pair", "demo", input="Hello\n")
        assert not re.search("llama_|ggml", done.stderr)
        counts.append(json.loads(done.stdout)["stats"]["prompt_tokens"])
    assert counts[0] == counts[1] > 0


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="a console's Ctrl-C cannot be sent to one process there")
def test_ctrl_c_keeps_the_text_prints_the_numbers_and_exits_130(tiny_gguf):
    endless = tiny_gguf(context_length=32768, layers=4, embedding=128)
    command = [sys.executable, "-u", "-m", "localspec", "run", "a", "--raw", "--target", str(endless)]
    process = subprocess.Popen(
        [*command, "--context", "32000", "--threads", "1", "--temperature", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    first = process.stdout.read(1)
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert first + rest
    assert b"tokens/s" in err
    assert b"stopped" in err
    assert b"Traceback" not in err


@pytest.mark.process
def test_a_terminal_without_a_character_gets_another_one():
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "localspec", "bench", "demo", "--seconds", "1", "--threads", "1"]
    done = subprocess.run(command, capture_output=True, timeout=300, env=ascii_only)
    assert done.returncode == 0, done.stderr


@pytest.mark.process
def test_a_home_that_cannot_be_written_is_noted_once(tmp_path):
    (tmp_path / "data").touch()
    done = shell(
        *("Hi", "--pair", "demo", "--max-tokens", "4"), env=os.environ | {"LOCALSPEC_HOME": str(tmp_path)}
    )
    assert done.returncode == 0
    assert done.stderr.count("cannot be stored") == 1
    assert "notice: costs and acceptance of pairs cannot be stored" in done.stderr


def assert_printed(code, out, err, wanted=1):
    lines = err.strip().splitlines()
    assert code == wanted
    assert out == ""
    assert lines[0].startswith("error: ")
    assert lines[1].startswith("hint: ")
    assert len(lines) == 2


@pytest.mark.process
def test_a_target_that_cannot_take_drafts_back_is_refused_with_a_draft_and_runs_alone(tiny_gguf, capsys):
    plain, recurrent = tiny_gguf(), tiny_gguf(architecture="mamba")
    code, out, err = run(capsys, "a", "--raw", "--target", recurrent, "--draft", plain)
    assert_printed(code, out, err)
    assert "recurrent" in err
    code, out, _ = run(capsys, "a", "--raw", "--json", "--target", recurrent, "--max-tokens", "5")
    assert code == 0
    assert json.loads(out)["stats"]["emitted"]


@pytest.mark.process
def test_the_shortest_context_holds_a_whole_verify_batch(capsys):
    code, out, err = run(capsys, "Hi", "--context", "16", "--max-tokens", "4", "--pair", "demo")
    assert (code, bool(out.strip())) == (0, True), err


def test_reading_is_shown_until_the_reply_begins(monkeypatch, capsys):
    monkeypatch.setattr("localspec.display.obeys_sequences", lambda stream: stream is sys.stderr)
    begun = Started("big", "", 5000, 0, 0, 1, "greedy", 8192)
    show(iter([begun, Prefill(512, 5000, 1.0), Finished(reply_with(Stats()))]), quiet=True)
    *drawn, cleared = capsys.readouterr().err.split("\r\x1b[K")[1:]
    assert drawn == [f"reading the prompt: {text}" for text in ("5,000 tokens", "512 of 5,000 tokens")]
    assert cleared == ""
