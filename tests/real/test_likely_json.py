"""JSON within a schema is judged by the model itself: how likely are its tokens without the grammar?

LOCALSPEC_TEST_GEMMA3 and LOCALSPEC_TEST_CODER may name GGUFs of Gemma 3 270M and Qwen2.5-Coder-1.5B-Instruct.
"""

import json
import os

import pytest

import localspec
from tests.structure.judged_schemas import QUESTIONS, judged

pytestmark = pytest.mark.nightly
FILES = {name: os.environ.get(f"LOCALSPEC_TEST_{name.upper()}", "") for name in ("gemma3", "coder")}
FRUITS = next(iter(QUESTIONS))
# The mean log-probability of a token may be lower than without a grammar by this much.
ROOM = {"smollm2": 0.9, "gemma3": 2.0, "coder": 0.9}
CLOSED = {"smollm2": 4, "gemma3": 4, "coder": 0}  # by the limit of 400 tokens, of 15 replies


@pytest.fixture(scope="module", params=ROOM)
def model(request, home):
    name = request.param
    file = request.getfixturevalue("smollm2") if name == "smollm2" else FILES[name]
    if not file:
        pytest.skip(f"LOCALSPEC_TEST_{name.upper()} names no file")
    with localspec.load(target=file, draft="lookup", context_length=2048, threads=1) as session:
        ways = {
            "free": {"restricted": False, "max_tokens": 60},
            "chosen": {},
            "compact": {"compact_json": True},
        }
        yield name, {way: [judged(session, q, **given) for q in QUESTIONS] for way, given in ways.items()}


def mean(found):
    return sum(likelihood for _, likelihood, _ in found) / len(found)


def test_replies_end_by_themselves_or_are_closed_by_the_limit(model):
    """Small models repeat themselves inside texts, and nest without end, but write no white space without end."""
    name, found = model
    closed = [reply.text for reply, _, ended in found["chosen"] if not ended]
    assert len(closed) <= CLOSED[name]
    for reply, *_ in found["chosen"]:
        assert json.loads(reply.text) is not None  # those that end by themselves are valid as well: `judged`
        assert "\n\n" not in reply.text


def test_the_chosen_layout_is_far_likelier_than_compact_json_and_near_the_models_own_words(model):
    name, found = model
    assert mean(found["chosen"]) > mean(found["compact"]) + 0.2
    assert mean(found["chosen"]) > mean(found["free"]) - ROOM[name]


def test_a_real_model_lists_fruits(model):
    if model[0] != "coder":
        pytest.skip("the small models know no fruits")
    reply, *_ = model[1]["chosen"][list(QUESTIONS).index(FRUITS)]
    assert {fruit.lower() for fruit in json.loads(reply.text)} == {"apple", "banana", "cherry"}
