"""The client of an engine process: what the process gets, and its report when it ends."""

import gc
import json
import sys
import time

import pytest

from localspec.engine import client
from localspec.engine.client import EngineProcess, EngineSession
from localspec.engine.messages import (
    Died,
    Hello,
    LoadPair,
    Question,
    Rendered,
    encode,
    read_messages,
)
from localspec.engine.spawn import spawn
from localspec.errors import EngineDied
from localspec.gguf.facts import first_known_crash
from localspec.gguf.header import header_at
from localspec.machine.children import SECRET_VARIABLES
from localspec.models.names import of_file
from tests.engine.workshop import program, until
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


CUTS_ITS_FILE = """
    def perform(self, request, send, cancelled):
        import mmap, tempfile
        with tempfile.TemporaryFile() as file:
            file.truncate(1 << 20)
            with mmap.mmap(file.fileno(), 0) as mapped:
                file.truncate(0)
                mapped[1 << 19]
"""


@dies
def test_a_file_that_is_cut_while_it_is_open_is_named_as_the_cause_and_no_driver_is(tmp_path, monkeypatch):
    (tmp_path / "libggml-vulkan.so").write_text("code")
    process = EngineProcess(program(CUTS_ITS_FILE))
    process.start()
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    process.send(Question(1, tokens=()))
    died = death(process)
    assert died.what == "the engine process ended unexpectedly (SIGBUS)"
    assert died.hint == "a model file may have been cut while it was open, or its disk may have failed"


def test_a_process_whose_words_make_no_sense_is_ended_and_reported():
    code = "import time; print('[' * 100_000, flush=True); time.sleep(60)"
    process = EngineProcess((sys.executable, "-c", code))
    process.start()
    assert death(process).what


ANSWERS = """
    def perform(self, request, send, cancelled):
        send(Rendered("text"))
"""


def test_no_line_and_no_report_stays_until_the_next_one():
    """The report of a text of 1 MB has up to 40 MB."""
    gone = []

    class Line(bytes):
        def __del__(self):
            gone.append(self)

    lines = (Line(encode(Hello())) for _ in range(3))
    for count, _ in enumerate(read_messages(lines), 1):
        assert len(gone) == count
    process = EngineProcess(program(ANSWERS))
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
        session.load(LoadPair(of_file(path).alone, {"threads": 1}), lambda stage: None)
    assert "\n" not in str(caught.value)
