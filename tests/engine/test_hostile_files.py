"""Files that end llama.cpp end the engine process, and its client in a sentence."""

import random
import sys

import pytest

from localspec.engine.client import EngineProcess, EngineSession
from localspec.errors import EngineDied, LocalspecError
from localspec.gguf.facts import first_hazard
from localspec.gguf.header import header_at
from tests.gguf.mutations import by_meaning, taken_apart


@pytest.fixture
def raw(tiny_gguf):
    return taken_apart(tiny_gguf(vocab_size=400, layers=1))


def load(path):
    with EngineSession() as session:
        session.load(lambda stage: None, target=str(path), draft="lookup", threads=1)
        *_, last = session.stream_complete("hello", max_tokens=2)
        return last


def test_damaged_files_end_in_sentences(raw, tmp_path, home_of_processes):
    """A few of all mutations by meaning."""
    path = tmp_path / "model.gguf"
    for mutation in random.Random(3).sample(list(by_meaning(raw)), 8):
        path.write_bytes(mutation.written())
        assert "\n" not in outcome(path), mutation.note


def outcome(path):
    try:
        load(path)
    except LocalspecError as error:
        return str(error)
    return ""


# The engine process with a header check that lets through what llama.cpp asserts on.
BLIND = """
from localspec.engine.__main__ import main
from localspec.gguf import matching
matching.first_hazard = lambda header: None
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="llama.cpp ends otherwise there")
def test_an_abort_of_llama_cpp_is_a_sentence_of_the_client(raw, tmp_path, home_of_processes):
    path = tmp_path / "model.gguf"
    broken = next(m for m in by_meaning(raw) if "layer_norm_rms_epsilon" in m.note and "nan" in m.note)
    path.write_bytes(broken.written())
    assert "nan" in first_hazard(header_at(path))
    with (
        EngineSession(EngineProcess((sys.executable, "-c", BLIND))) as session,
        pytest.raises(EngineDied) as caught,
    ):
        session.load(lambda stage: None, target=str(path), draft="lookup", threads=1)
    assert "\n" not in str(caught.value)
