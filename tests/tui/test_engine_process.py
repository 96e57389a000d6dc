"""The engine process: what it says, how it ends, and that nothing of it outlives its client."""

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from weakref import WeakKeyDictionary

import pytest
from scripted_engine import answer_to

from localspec.engine import messages
from localspec.engine.client import EngineProcess
from localspec.engine.messages import (
    Answer,
    Cancel,
    Compared,
    Died,
    Hello,
    LoadPair,
    Ready,
    Text,
)
from localspec.errors import EngineDied
from localspec.events import Cycle, Finished, FinishReason, Kind, Origin, Piece, Prefill, Reply, Source, Stats
from localspec.health.trial import describe_exit

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


BACKLOG = WeakKeyDictionary()  # reports that came together with the one that was waited for


def collect(engine, kind, seconds=60.0):
    """Reports up to and including the first of a kind."""
    found, backlog = [], BACKLOG.setdefault(engine, deque())
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        backlog.extend(engine.drain())
        while backlog:
            found.append(backlog.popleft())
            if isinstance(found[-1], kind):
                return found
        time.sleep(0.005)
    raise AssertionError(f"no {kind.__name__} among {found[-5:]}")


def ask(text, serial=1):
    return Answer(serial, ({"role": "user", "content": text},), {})


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return (
        Path(f"/proc/{pid}/stat").exists()
        and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    )


def until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


@pytest.mark.parametrize(
    "message",
    [
        LoadPair("demo", options={"threads": 3}),
        Answer(
            4,
            ({"role": "system", "content": "be brief"}, {"role": "user", "content": "a\nb"}),
            {"temperature": 0.5, "speculate": False},
        ),
        CYCLE,
        Piece("\x00 odd 😀", Kind.REASONING, Origin.BONUS, Source.MODEL),
        Finished(REPLY),
        Compared(REPLY, REPLY, "they part"),
        Died("what", "hint"),
        LoadPair(target="not UTF-8: \udcff.gguf"),
        Answer(1, options={"logit_bias": {"7": -math.inf}, "json_schema": {"maximum": 10**40}}),
    ],
)
def test_a_message_comes_back_from_its_line_as_it_was(message):
    line = messages.encode(message, 7)
    assert line.count(b"\n") == 1
    assert messages.decode(line) == (7, message)


@pytest.mark.parametrize(
    "line", [b"ggml_init: found 1 device\n", b'["Nonsense",{}]\n', b'["LoadPair",{"colour":1}]\n', b"3\n"]
)
def test_a_line_that_is_no_message_ends_the_connection_with_a_sentence(line):
    with pytest.raises(EngineDied, match="invalid message"):
        messages.decode(line)


def test_a_reply_arrives_whole_and_in_order(engine):
    engine.send(LoadPair())
    engine.send(ask("essay"))
    reports = collect(engine, Finished)
    assert isinstance(reports[0], Hello)
    assert any(isinstance(report, Ready) for report in reports)
    text = "".join(report.text for report in reports if isinstance(report, Piece))
    assert text == reports[-1].reply.text == answer_to("essay")[0]


def test_a_cancel_ends_the_reply_and_keeps_what_was_made(engine):
    engine.send(ask("tokens 5000"))
    collect(engine, Cycle)
    engine.send(Cancel(1))
    reply = collect(engine, Finished)[-1].reply
    assert reply.finish_reason is FinishReason.CANCELLED
    assert 0 < len(reply.tokens) < 5000


def test_a_cancel_that_arrives_before_its_request_began_still_counts(engine):
    engine.send(ask("tokens 50", serial=1))
    engine.send(ask("tokens 5000", serial=2))
    engine.send(Cancel(2))
    collect(engine, Finished)
    assert len(collect(engine, Finished)[-1].reply.tokens) < 5000


def test_a_killed_engine_is_reported_with_its_signal_and_can_be_started_again(engine):
    engine.send(ask("crash"))
    death = collect(engine, Died)[-1]
    assert "SIGKILL" in death.what
    engine.start()
    engine.send(ask("exact again"))
    assert collect(engine, Finished)[-1].reply.text == "again"


def test_the_last_words_of_a_dead_engine_become_the_hint():
    engine = EngineProcess((sys.executable, "-c", "import sys; sys.exit('GGML_ASSERT(n > 0) failed')"))
    engine.start()
    death = collect(engine, Died)[-1]
    assert "exit code 1" in death.what
    assert "GGML_ASSERT" in death.hint


def test_a_native_print_does_not_break_the_stream():
    code = (
        "import os; from localspec.engine.__main__ import take_pipes; s, k = take_pipes(); os.write(1, b'noise\\n');"
        "from localspec.engine.messages import *;"
        "k.write(encode(Text('x'), 1)); k.flush(); s.readline()"
    )
    engine = EngineProcess((sys.executable, "-c", code))
    engine.start()
    assert collect(engine, Text) == [Text("x")]
    engine.close()


def test_another_protocol_is_refused():
    code = "import os; from localspec.engine.messages import *;os.write(1, encode(Hello(99, 1))); input()"
    engine = EngineProcess((sys.executable, "-c", code))
    engine.start()
    assert "protocol 99" in collect(engine, Died)[-1].what


def test_a_program_that_cannot_be_started_is_an_error_of_ours():
    with pytest.raises(EngineDied):
        EngineProcess(("/nonexistent/python",)).start()


@pytest.mark.timeout(60)
def test_closing_ends_an_engine_that_hangs_in_a_prefill(engine):
    engine.send(ask("hang"))
    collect(engine, Prefill)
    pid = engine.pid
    engine.close()
    assert gone(pid)


def test_an_engine_that_will_not_end_keeps_nobody_waiting_and_nothing_is_loaded_beside_it(
    engine, monkeypatch
):
    """As a process that is stuck in a driver: neither Quit nor a kill ends it."""
    collect(engine, Hello)
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
    starting.join(15)
    try:
        assert not starting.is_alive()
        engine.send(LoadPair())
        collect(engine, Hello)
        assert engine._connection.outbox.qsize() == 1
    finally:
        free.set()
    collect(engine, Ready)


def test_an_engine_goes_on_when_no_other_can_be_started(engine):
    engine._command = ("/nonexistent/python",)
    with pytest.raises(EngineDied):
        engine.start()
    engine.send(ask("exact still here"))
    assert collect(engine, Finished)[-1].reply.text == "still here"


def test_an_engine_does_not_survive_a_client_that_is_killed():
    client = (
        "import sys, time; from localspec.engine.client import EngineProcess; from localspec.events import Prefill;"
        "from localspec.engine.messages import *;"
        f"e = EngineProcess((sys.executable, {SCRIPT!r})); e.start(); "
        "e.send(Answer(1, (dict(role='user', content='hang'),)));"
        "print(e.pid, flush=True);"
        "\nwhile not any(isinstance(r, Prefill) for r in e.drain()): time.sleep(0.01)"
        "\nprint('hanging', flush=True); time.sleep(60)"
    )
    with subprocess.Popen((sys.executable, "-c", client), stdout=subprocess.PIPE, text=True) as process:
        pid = int(process.stdout.readline())
        assert process.stdout.readline() == "hanging\n"
        process.send_signal(signal.SIGKILL)
    until(lambda: gone(pid))


def test_an_exit_code_is_said_in_words():
    assert describe_exit(3) == "exit code 3"
    assert describe_exit(-6) == "SIGABRT"
    assert "out of memory" in describe_exit(-9)
