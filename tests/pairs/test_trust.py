"""Files that were never loaded here: what would abort llama.cpp ends as a sentence."""

import os
import random
import select
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from localspec.errors import BadModelFile, LocalspecError
from localspec.gguf.facts import first_hazard
from localspec.gguf.header import header_at
from localspec.health import trial
from localspec.health.build import installed_build
from localspec.pairs import stamps, trust
from localspec.pairs.trust import ensure_loadable
from tests.gguf.mutations import by_meaning, header_of_bytes, taken_apart


@pytest.fixture
def raw(tiny_gguf):
    return taken_apart(tiny_gguf(vocab_size=400, layers=1))


def test_a_sound_file_is_tried_once(tiny_gguf, monkeypatch):
    path = tiny_gguf(vocab_size=400, layers=1)
    ensure_loadable(path)
    assert stamps.read(path).sha256 == stamps.sha256_of(path)
    monkeypatch.setattr(trust, "_decode", lambda *_: pytest.fail("tried again"))
    ensure_loadable(path)


def test_a_file_is_tried_again_with_another_build(tiny_gguf, monkeypatch, tmp_path):
    tried = []
    monkeypatch.setattr(trust, "_decode", lambda *_: tried.append(installed_build()))
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    for backend in ("cpu", "cuda", "cuda"):
        library = tmp_path / f"libggml-{backend}.so"
        if not library.exists():
            library.write_text("code")
        ensure_loadable(tiny_gguf(vocab_size=400, layers=1))
    assert len(tried) == len(set(tried)) == 2


def test_a_file_that_changed_is_tried_again(tiny_gguf, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_gguf(vocab_size=400, layers=1).read_bytes())
    ensure_loadable(path)
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(BadModelFile):
        ensure_loadable(path)


def test_a_hash_that_is_known_is_not_computed_again(tiny_gguf, monkeypatch):
    path = tiny_gguf(vocab_size=400, layers=1)
    stamps.write(path, "0" * 64)
    monkeypatch.setattr(stamps, "sha256_of", lambda *_: pytest.fail("hashed again"))
    ensure_loadable(path)


def test_an_abort_in_the_child_is_a_sentence_here(raw, tmp_path, monkeypatch):
    """An epsilon that llama.cpp asserts on, let through to it on purpose."""
    path = tmp_path / "model.gguf"
    broken = next(m for m in by_meaning(raw) if "layer_norm_rms_epsilon" in m.note and "nan" in m.note)
    path.write_bytes(broken.written())
    assert "nan" in first_hazard(header_at(path))
    monkeypatch.setattr(trust, "first_hazard", lambda _: None)
    with pytest.raises(BadModelFile, match=r"gives up on model\.gguf") as caught:
        ensure_loadable(path)
    assert "\n" not in str(caught.value)
    assert stamps.read(path) is None


def test_a_child_that_hangs_is_ended(tiny_gguf, monkeypatch):
    monkeypatch.setattr(trial, "_SECONDS", 0.01)
    with pytest.raises(BadModelFile, match="did not decode a token"):
        ensure_loadable(tiny_gguf(vocab_size=400, layers=1))


def test_nobody_waits_for_the_hash_of_a_file_that_failed(tiny_gguf, monkeypatch):
    hashed = []

    def hash_for_ten_seconds(_, on_bytes):
        for _ in range(1000):
            time.sleep(0.01)
            on_bytes(1)
        hashed.append(True)

    def fail(*_):
        raise BadModelFile("it does not decode")

    monkeypatch.setattr(stamps, "sha256_of", hash_for_ten_seconds)
    monkeypatch.setattr(trust, "_decode", fail)
    with pytest.raises(BadModelFile, match="does not decode"):
        ensure_loadable(tiny_gguf(vocab_size=400, layers=1))
    assert hashed == []


TRY = """
import sys
from pathlib import Path
from localspec.pairs import trust
trust._decode(Path(sys.argv[1]), {"gpu_layers": 0}, (), None)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a file that never comes to its end is a FIFO")
def test_a_trial_does_not_survive_whoever_asked_for_it(tmp_path):
    endless = tmp_path / "endless.gguf"
    os.mkfifo(endless)
    asker = subprocess.Popen([sys.executable, "-c", TRY, str(endless)])
    fed = open_once_read(endless)
    try:
        asker.kill()
        asker.wait()
        lost = select.poll()
        lost.register(fed, select.POLLERR | select.POLLHUP)
        assert lost.poll(10_000), "the child still reads"
    finally:
        os.close(fed)


def open_once_read(fifo):
    deadline = time.monotonic() + 30
    while True:
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody reads yet
            assert time.monotonic() < deadline, "the child does not start"
            time.sleep(0.02)


@pytest.mark.parametrize(
    ("part", "what", "says"),
    [
        ("block_count", " 0", "0 layers"),
        ("block_count", "65536", "65536 layers"),
        ("layer_norm_rms_epsilon", "nan", "nan as llama.attention.layer_norm_rms_epsilon"),
        ("layer_norm_rms_epsilon", "-1.0", "-1.0 as llama.attention.layer_norm_rms_epsilon"),
        ("ffn_down", "of type 25", "stores the weight blk.0.ffn_down.weight as I16"),
        ("tokenizer.ggml.tokens", "all the same", "same token twice"),
    ],
)
def test_known_hazards_are_seen_in_the_header(raw, part, what, says):
    mutation = next(m for m in by_meaning(raw) if part in m.note and m.note.endswith(what))
    assert says in first_hazard(header_of_bytes(mutation.written()))


def test_hostile_files_end_in_sentences(raw, tmp_path):
    """A few through the whole trial; benchmarks/hostile_files.py sends 500 through the command line."""
    mutations = list(by_meaning(raw))
    path = tmp_path / "model.gguf"
    for mutation in random.Random(3).sample(mutations, 12):
        path.write_bytes(mutation.written())
        assert "\n" not in outcome(path), mutation.note


def outcome(path) -> str:
    try:
        ensure_loadable(path)
    except LocalspecError as error:
        return str(error)
    return ""


def test_the_reader_or_the_hazards_stop_nearly_all_that_is_bad_before_a_child_starts(raw):
    stopped = 0
    mutations = list(by_meaning(raw))
    for mutation in mutations:
        try:
            stopped += first_hazard(header_of_bytes(mutation.written())) is not None
        except BadModelFile:
            stopped += 1
    assert stopped > len(mutations) / 2


def test_untouched_files_have_no_hazard(raw):
    assert first_hazard(header_of_bytes(raw.written())) is None
    assert first_hazard(header_of_bytes(replace(raw, version=2).written())) is None
