"""The engine process, scripted and with the demo pair: what it says, how it ends, and that nothing outlives it."""

import math
import signal
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path

import pytest
from scripted_pairs import called

from localspec.engine import messages
from localspec.engine.client import EngineProcess
from localspec.engine.messages import (
    Cancel,
    Compared,
    ComparisonStopped,
    Died,
    Failure,
    Generate,
    Hello,
    LoadPair,
    LoadStage,
    ProposalText,
    Ready,
    Rendered,
)
from localspec.errors import EngineDied
from localspec.events import (
    Cycle,
    Finished,
    FinishReason,
    Kind,
    Origin,
    Piece,
    Prefill,
    Reply,
    Source,
    Stats,
    ToolCall,
)
from localspec.loading.pair_info import listing
from localspec.machine.children import describe_exit
from localspec.models.registry import named
from localspec.prompt.messages import Message
from tests import processes
from tests.engine.workshop import numbered, until

SCRIPT = str(Path(__file__).parent / "scripted_engine.py")
COMMAND = (sys.executable, SCRIPT)
REPLY = Reply("é\n\u2028", "why", (1, 2), 3, FinishReason.STOP, Stats(cycles=1, accepted_by_position=(1, 0)))
CYCLE = Cycle((1, 2), (Origin.ACCEPTED, Origin.FIX), (1, 9), 1, 2, Source.LOOKUP, 3, 0.1, 0.2, 0.3)


@pytest.fixture
def engine():
    process = EngineProcess(COMMAND)
    process.start()
    yield process
    process.close()


def ask(text, serial=1):
    return Generate(serial, ({"role": "user", "content": text},), {})


@pytest.mark.parametrize(
    "message",
    [
        LoadPair(named("demo"), options={"threads": 3}),
        Generate(
            4,
            (
                Message("system", "be brief"),
                Message("assistant", "a", tool_calls=(ToolCall("f", {"x": 1}, "c1"),)),
            ),
            {"temperature": 0.5, "speculate": False},
        ),
        CYCLE,
        Piece("\x00 odd 😀", Kind.REASONING, Origin.BONUS, Source.MODEL),
        Finished(REPLY),
        Compared(REPLY, REPLY, "they part"),
        Died("what", "hint"),
        LoadPair(called("not UTF-8: \udcff.gguf", listed=False)),
        Generate(1, options={"logit_bias": {"7": -math.inf}, "json_schema": {"maximum": 10**40}}),
    ],
)
def test_a_message_comes_back_from_its_line_as_it_was(message):
    line = messages.encode(message, 7)
    assert line.count(b"\n") == 1
    assert messages.decode(line) == (7, message)


@pytest.mark.parametrize(
    "line",
    [
        *(b"ggml_init: found 1 device", b'["Nonsense",{}]', b'["LoadPair",{"colour":1}]', b"3"),
        *(b'["Ready",[]]', b'["Ready",5]', b"[" * 100_000),
    ],
)
def test_a_line_that_is_no_message_ends_the_connection_with_a_sentence(line):
    with pytest.raises(EngineDied, match="invalid message"):
        messages.decode(line)


def test_a_cancel_that_arrives_before_its_request_began_still_counts(engine):
    engine.send(ask("tokens 50", serial=1))
    engine.send(ask("tokens 5000", serial=2))
    engine.send(Cancel(2))
    assert len(numbered(engine, Finished, count=2)[-1][1].reply.tokens) < 5000


@pytest.mark.process
def test_the_last_words_of_a_dead_engine_become_the_hint():
    engine = EngineProcess((sys.executable, "-c", "import sys; sys.exit('GGML_ASSERT(n > 0) failed')"))
    engine.start()
    death = until(engine, Died)[-1]
    assert "exit code 1" in death.what
    assert "GGML_ASSERT" in death.hint


@pytest.mark.process
def test_a_native_print_does_not_break_the_stream():
    code = (
        "import os; from localspec.engine.server import take_pipes; s, k = take_pipes(); os.write(1, b'noise\\n');"
        "from localspec.engine.messages import *;"
        "k.write(encode(Rendered('x'), 1)); k.flush(); s.readline()"
    )
    engine = EngineProcess((sys.executable, "-c", code))
    engine.start()
    assert until(engine, Rendered) == [Rendered("x")]
    engine.close()


@pytest.mark.process
def test_a_program_that_cannot_be_started_is_an_error_of_ours():
    with pytest.raises(EngineDied):
        EngineProcess(("/nonexistent/python",)).start()


def test_closing_ends_an_engine_that_hangs_in_a_prefill(engine):
    engine.send(ask("hang"))
    until(engine, Prefill)
    pid = engine.pid
    engine.close()
    assert not processes.lives(pid)


def test_an_engine_that_will_not_end_keeps_nobody_waiting_and_nothing_is_loaded_beside_it(
    engine, monkeypatch
):
    """As a process that is stuck in a driver: neither Quit nor a kill ends it."""
    until(engine, Hello)
    stuck, free = engine._connection.process, threading.Event()
    wait = stuck.wait

    def wait_in_vain(timeout=None):
        if not free.wait(timeout):
            raise subprocess.TimeoutExpired(stuck.args, timeout)
        return wait()

    monkeypatch.setattr(stuck, "kill", lambda: None)
    monkeypatch.setattr(stuck, "wait", wait_in_vain)
    starting = threading.Thread(target=engine.start, daemon=True)
    starting.start()
    starting.join(300)
    try:
        assert not starting.is_alive()
        engine.send(LoadPair(called()))
        until(engine, Hello)
        assert engine._connection.outbox.qsize() == 1
    finally:
        free.set()
    until(engine, Ready)


def test_an_engine_goes_on_when_no_other_can_be_started(engine):
    engine._command = ("/nonexistent/python",)
    with pytest.raises(EngineDied):
        engine.start()
    engine.send(ask("exact still here"))
    assert until(engine, Finished)[-1].reply.text == "still here"


@pytest.mark.process
def test_an_engine_does_not_survive_a_client_that_is_killed():
    client = (
        "import sys, time; from localspec.engine.client import EngineProcess; from localspec.events import Prefill;"
        "from localspec.engine.messages import *;"
        f"e = EngineProcess((sys.executable, {SCRIPT!r})); e.start(); "
        "e.send(Generate(1, (dict(role='user', content='hang'),)));"
        "print(e.pid, flush=True);"
        "\nwhile not any(isinstance(r, Prefill) for r in e.drain()): time.sleep(0.01)"
        "\nprint('hanging', flush=True); time.sleep(60)"
    )
    with subprocess.Popen((sys.executable, "-c", client), stdout=subprocess.PIPE, text=True) as process:
        pid = int(process.stdout.readline())
        assert process.stdout.readline() == "hanging\n"
        process.send_signal(signal.SIGKILL)
    processes.until(lambda: not processes.lives(pid))


def test_an_exit_code_is_reported_in_words():
    assert describe_exit(3) == "exit code 3"
    assert describe_exit(-6) == "SIGABRT"
    assert "lack of memory" in describe_exit(-9)


NUMBERS = count(1)  # of requests: the tests come in any order, and what was cancelled stays so
STORY = ({"role": "user", "content": "Tell me a story"},)
GREEDY = {"temperature": 0, "seed": 1, "max_tokens": 60, "depth": 3}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return processes.informed(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def real_engine(home):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALSPEC_HOME", str(home))
        process = EngineProcess()
        process.start()
    process.send(LoadPair(named("demo"), options={"threads": 1}))
    reports = until(process, Ready)
    assert any(isinstance(report, LoadStage) for report in reports)
    yield process
    process.close()


def test_a_reply_streams_with_the_text_of_every_proposal(real_engine):
    real_engine.send(Generate(next(NUMBERS), STORY, GREEDY, cycles=True))
    reports = until(real_engine, Finished)
    reply = reports[-1].reply
    assert "".join(r.text for r in reports if isinstance(r, Piece)) == reply.text
    proposals = [r for r in reports if isinstance(r, Cycle) and r.proposal]
    texts = [r.texts for r in reports if isinstance(r, ProposalText)]
    assert [len(t) for t in texts] == [len(c.proposal) for c in proposals]
    accepted = "".join("".join(t[: c.accepted]) for t, c in zip(texts, proposals, strict=True))
    assert accepted.split()[0] in reply.text


def test_a_comparison_says_what_drafting_brought_and_judges_no_speed_of_the_demo(
    real_engine, home, monkeypatch
):
    real_engine.send(Generate(next(NUMBERS), STORY, GREEDY, compares=True))
    compared = until(real_engine, Compared)[-1]
    assert compared.drafted.stats.drafted > 0
    assert compared.plain.stats.drafted == 0
    speed, note = compared.verdict.splitlines()[0], compared.verdict.splitlines()[-1]
    assert "passes instead of" in speed
    assert "slower" not in speed.casefold()
    assert "demo pair is tiny" in note or "processor" in note
    monkeypatch.setenv("LOCALSPEC_HOME", str(home))
    demo = next(row for row in listing() if row.name == "demo")
    assert demo.on_disk
    assert demo.speedup is None


def test_a_comparison_that_is_stopped_says_so(real_engine):
    number = next(NUMBERS)
    real_engine.send(Generate(number, STORY, GREEDY, compares=True))
    real_engine.send(Cancel(number))
    until(real_engine, ComparisonStopped)


@pytest.mark.process
def test_without_a_pair_a_question_is_answered_with_what_to_do():
    engine = EngineProcess()
    engine.start()
    engine.send(Generate(1, STORY))
    assert "no pair is loaded" in until(engine, Failure)[-1].what
    engine.close()
