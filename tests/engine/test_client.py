"""The client of an engine process, when the process ends."""

import sys
import time

import pytest

from localspec.engine import client
from localspec.engine.client import EngineProcess
from localspec.engine.messages import Answer, Detokenize, Died, LoadPair
from localspec.engine.spawn import spawn
from localspec.events import Piece


def death(process):
    """What the client reports last."""
    deadline, reports = time.monotonic() + 20, []
    while not (reports and isinstance(reports[-1], Died)) and time.monotonic() < deadline:
        reports += process.drain()
        time.sleep(0.01)
    process.close()
    return reports[-1]


def test_a_mistake_of_our_own_in_a_report_ends_the_process_instead_of_the_answers(monkeypatch):
    monkeypatch.setattr(client, "read_messages", lambda stream: [None])
    process = EngineProcess()
    process.start()
    assert "the connection to the engine process broke: TypeError" in death(process).what


def test_a_process_that_dies_without_a_word_is_reported():
    woken = []
    process = EngineProcess((sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    process.on_report = lambda: woken.append(True)
    process.start()
    died = death(process)
    assert woken == [True]
    assert "SIGKILL" in died.what
    assert died.hint == ""


DIES_RUNNING = """
import os, signal
from localspec.engine.__main__ import take_pipes
from localspec.engine.messages import LoadStage
from localspec.engine.server import Server

class Workshop:
    def perform(self, request, send, cancelled):
        send(LoadStage("running on Vulkan0"))
        os.kill(os.getpid(), signal.SIGSEGV)

    def runs_beside(self, request):
        return False

    def rest(self, awaited):
        pass

Server(*take_pipes()).serve(Workshop)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="dies by a signal")
@pytest.mark.parametrize(("backend", "hint"), [("cpu", ""), ("vulkan", "--flash-attn off")])
def test_a_death_by_a_signal_names_the_device_and_a_gpu_build_says_what_to_try(
    tmp_path, monkeypatch, backend, hint
):
    (tmp_path / f"libggml-{backend}.so").write_text("code")
    process = EngineProcess((sys.executable, "-c", DIES_RUNNING))
    process.start()
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    process.send(Detokenize(1, ()))
    died = death(process)
    assert died.what == "the engine process ended unexpectedly (SIGSEGV) while running on Vulkan0"
    assert hint in died.hint
    assert bool(hint) == bool(died.hint)


@pytest.mark.parametrize(
    "said", ["""'["Ready",[]]'""", "'[' * 100_000", """'["Ready",5]'""", "'5'", """'["Nobody",{}]'"""]
)
def test_a_process_whose_words_make_no_sense_is_ended_and_reported(said):
    code = f"import time; print({said}, flush=True); time.sleep(60)"
    process = EngineProcess((sys.executable, "-c", code))
    process.start()
    assert death(process).what


REPACKING_KILLS = """
import os, signal
from localspec.engine.__main__ import take_pipes
from localspec.engine.messages import Answer, LoadPair, Ready
from localspec.engine.server import Server
from localspec.events import Kind, Notice, Origin, Piece, Source

class Workshop:
    def perform(self, request, send, cancelled):
        if isinstance(request, LoadPair):
            self.repacks = not request.died_of
            if self.repacks and "WHERE" == "loading":
                os.kill(os.getpid(), signal.SIGILL)
            send(Notice("the plan"))
            send(Ready("pair", "target", "", 64, 0.1))
        if isinstance(request, Answer):
            if self.repacks or "WHERE" == "always":
                signal.raise_signal(SIGNAL)  # the thread does not live on for a moment
            send(Piece("an answer", Kind.ANSWER, Origin.PLAIN, Source.PLAIN))

    def runs_beside(self, request):
        return BESIDE and isinstance(request, Answer) and hasattr(self, "repacks")

    def rest(self, awaited):
        pass

Server(*take_pipes()).serve(Workshop)
"""


def code_of(where, end="signal.SIGILL", beside=False):
    return REPACKING_KILLS.replace("WHERE", where).replace("SIGNAL", end).replace("BESIDE", str(beside))


def told_by(where, end="signal.SIGILL", *, early=False):
    """What a client hears of a process that dies while it loads or before its first token."""
    command = (sys.executable, "-c", code_of(where, end))
    process = EngineProcess(started=spawn(command)) if early else EngineProcess(command)
    process.start()
    process.send(LoadPair())
    process.send(Answer(1, text="Hello"))
    deadline, reports = time.monotonic() + 30, []
    while not any(isinstance(r, Piece | Died) for r in reports) and time.monotonic() < deadline:
        reports += process.drain()
        time.sleep(0.01)
    process.close()
    return [type(report).__name__ for report in reports]


@pytest.mark.skipif(sys.platform == "win32", reason="dies by a signal")
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("where", ["loading", "answering"])
def test_a_crash_before_the_first_token_is_tried_once_more_without_repacked_weights(where, early):
    assert told_by(where, early=early) == ["Hello", "Notice", "Ready", "Piece"]


@pytest.mark.skipif(sys.platform == "win32", reason="dies by a signal")
@pytest.mark.parametrize(("where", "end"), [("always", "signal.SIGSEGV"), ("answering", "signal.SIGKILL")])
def test_a_second_crash_is_reported_and_a_kill_is_not_tried_again(where, end):
    assert told_by(where, end) == ["Hello", "Notice", "Ready", "Died"]


@pytest.mark.skipif(sys.platform == "win32", reason="dies by a signal")
def test_every_reply_that_a_crash_cut_before_the_first_token_is_asked_again():
    process = EngineProcess((sys.executable, "-c", code_of("answering", beside=True)))
    process.start()
    process.send(LoadPair())
    for serial in (1, 2, 3):
        process.send(Answer(serial, text="Hello"))
    deadline, told = time.monotonic() + 30, []
    while sum(isinstance(report, Piece) for _, report in told) < 3 and time.monotonic() < deadline:
        told += process.drain_numbered()
        time.sleep(0.01)
    process.close()
    assert sorted(serial for serial, report in told if isinstance(report, Piece)) == [1, 2, 3]
    assert not any(isinstance(report, Died) for _, report in told)
