"""`localspec demo`: the race on the enlarged pair, and on the small one where there is no room."""

import re
import resource
import sys
from dataclasses import replace
from itertools import accumulate
from subprocess import run

import pytest

from localspec import demo
from localspec.cli import main
from localspec.cli.commands import demo as command
from localspec.gguf.enlarging import Shape, enlarge
from localspec.measure.race import Race, RaceSide

pytestmark = pytest.mark.usefixtures("home", "cache_of_its_own")
WIDE = Shape(width=320, layers=6, heads=8, kv_heads=4, head_width=64, ffn=640, vocab=2560)


@pytest.fixture
def unwritable(home):
    """A file where the folder of the enlarged pair should be."""
    (home / "cache").mkdir(parents=True)
    (home / "cache" / "demo").write_text("")


@pytest.mark.usefixtures("unwritable")
def test_the_small_pair_is_paced_where_nothing_can_be_written(capsys):
    assert main(["demo"]) == 0
    out, err = capsys.readouterr()
    assert re.fullmatch(
        r"The same text in \d+ passes instead of \d+, \d+ of \d+ draft tokens accepted\.\n", out
    )
    assert err.startswith(
        "notice: the demo answers with and without drafting; the result comes within a minute\n"
    )
    assert "cannot be written" in err
    assert err.endswith("`localspec pull qwen3-4b+0.6b` downloads a real pair\n")


def test_too_little_memory_writes_nothing_and_says_so(home, capsys, monkeypatch):
    monkeypatch.setattr("localspec.cli.commands.demo.available_bytes", lambda: 500_000_000)
    assert main(["demo"]) == 0
    out, err = capsys.readouterr()
    assert "too little memory or disk is free" in err
    assert "The same text in" in out
    assert [path.name for path in (home / "cache" / "demo").iterdir()] == []


@pytest.mark.process
def test_a_full_disk_is_one_sentence_and_leaves_nothing(home):
    """A limit on the size of files stands for a disk that fills up while the target is written."""
    limited = run(
        [sys.executable, "-m", "localspec", "demo"],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (60_000_000, 60_000_000)),
    )
    notes = [line for line in limited.stderr.splitlines() if "cannot be written" in line]
    assert len(notes) == 1
    assert "The same text in" in limited.stdout
    assert [path.name for path in (home / "cache" / "demo").iterdir()] == []


def test_an_enlarged_target_writes_the_text_of_the_small_one(tmp_path):
    target = enlarge(demo.target_path(), tmp_path / "target.gguf", WIDE)
    ends = [command.raced(path, demo.draft_path())[0] for path in (target, demo.target_path())]
    texts = ["".join(text for text, _ in side.written) for end in ends for side in (end.plain, end.drafting)]
    assert len(set(texts)) == 1
    assert "every right guess is almost free" in texts[0]


@pytest.mark.parametrize(("wins", "runs"), [((False, True), 2), ((False, False), 3)])
def test_a_race_that_was_not_won_is_run_again_and_then_on_the_small_pair(capsys, monkeypatch, wins, runs):
    raced = []

    def race(target, draft):
        raced.append(target)
        won = RaceSide(seconds=1.0, tokens=40, cycles=10, drafted=36, is_done=True)
        plain = RaceSide(
            seconds=4.0 if len(raced) <= 2 and wins[len(raced) - 1] else 1.0, tokens=40, is_done=True
        )
        return Race(plain, won), "", f"race {len(raced)}"

    monkeypatch.setattr(command, "raced", race)
    monkeypatch.setattr(command, "enlarged", lambda stage: ("large", "draft"))
    assert main(["demo"]) == 0
    out, err = capsys.readouterr()
    assert out == f"race {runs}\n"
    assert raced == ["large", "large", demo.target_path()][:runs]
    assert ("the small pair runs" in err) is (runs == 3)


def side(cycles, **counts):
    times = tuple(accumulate(cycles))
    return RaceSide(times=times, seconds=times[-1], cycles=len(times), is_done=True, **counts)


def test_a_race_is_won_by_a_gain_that_draft_tokens_can_bring_on_a_machine_that_did_not_stall():
    drafting, plain = side([0.3, *[0.17] * 7], tokens=41, drafted=36), side([0.2, *[0.078] * 40], tokens=41)
    assert Race(plain, drafting).is_won
    assert not Race(plain, replace(drafting, drafted=1)).is_won
    assert not Race(drafting, drafting).is_won
    slower = side([0.5] * 41, tokens=41)  # more than the passes saved
    assert not Race(slower, drafting).is_won
    stopped = side([0.2, *[0.078] * 39, 3.1], tokens=41)  # by Ctrl-Z in a pass
    assert Race(stopped, drafting).held_up
    assert not Race(stopped, drafting).is_won
