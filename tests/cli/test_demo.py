"""`localspec demo`: the race on the enlarged pair, and on the small one where there is no room."""

import resource
import sys
from contextlib import ExitStack
from dataclasses import replace
from itertools import accumulate, pairwise
from subprocess import run

import pytest

from localspec import demo
from localspec.cli import main
from localspec.cli.commands.demo import DEPTH, PROMPT, both, outcome_of
from localspec.gguf.enlarging import Shape, enlarge
from localspec.measure.race import STOOD_STILL, UNFAIR, Lane, Pace, Race, race

pytestmark = pytest.mark.usefixtures("home")
WIDE = Shape(width=320, layers=6, heads=8, kv_heads=4, head_width=64, ffn=640, vocab=2560)


@pytest.fixture
def unwritable(home):
    """A file where the folder of the enlarged pair should be."""
    (home / "cache").mkdir(parents=True)
    (home / "cache" / "demo").write_text("")


@pytest.mark.usefixtures("unwritable")
def test_the_small_pair_is_paced_where_nothing_can_be_written(capsys, tmp_path):
    drawing = tmp_path / "race.svg"
    assert main(["demo", "--svg", str(drawing)]) == 0
    out, err = capsys.readouterr()
    assert "times as fast, the same text" in out
    assert "paced, not measured" in out
    assert out.count("\n") == 1
    assert err.startswith("note: plain decoding and drafting race; the result comes within a minute\n")
    assert "cannot be written" in err
    picture = drawing.read_text(encoding="utf-8")
    for words in ("guessed", "corrected", "bonus", "localspec", "tokens"):
        assert words in picture
    assert "url(" not in picture.replace("url(#", "")


def test_too_little_memory_writes_nothing_and_says_so(home, capsys, monkeypatch):
    monkeypatch.setattr("localspec.cli.commands.demo.free_bytes", lambda: 500_000_000)
    assert main(["demo"]) == 0
    out, err = capsys.readouterr()
    assert "too little memory or disk is free" in err
    assert "paced" in out
    assert [path.name for path in (home / "cache" / "demo").iterdir()] == []


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
    assert "paced" in limited.stdout
    assert [path.name for path in (home / "cache" / "demo").iterdir()] == []


def test_the_enlarged_pair_is_removed_by_its_name(home, capsys):
    (home / "cache" / "demo").mkdir(parents=True)
    for name in ("target-0.gguf", "draft-0.gguf.part"):
        (home / "cache" / "demo" / name).write_bytes(b"x" * 500)
    assert main(["rm", "demo"]) == 0
    assert "1.0 kB freed" in capsys.readouterr().out
    assert main(["rm", "demo"]) == 2


def test_an_enlarged_target_writes_the_text_of_the_small_one(tmp_path):
    target = enlarge(demo.target_path(), tmp_path / "target.gguf", WIDE)
    ends = [raced(path) for path in (target, demo.target_path())]
    texts = ["".join(text for text, _ in lane.written) for end in ends for lane in (end.plain, end.drafting)]
    assert len(set(texts)) == 1
    assert "every right guess is almost free" in texts[0]


def test_each_clock_counts_its_own_passes_and_the_slower_side_moves_first():
    pace = Pace(1.0, 0.25)
    steps = raced_steps(demo.target_path(), pace)
    end = steps[-1]
    assert end.plain.seconds == end.plain.cycles == end.plain.tokens
    assert end.drafting.seconds == end.drafting.cycles + 0.25 * end.drafting.drafted
    assert end.speedup == end.plain.seconds / end.drafting.seconds > 1
    for before, after in pairwise(steps):
        if not before.plain.is_done and not before.drafting.is_done:
            moved_plain = before.plain != after.plain
            assert moved_plain == (before.plain.seconds <= before.drafting.seconds)


def test_a_gain_that_no_pass_can_bring_is_a_busy_machine():
    drafting = Lane(seconds=1.0, tokens=40, cycles=10, drafted=36, is_done=True)
    fair, stalled = (Lane(seconds=s, tokens=40, cycles=40, is_done=True) for s in (4.0, 24.0))
    assert outcome_of(Race(fair, drafting), None).startswith("4.0 times as fast")
    assert [Race(plain, drafting).is_won for plain in (fair, stalled, drafting)] == [True, False, False]
    assert not Race(fair, replace(drafting, drafted=1)).is_won
    assert UNFAIR in outcome_of(Race(stalled, drafting), None)


def lane(cycles, **counts):
    times = tuple(accumulate(cycles))
    return Lane(times=times, seconds=times[-1], cycles=len(times), is_done=True, **counts)


def test_a_side_that_was_stopped_for_a_moment_brings_no_gain():
    """Ctrl-Z while plain decoding was in a pass: its 41 tokens, 3.3 s, took 6.3 s."""
    drafting = lane([0.3, *[0.17] * 7], tokens=41, drafted=36)
    plain = lane([0.2, *[0.078] * 40], tokens=41)
    stopped = lane([0.2, *[0.078] * 39, 3.1], tokens=41)
    assert Race(plain, drafting).is_won
    assert not Race(stopped, drafting).is_won
    assert outcome_of(Race(stopped, drafting), None) == STOOD_STILL


def raced(target):
    return raced_steps(target)[-1]


def raced_steps(target, pace=None):
    with ExitStack() as opened:
        sides = both(opened, target, demo.draft_path())
        return list(race(*sides, PROMPT, pace, depth=DEPTH))
