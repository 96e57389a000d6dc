"""The engine's loop: what runs beside what, and whose failure is whose. In a child process, which it ends itself."""

import time

import pytest

from localspec.engine import messages
from localspec.engine.client import EngineProcess
from localspec.engine.messages import Cancel, Died, Failure, Generate, LoadPair, Question
from localspec.engine.server import IDLE_SECONDS
from localspec.events import Cycle, Finished, FinishReason, Notice
from localspec.models.registry import named
from tests import processes
from tests.engine.workshop import numbered, program, until

pytestmark = pytest.mark.process

WORKSHOP = """
    replies = 0

    def perform(self, request, send, cancelled):
        match request:
            case Generate(compares=True):
                open("/nowhere/x.gguf")
            case Generate(cycles=True):
                send(Notice(f"answer {request.serial}"))
            case Generate():
                self.replies += 1
                while not cancelled():
                    time.sleep(0.005)
                self.replies -= 1
                send(Notice(f"replied {request.serial}"))
            case Question():
                send(Notice(f"tokens {request.serial}"))

    def runs_beside(self, request):
        return isinstance(request, BESIDE)

    def rest(self, awaited):
        REST
"""


@pytest.fixture
def engine():
    started = []

    def start(rest="pass", beside="Question"):
        process = EngineProcess(program(WORKSHOP, REST=rest, BESIDE=beside))
        process.start()
        started.append(process)
        return process

    yield start
    for process in started:
        process.close()


def test_whoever_asks_ends_the_rest_after_the_last_reply(engine):
    process = engine(rest="while not awaited(): time.sleep(0.005)")
    for serial in (1, 2, 3):
        process.send(Generate(serial, cycles=True))
        assert until(process, Notice)[-1].text == f"answer {serial}"
        time.sleep(0.05)


def test_what_fails_in_a_rest_is_nobodys_failure(engine):
    process = engine(rest="raise RuntimeError('the clock stands still')")
    process.send(Generate(1, cycles=True))
    until(process, Notice)
    process.send(Generate(2, cycles=True))
    assert until(process, Notice) == [Notice("answer 2")]


def test_a_failure_names_its_request_and_a_file_its_path(engine):
    process = engine()
    process.send(messages.Generate(7, compares=True))
    failure = until(process, Failure)[-1]
    assert failure.serial == 7
    assert failure.what == "/nowhere/x.gguf: No such file or directory"


def test_a_cancel_that_comes_late_leaves_the_next_reply_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    process = EngineProcess()
    process.start()
    try:
        process.send(LoadPair(named("demo")))
        until(process, messages.Ready)
        messages_sent = ({"role": "user", "content": "Tell me a story."},)
        for serial, count in ((1, 1), (2, 200)):
            settings = {"max_tokens": count, "temperature": 0}
            process.send(Generate(serial, messages_sent, settings, cycles=True))
            found = until(process, Finished if serial == 1 else Cycle)
        process.send(Cancel(1))
        found += [] if any(isinstance(report, Finished) for report in found) else until(process, Finished)
    finally:
        process.close()
    (reply,) = (report.reply for report in found if isinstance(report, Finished))
    assert reply.finish_reason is not FinishReason.CANCELLED


def test_a_question_is_answered_while_a_reply_is_written(engine):
    process = engine()
    process.send(Generate(1, cycles=True))
    until(process, Notice)  # it listens, and has what it needs
    process.send(Generate(2))
    process.send(Question(3, text="a"))
    assert until(process, Notice) == [Notice("tokens 3")]
    process.send(Cancel(2))
    assert until(process, Notice) == [Notice("replied 2")]


def test_replies_run_side_by_side_and_a_cancel_ends_the_one_that_it_names(engine):
    process = engine(rest="send(Notice('rests'))", beside="Generate")
    process.send(Generate(1, cycles=True))
    until(process, Notice)  # it listens, and has what it needs
    for serial in (2, 3, 4):
        process.send(Generate(serial))
    for serial in (3, 4, 2):
        process.send(Cancel(serial))
        assert numbered(process, Notice) == [(serial, Notice(f"replied {serial}"))]


def test_costs_are_measured_after_the_last_reply_beside_and_never_during_one(engine, tmp_path):
    process = engine(rest=f"open('{tmp_path}/' + str(self.replies), 'w')", beside="Generate")
    process.send(Generate(1))
    process.send(Generate(2))
    time.sleep(2 * IDLE_SECONDS)
    (tmp_path / "0").unlink(missing_ok=True)
    for serial in (1, 2):
        process.send(Cancel(serial))
        until(process, Notice)
    processes.until(lambda: [*tmp_path.iterdir()])
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


def test_a_request_that_cannot_be_written_fails_where_it_is_sent_and_no_other_one(engine):
    process = engine()
    with pytest.raises(TypeError):
        process.send(Generate(1, options={"stop": object()}))
    process.send(Generate(2, cycles=True))
    assert until(process, Notice)[-1] == Notice("answer 2")


def test_a_failure_of_the_listener_is_reported_and_ends_the_process(engine):
    process = engine()
    process.send(Cancel("the first"))
    reports = until(process, Died)
    (failure,) = (report for report in reports if isinstance(report, Failure))
    assert "invalid message" in failure.what
    assert reports[-1].what == "the engine process ended unexpectedly (exit code 0)"


STORES = """
    def unsaved(self):
        return True

    def close(self):
        time.sleep(COPY)  # longer than an end without caches may take
        later(self.write)

    def write(self):
        time.sleep(1.5)
        open("FILE", "w").close()
"""


def storing(path, copy):
    process = EngineProcess(program(STORES, FILE=path, COPY=copy))
    process.start()
    until(process, messages.Hello)
    return process


@pytest.mark.parametrize("copy", [0.0, 1.2])
def test_an_engine_that_stores_caches_ends_alone(tmp_path, copy):
    process = storing(tmp_path / "stored", copy)
    process.close()
    assert not (tmp_path / "stored").exists()
    processes.until((tmp_path / "stored").exists)


def test_an_engine_stores_caches_when_its_client_is_killed(tmp_path):
    process = storing(tmp_path / "stored", 0.0)
    process._connection.process.stdin.close()
    processes.until((tmp_path / "stored").exists)


def test_the_next_engine_waits_for_the_memory_of_one_that_stores_caches(tmp_path):
    process = storing(tmp_path / "stored", 1.2)
    before = process._connection
    process._command = program(WORKSHOP, REST="pass", BESIDE="()")
    process.start()
    process.send(Generate(1, cycles=True))
    until(process, Notice)
    assert before._silent.is_set()
    assert before.process.poll() is None
    processes.until((tmp_path / "stored").exists)
    process.close()
