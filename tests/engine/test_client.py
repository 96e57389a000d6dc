"""The client of an engine process: what the process gets, and its report when it ends."""

import gc
import json
import sys
import time

import pytest

from localspec.engine import client
from localspec.engine.client import EngineProcess, EngineSession
from localspec.engine.messages import (
    Cancel,
    ComparisonStopped,
    Died,
    Failure,
    Generate,
    Hello,
    LoadPair,
    Question,
    Ready,
    Rendered,
    Typed,
    encode,
    read_messages,
)
from localspec.engine.spawn import spawn
from localspec.errors import EngineDied
from localspec.events import Piece
from localspec.gguf.facts import first_known_crash
from localspec.gguf.header import header_at
from localspec.machine.children import SECRET_VARIABLES
from localspec.models.names import of_files
from localspec.models.registry import named
from tests.engine.workshop import numbered, program, until
from tests.gguf.mutations import by_meaning, taken_apart

pytestmark = pytest.mark.process

dies = pytest.mark.skipif(sys.platform == "win32", reason="dies by a signal")


def death(process):
    """What the client reports last."""
    *_, last = until(process, Died)
    process.close()
    return last


def test_a_mistake_of_our_own_in_a_report_ends_the_process_instead_of_the_answers(monkeypatch):
    monkeypatch.setattr(client.messages, "read_messages", lambda stream: [None])
    process = EngineProcess()
    process.start()
    assert "the connection to the engine process broke: TypeError" in death(process).what


DIES_RUNNING = """
    def perform(self, request, send, cancelled):
        send(LoadStage("running on Vulkan0"))
        os.kill(os.getpid(), signal.SIGSEGV)
"""


@dies
@pytest.mark.parametrize(("backend", "hint"), [("cpu", ""), ("vulkan", "--flash-attn off")])
def test_a_death_by_a_signal_names_the_device_and_a_gpu_build_says_what_to_try(
    tmp_path, monkeypatch, backend, hint
):
    (tmp_path / f"libggml-{backend}.so").write_text("code")
    process = EngineProcess(program(DIES_RUNNING))
    process.start()
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    process.send(Question(1, tokens=()))
    died = death(process)
    assert died.what == "the engine process ended unexpectedly (SIGSEGV) while running on Vulkan0"
    assert hint in died.hint
    assert bool(hint) == bool(died.hint)


def test_a_process_whose_words_make_no_sense_is_ended_and_reported():
    code = "import time; print('[' * 100_000, flush=True); time.sleep(60)"
    process = EngineProcess((sys.executable, "-c", code))
    process.start()
    assert death(process).what


REPACKING_KILLS = """
    def perform(self, request, send, cancelled):
        if isinstance(request, LoadPair):
            self.repacks = not request.died_of
            if self.repacks and "WHERE" == "loading":
                os.kill(os.getpid(), signal.SIGILL)
            send(Notice("the plan"))
            send(Ready("pair", "target", "", 64, 0.1))
        if isinstance(request, Generate):
            if self.repacks or "WHERE" == "always":
                signal.raise_signal(SIGNAL)  # the thread does not live on for a moment
            send(Piece("an answer", Kind.ANSWER, Origin.PLAIN, Source.PLAIN))

    def runs_beside(self, request):
        return BESIDE and isinstance(request, Generate) and hasattr(self, "repacks")
"""


def reports_of(where, end="signal.SIGILL", *, early=False):
    """What a client hears of a process that dies while it loads or before its first token."""
    command = program(REPACKING_KILLS, WHERE=where, SIGNAL=end, BESIDE=False)
    process = EngineProcess(started=spawn(command)) if early else EngineProcess(command)
    process.start()
    process.send(LoadPair(named("demo")))
    process.send(Generate(1, continued="Hello"))
    reports = until(process, Piece, Died)
    process.close()
    return [type(report).__name__ for report in reports]


@dies
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("where", ["loading", "answering"])
def test_a_crash_before_the_first_token_is_tried_once_more_without_repacked_weights(where, early):
    assert reports_of(where, early=early) == ["Hello", "Notice", "Ready", "Piece"]


@dies
@pytest.mark.parametrize(("where", "end"), [("always", "signal.SIGSEGV"), ("answering", "signal.SIGKILL")])
def test_a_second_crash_is_reported_and_a_kill_is_not_tried_again(where, end):
    assert reports_of(where, end) == ["Hello", "Notice", "Ready", "Died"]


@dies
def test_every_reply_that_a_crash_cut_before_the_first_token_is_asked_again():
    process = EngineProcess(program(REPACKING_KILLS, WHERE="answering", SIGNAL="signal.SIGILL", BESIDE=True))
    process.start()
    process.send(LoadPair(named("demo")))
    for serial in (1, 2, 3):
        process.send(Generate(serial, continued="Hello"))
    seen = numbered(process, Piece, Died, count=3)
    process.close()
    assert sorted(serial for serial, report in seen if isinstance(report, Piece)) == [1, 2, 3]
    assert not any(isinstance(report, Died) for _, report in seen)


ANSWERS = """
    def perform(self, request, send, cancelled):
        if isinstance(request, LoadPair):
            send(Notice("the plan"))
            send(Ready("pair", "target", "", 64, 0.1))
        elif isinstance(request, Generate) and request.compares:
            send(ComparisonStopped())
        elif isinstance(request, Generate):
            os.kill(os.getpid(), signal.SIGILL)
        elif isinstance(request, Typed):
            pass
        elif request.serial == 2:
            raise ValueError("a failure")
        else:
            with open("LOG", "a") as log:
                log.write(f"{request.serial} ")
            send(Rendered("text"))
"""


@dies
def test_only_what_has_no_answer_yet_is_kept_and_sent_again(tmp_path):
    """After each kind of request, the list of open ones is what it was."""
    log = tmp_path / "log"
    process = EngineProcess(program(ANSWERS, LOG=log))
    process.start()
    process.send(LoadPair(named("demo")))
    until(process, Ready)
    connection = process._connection
    before = list(connection.unanswered), set(connection.reported)
    asked = [
        Question(1, tokens=(1,)),
        Question(2, tokens=(2,)),
        Question(3, text="text"),
        Question(4),
        Generate(5, compares=True),
    ]
    for request in asked:
        process.send(request)
        until(process, Rendered, Failure, ComparisonStopped)
        process.send(Cancel(request.serial))
        process.send(Typed())
        assert (connection.unanswered, connection.reported) == before
    process.send(Generate(6, continued="Hello"))
    until(process, Died)
    process.close()
    assert log.read_text().split() == ["1", "3", "4"]


def test_no_line_and_no_report_stays_until_the_next_one(tmp_path):
    """The report of a text of 1 MB has up to 40 MB."""
    gone = []

    class Line(bytes):
        def __del__(self):
            gone.append(self)

    lines = (Line(encode(Hello())) for _ in range(3))
    for count, _ in enumerate(read_messages(lines), 1):
        assert len(gone) == count
    process = EngineProcess(program(ANSWERS, LOG=tmp_path / "log"))
    process.start()
    process.send(Question(1, text="text"))
    until(process, Rendered)
    for _ in range(1000):  # the thread that reads pipes may still be busy with the report
        if not any(isinstance(each, Rendered) for each in gc.get_objects()):
            break
        time.sleep(0.01)
    else:
        pytest.fail("the report stays")
    process.close()


def test_the_engine_gets_neither_keys_nor_tokens(monkeypatch):
    for name in (*SECRET_VARIABLES, "LOCALSPEC_SEED"):
        monkeypatch.setenv(name, "1234")
    child = spawn([sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"])
    out, _ = child.communicate(timeout=300)
    assert [name for name, value in json.loads(out).items() if value == "1234"] == ["LOCALSPEC_SEED"]


@pytest.fixture
def raw(tiny_gguf):
    return taken_apart(tiny_gguf(vocab_size=400, layers=1))


# The engine process with a header check that lets through what llama.cpp asserts on.
BLIND = """
from localspec.engine.server import main
from localspec.gguf import matching
matching.first_known_crash = lambda header: None
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="llama.cpp ends otherwise there")
def test_an_abort_of_llama_cpp_is_a_sentence_of_the_client(raw, tmp_path, home_of_processes):
    path = tmp_path / "model.gguf"
    broken = next(m for m in by_meaning(raw) if "layer_norm_rms_epsilon" in m.note and "nan" in m.note)
    path.write_bytes(broken.written())
    assert "nan" in first_known_crash(header_at(path))
    with (
        EngineSession(EngineProcess((sys.executable, "-c", BLIND))) as session,
        pytest.raises(EngineDied) as caught,
    ):
        session.load(LoadPair(of_files(path).alone, {"threads": 1}), lambda stage: None)
    assert "\n" not in str(caught.value)
