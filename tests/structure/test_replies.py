"""Replies held to a grammar: complete or said to be cut, after the thinking, the same with and without drafts."""

import json
import re

import jsonschema
import pytest

import localspec
from benchmarks.structure_schemas import judged
from localspec.errors import BadSetting
from localspec.events import Cycle, FinishReason, Kind, Notice, Piece
from localspec.structure.constraint import GrammarTokens
from localspec.structure.grammar import json_grammar
from tests.structure.toys import TEMPLATE, Characters, scripted_session, session_of

GREEDY = {"temperature": 0}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
}
CUT = "the reply was cut, so it does not fulfil the JSON schema"
THINKS = TEMPLATE + "{# <think> </think> #}"


def notices(events):
    return [event.text for event in events if isinstance(event, Notice)]


def test_plain_and_speculative_replies_are_the_same_and_valid():
    for seed in range(15):
        fast = session_of(seed).run("a person", json_schema=PERSON, max_tokens=300, **GREEDY)
        slow = session_of(seed).run("a person", json_schema=PERSON, max_tokens=300, speculate=False, **GREEDY)
        assert fast.tokens == slow.tokens
        jsonschema.validate(json.loads(fast.text), PERSON)
        assert fast.stats.from_grammar >= 8
        assert slow.stats.from_grammar == slow.stats.drafted == 0


@pytest.mark.parametrize("rule", ["block", "coupled"])
def test_sampled_replies_are_valid_under_every_rule(rule):
    for seed in range(5):
        reply = session_of(seed).run("a person", json_schema=PERSON, max_tokens=300, seed=seed, rule=rule)
        jsonschema.validate(json.loads(reply.text), PERSON)


def test_every_length_is_either_a_valid_beginning_that_says_so_or_complete():
    tokens = GrammarTokens(Characters())
    whole = session_of().run("a person", json_schema=PERSON, **GREEDY)
    for count in range(1, len(whole.tokens) + 1):
        events = list(session_of().stream("a person", json_schema=PERSON, max_tokens=count, **GREEDY))
        reply = events[-1].reply
        assert reply.tokens == whole.tokens[:count]
        assert tokens.matcher(json_grammar(PERSON)).try_consume_tokens(list(reply.tokens)) >= min(
            count, len(whole.text)
        )
        complete = reply.text == whole.text
        assert (reply.finish_reason is FinishReason.STOP) == complete
        assert (CUT in notices(events)) != complete


def test_a_cancelled_reply_says_that_it_is_cut():
    session = session_of()
    events = []
    for event in session.stream("a person", json_schema=PERSON, **GREEDY):
        events.append(event)
        if isinstance(event, Cycle):
            session.cancel()
    assert events[-1].reply.finish_reason is FinishReason.CANCELLED
    assert CUT in notices(events)


def test_a_raw_text_is_continued_within_a_grammar():
    reply = session_of().complete("the date: ", regex=r"\d{4}-\d{2}-\d{2}", **GREEDY)
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", reply.text)


def test_penalties_and_finite_biases_work_within_a_grammar():
    options = {"presence_penalty": -1.5, "frequency_penalty": 0.5, "logit_bias": {20: 3.0}, "seed": 2}
    reply = session_of().run("a person", json_schema=PERSON, **options)
    jsonschema.validate(json.loads(reply.text), PERSON)
    with pytest.raises(BadSetting, match="logit_bias"):
        session_of().run("a person", json_schema=PERSON, logit_bias={20: -float("inf")})


def test_one_thing_at_a_time():
    with pytest.raises(BadSetting, match="json_schema and regex are both given"):
        session_of().run("a person", json_schema=PERSON, regex="a")


@pytest.mark.parametrize(
    ("written", "reasoning"),
    [
        ('<think>a "person"? {"na</think>\n\n{"name":"Bo","age":7}', 'a "person"? {"na'),
        ('<think>\nhm\n</think>{"name":"Bo","age":7}', "hm\n"),
        ('{"name":"Bo","age":7}', ""),
    ],
)
def test_the_grammar_begins_after_the_thinking(written, reasoning):
    for options in ({}, {"speculate": False}):
        reply = scripted_session(written, THINKS).run("who?", json_schema=PERSON, **options)
        assert (reply.reasoning, reply.text) == (reasoning, '{"name":"Bo","age":7}')
        assert reply.finish_reason is FinishReason.STOP


def test_thinking_that_the_prompt_has_opened_must_be_closed():
    template = THINKS + "{% if add_generation_prompt %}<think>{% endif %}"
    reply = scripted_session('<think>hm</think>{"name":"Bo","age":7}', template).run(
        "who?", json_schema=PERSON
    )
    assert (reply.reasoning, reply.text) == ("hm", '{"name":"Bo","age":7}')


def test_without_thinking_the_grammar_begins_at_once():
    reply = scripted_session("<think>hm</think>", THINKS).run(
        "who?", json_schema=PERSON, think=False, max_tokens=100
    )
    assert reply.reasoning == ""
    assert reply.text.startswith('{"name":"')


def test_pieces_are_the_text():
    events = list(session_of().stream("a person", json_schema=PERSON, **GREEDY))
    pieces = [event.text for event in events if isinstance(event, Piece) and event.kind is Kind.ANSWER]
    assert "".join(pieces) == events[-1].reply.text


@pytest.fixture(scope="module")
def demo_session():
    with localspec.load(threads=1) as session:
        yield session


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_random_schemas_on_the_demo_pair(demo_session, temperature):
    found, _, _ = judged(demo_session, temperature, 12, 200)
    assert set(found) <= {"valid", "cut"}
    assert found["valid"] >= 9
