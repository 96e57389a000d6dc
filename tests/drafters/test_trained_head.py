"""A head trained on the embedded target by tools/heads (docs/training-heads.md), through the public interface."""

from pathlib import Path

import pytest

import localspec
from localspec.demo import target_path

HEAD = Path(__file__).parent / "data/demo-eagle3.gguf"
QUESTIONS = ("What is speculative decoding?", "Why is the sky blue?", "What is 12 + 7?")


@pytest.fixture(scope="module")
def session():
    with localspec.load(target=target_path(), draft=HEAD, context_length=512) as session:
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
