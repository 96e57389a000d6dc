"""Heads that tools/heads trained on the embedded target, through the public interface."""

from pathlib import Path

import pytest

import localspec
from localspec.caches.writer import finish
from localspec.demo import target_path
from tools.heads import mimo2

DATA = Path(__file__).parent / "data"
QUESTIONS = ("What is speculative decoding?", "Why is the sky blue?", "What is 12 + 7?")


def in_mimo2(path):
    """The embedded target in an architecture that has prediction layers."""
    return mimo2.write_target(path, target_path())


@pytest.fixture(scope="module", params=["eagle3", "mtp"])
def session(request, tmp_path_factory):
    files = {"target": target_path(), "draft": DATA / f"demo-{request.param}.gguf"}
    if request.param == "mtp":
        files["target"] = in_mimo2(tmp_path_factory.mktemp("mimo2") / "target.gguf")
    with localspec.load(**files, context_length=512) as session:
        yield session


def replies(session, depth):
    found = []
    for question in QUESTIONS:
        session.reset()
        found.append(session.run(question, depth=depth, temperature=0.0, max_tokens=48))
    return found


def test_a_trained_head_is_often_right_and_changes_no_text(session):
    plain, drafted = replies(session, 0), replies(session, 3)
    assert [reply.text for reply in drafted] == [reply.text for reply in plain]
    emitted = sum(reply.stats.emitted for reply in drafted)
    passes = sum(reply.stats.cycles for reply in drafted)
    assert emitted / passes > 1.8


def test_a_head_comes_back_from_the_disk_with_its_text(tmp_path, monkeypatch):
    """Without its rows of the text it would be right less often."""
    monkeypatch.setattr("localspec.options.texts_dir", lambda settings: tmp_path)
    monkeypatch.setattr("localspec.caches.store.LEFT_FREE", 0)
    monkeypatch.setattr("localspec.llama.stored_texts.LEAST_SECONDS", 0.0)
    monkeypatch.setattr("localspec.llama.stored_texts._ASSUMED", 1e15)
    files = {"target": target_path(), "draft": DATA / "demo-eagle3.gguf"}
    question = "A small model guesses the next tokens. " * 80 + QUESTIONS[0]
    found = []
    for _ in range(2):
        with localspec.load(**files, context_length=2048, threads=1) as session:
            found.append(session.run(question, depth=3, temperature=0.0, max_tokens=48))
        finish()
    first, again = found
    assert again.stats.restored_tokens > 512
    assert again.text == first.text
    assert again.stats.cycles == first.stats.cycles
