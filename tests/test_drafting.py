"""What a pair teaches is kept between runs, and replies only where the user asked for it."""

import stat
import sys

import pytest

import localspec
from localspec.cli import main


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_lessons_are_stored_and_a_damaged_file_is_set_aside(home):
    def known_before_a_reply():
        with localspec.load("demo") as session:
            hazards = session.engine.drafting.tuning.state().greedy.hazards
            session.run("Tell me a story", depth="auto", temperature=0, max_tokens=60)
            return sum(hazards.kept) + sum(hazards.rejected)

    assert known_before_a_reply() == 0
    (stored,) = (home / "data" / "lessons").glob("*.json")
    assert known_before_a_reply() > 0
    stored.write_text("{ damaged")
    assert known_before_a_reply() == 0
    assert stored.with_suffix(".damaged").exists()
    assert stored.exists()


def test_calibration_leaves_the_conversation_as_it_was():
    with localspec.load("demo") as session:
        session.run("Hello", temperature=0, max_tokens=20)
        before = list(session.engine.target.tokens), list(session.engine.draft.tokens)
        session.calibrate(budget_seconds=2.0)
        assert session.engine.drafting.tuning.costs.measured
        assert before == (list(session.engine.target.tokens), list(session.engine.draft.tokens))


def test_replies_are_not_remembered_unasked(home):
    with localspec.load("demo") as session:
        session.run("Hello", max_tokens=20)
    assert not (home / "data" / "replies").exists()


def test_remembered_replies_are_drafted_from_and_can_be_forgotten(home, monkeypatch, capsys):
    monkeypatch.setenv("LOCALSPEC_REMEMBER_REPLIES", "yes")

    def drafted():
        with localspec.load("demo", draft="lookup") as session:
            reply = session.run("Tell me a story", depth="auto", temperature=0, max_tokens=80)
            return reply.text, reply.stats.from_lookup

    first_text, first = drafted()
    second_text, second = drafted()
    assert first_text == second_text
    assert second > first
    (file,) = (home / "data" / "replies").iterdir()
    if sys.platform != "win32":
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert main(["forget"]) == 0
    assert "1 model" in capsys.readouterr().out
    assert not file.exists()
