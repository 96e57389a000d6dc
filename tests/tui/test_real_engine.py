"""The engine process with the demo pair: what the terminal asks for is what `localspec.api` does."""

import time
from itertools import count

import pytest

from localspec.engine.client import EngineProcess
from localspec.engine.messages import (
    Answer,
    Cancel,
    Compared,
    CompareReplies,
    Failure,
    LoadPair,
    LoadStage,
    ProposalText,
    Ready,
    Stopped,
)
from localspec.events import Cycle, Finished, FinishReason, Piece
from localspec.models.picker import listing

NUMBERS = count(1)  # of requests: the tests come in any order, and what was cancelled stays so
STORY = ({"role": "user", "content": "Tell me a story"},)
GREEDY = {"temperature": 0, "seed": 1, "max_tokens": 60, "depth": 3}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def engine(home):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALSPEC_HOME", str(home))
        process = EngineProcess()
        process.start()
    process.send(LoadPair("demo", options={"threads": 1}))
    reports = until(process, Ready)
    assert any(isinstance(report, LoadStage) for report in reports)
    yield process
    process.close()


def until(engine, *kinds, seconds=60.0):
    found = []
    deadline = time.monotonic() + seconds
    while not any(isinstance(report, kinds) for report in found):
        assert time.monotonic() < deadline, f"none of {kinds} in {found[-3:]}"
        found += engine.drain()
        time.sleep(0.005)
    return found


def test_a_reply_streams_with_the_text_of_every_proposal(engine):
    engine.send(Answer(next(NUMBERS), STORY, GREEDY, cycles=True))
    reports = until(engine, Finished)
    reply = reports[-1].reply
    assert "".join(r.text for r in reports if isinstance(r, Piece)) == reply.text
    proposals = [r for r in reports if isinstance(r, Cycle) and r.proposal]
    texts = [r.texts for r in reports if isinstance(r, ProposalText)]
    assert [len(t) for t in texts] == [len(c.proposal) for c in proposals]
    accepted = "".join("".join(t[: c.accepted]) for t, c in zip(texts, proposals, strict=True))
    assert accepted.split()[0] in reply.text


def test_a_comparison_says_what_drafting_brought_and_judges_no_speed_of_a_toy(engine, home, monkeypatch):
    engine.send(CompareReplies(next(NUMBERS), STORY, GREEDY))
    compared = until(engine, Compared)[-1]
    assert compared.drafted.stats.drafted > 0
    assert compared.plain.stats.drafted == 0
    speed, toy = compared.verdict.splitlines()[0], compared.verdict.splitlines()[-1]
    assert "passes instead of" in speed
    assert "slower" not in speed.casefold()
    assert "toy" in toy or "processor" in toy
    monkeypatch.setenv("LOCALSPEC_HOME", str(home))
    demo = next(row for row in listing() if row.name == "demo")
    assert demo.on_disk
    assert demo.speedup is None


def test_a_comparison_that_is_stopped_says_so(engine):
    number = next(NUMBERS)
    engine.send(CompareReplies(number, STORY, GREEDY))
    engine.send(Cancel(number))
    until(engine, Stopped)


def test_a_cancelled_reply_ends_as_cancelled(engine):
    number = next(NUMBERS)
    engine.send(Answer(number, STORY, GREEDY, cycles=True))
    engine.send(Cancel(number))
    assert until(engine, Finished)[-1].reply.finish_reason is FinishReason.CANCELLED


def test_errors_of_the_api_arrive_as_sentences(engine):
    engine.send(Answer(next(NUMBERS), STORY, {"rule": "sideways"}))
    failure = until(engine, Failure)[-1]
    assert "sideways" in failure.what


def test_without_a_pair_a_question_is_answered_with_what_to_do():
    engine = EngineProcess()
    engine.start()
    engine.send(Answer(1, STORY))
    assert "no pair is loaded" in until(engine, Failure)[-1].what
    engine.close()
