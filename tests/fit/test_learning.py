"""A draft learns, goes on where it was cut short, and the best one is kept. Needs PyTorch."""

import signal
import subprocess
import sys

import numpy as np
import pytest

import localspec
from localspec.cli import main
from localspec.errors import BadSetting
from localspec.fit.collect import KEPT, Text, add_texts
from localspec.fit.making import Judgement, TrainingPlan
from localspec.gguf.header import header_at
from localspec.measure.summary import Interval
from localspec.models.registry import is_known, named

pytest.importorskip("torch", reason="5 GB with the CUDA that the default index adds: pip install '.[fit]'")

from localspec.fit.training import learn

pytestmark = pytest.mark.process

PLAN = TrainingPlan(layers=2, output_tokens=256, answered=0, visits=1600)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    monkeypatch.setattr("localspec.fit.training.STEP", 80)
    monkeypatch.setattr("localspec.fit.training.WARM_UP", 2)


@pytest.fixture
def target(tiny_gguf):
    return tiny_gguf(vocab_size=512, layers=3)


@pytest.fixture
def folder(tmp_path):
    """Answers that always are one word: easy to learn."""
    random, texts = np.random.default_rng(1), []
    for _ in range(64):
        likely = np.tile(np.arange(300, 300 + KEPT, dtype=np.int32), (20, 1))
        log_shares = np.full((20, KEPT), -9.0, np.float16)
        log_shares[:, 0] = -0.01
        prompt = random.integers(0, 500, 4, dtype=np.int32)
        texts.append(Text(prompt, likely[:, 0].copy(), likely, log_shares))
    (tmp_path / "draft").mkdir()
    add_texts(tmp_path / "draft", texts)
    return tmp_path / "draft"


def learned(target, folder, plan=PLAN, stopped=lambda: False):
    reported = []
    end = learn(target, folder, folder.with_suffix(".gguf"), plan, reported.append, stopped)
    return end, reported


def test_it_learns_and_writes_what_it_learned(target, folder):
    end, reported = learned(target, folder)
    assert end.visits >= PLAN.visits
    assert reported[0].right < 0.2 < 0.8 < end.right
    assert reported[0].overlap < end.overlap
    assert reported[1].loss > 1.5 * reported[-1].loss
    header = header_at(folder.with_suffix(".gguf"))
    assert header.text("localspec.fitted.answers") == "1,280 tokens to 64 prompts"
    assert header.text("localspec.fitted.held_out").startswith(f"overlap {end.overlap:.3f}")


def test_stopping_keeps_the_draft_and_the_same_command_goes_on(target, folder):
    steps = iter([False, False, True])
    first, _ = learned(target, folder, stopped=lambda: next(steps))
    assert 0 < first.visits < PLAN.visits
    assert folder.with_suffix(".gguf").exists()
    end, reported = learned(target, folder)
    assert reported[0].visits == first.visits
    assert end.overlap > first.overlap


def test_a_worse_draft_does_not_take_the_place_of_a_better_one(target, folder, monkeypatch):
    learned(target, folder, TrainingPlan(2, 256, 0, 400))
    before = folder.with_suffix(".gguf").read_bytes()
    monkeypatch.setattr("localspec.fit.training.Training.judged", lambda self: (0.0, 0.0))
    learned(target, folder, TrainingPlan(2, 256, 0, 800))
    assert folder.with_suffix(".gguf").read_bytes() == before


def test_killed_at_any_moment_it_goes_on_from_a_whole_checkpoint(target, folder):
    code = (
        "import sys; from pathlib import Path; from localspec.fit import training\n"
        "from localspec.fit.making import TrainingPlan\n"
        "training.STEP = 80; training.BETWEEN_CHECKPOINTS = training.TIMES = 0\n"
        "folder = Path(sys.argv[2])\n"
        "training.learn(Path(sys.argv[1]), folder, folder.with_suffix('.gguf'), TrainingPlan(2, 256, 0, 10**9),\n"
        "    lambda now: print(now.visits, flush=True), lambda: False)"
    )
    begun = subprocess.Popen([sys.executable, "-c", code, target, folder], stdout=subprocess.PIPE, text=True)
    visits = [int(begun.stdout.readline()) for _ in range(4)]
    begun.send_signal(signal.SIGKILL)
    begun.wait()
    end, reported = learned(target, folder, TrainingPlan(2, 256, 0, visits[-1] + 1))
    assert reported[0].visits >= visits[-2]
    assert end.visits > visits[-1]


def test_a_checkpoint_of_another_plan_or_a_damaged_one_is_named(target, folder):
    learned(target, folder, TrainingPlan(2, 256, 0, 100))
    with pytest.raises(BadSetting, match="draft was started with --layers 2 and --trim 256"):
        learned(target, folder, TrainingPlan(1, 256, 0, 100))
    (folder / "checkpoint.pt").write_bytes(b"no checkpoint")
    with pytest.raises(BadSetting, match=r"checkpoint\.pt cannot be read"):
        learned(target, folder, PLAN)


def test_a_full_disk_loses_nothing(target, folder, monkeypatch):
    first, _ = learned(target, folder, TrainingPlan(2, 256, 0, 400))

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("localspec.files.os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            learned(target, folder)
    _, reported = learned(target, folder, TrainingPlan(2, 256, 0, 401))
    assert reported[0].visits == first.visits


def test_without_answers_it_says_so(target, tmp_path):
    with pytest.raises(BadSetting, match="too few answers to learn from"):
        learned(target, tmp_path)


def test_a_made_draft_becomes_a_pair_only_where_it_is_judged_faster(home_of_processes, monkeypatch, capsys):
    monkeypatch.setattr("localspec.fit.collect.HELD_OUT", 3)
    monkeypatch.setattr("localspec.fit.making.EACH", 1)
    command = ["fit", "demo", "--make", "--layers", "2", "--trim", "1024", "--threads", "1"]
    assert main([*command, "--answers", "700", "--visits", "400"]) == 1
    assert "Not faster here, so it became no pair." in capsys.readouterr().out
    assert not is_known("demo-made")

    faster = Judgement(True, Interval(1.3, 1.2, 1.4), 1.9)
    monkeypatch.setattr("localspec.cli.commands.fit.judge_it", lambda *_: faster)
    assert main([*command, "--answers", "700", "--visits", "500"]) == 0
    assert "The pair is called demo-made" in capsys.readouterr().out
    assert "1.30x where it was made" in named("demo-made").use
    with localspec.load("demo-made", threads=1) as session:
        assert session.run("Hello", temperature=0, max_tokens=8, depth=2).stats.drafted > 0
