"""Reasoning that clients leave out comes back where the template has a place for it, so that a prompt goes on."""

import pytest

from localspec.chat.messages import Message, Reasoning
from localspec.events import Finished, FinishReason, Reply, Started, Stats
from tests.structure.toys import scripted_session

KEEPS = (
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }};"
    "{% else %}{{ m.content }}|{% endif %}{% endfor %}"
)
DROPS = KEEPS.replace("m.reasoning_content", "m.nothing")
REPLY = "<think>two and two</think>four"
QUESTION, NEXT = {"role": "user", "content": "sum?"}, {"role": "user", "content": "sure?"}


def started(session, messages):
    return next(event for event in session.stream(messages) if isinstance(event, Started))


@pytest.mark.parametrize("answer", ["four", " four\n"])
def test_a_conversation_that_comes_back_without_reasoning_goes_on_where_it_ended(answer):
    session = scripted_session(REPLY, KEEPS)
    assert session.run([QUESTION]).reasoning == "two and two"
    back = [QUESTION, {"role": "assistant", "content": "four"}, NEXT]
    assert session.prompt_of(back).text == f"sum?|{REPLY};sure?|"
    assert session.count_tokens(back) == len(f"sum?|{REPLY};sure?|")
    assert started(session, back).reused_tokens == len(f"sum?|{REPLY}")
    assert all(not message.reasoning for message in session.messages)
    with session.another() as other:
        assert other.prompt_of(back).text == session.prompt_of(back).text


def test_a_text_continues_the_same_way():
    session = scripted_session(REPLY, KEEPS)
    session.run("sum?")
    events = list(session.stream("sure?"))
    assert events[0].reused_tokens == len(f"sum?|{REPLY}")
    assert isinstance(events[-1], Finished)


def test_a_template_without_a_place_for_it_shows_none():
    session = scripted_session(REPLY, DROPS)
    session.run([QUESTION])
    assert (
        session.prompt_of([QUESTION, {"role": "assistant", "content": "four"}, NEXT]).text
        == "sum?|four;sure?|"
    )


def test_what_a_client_sends_itself_counts():
    session = scripted_session(REPLY, KEEPS)
    session.run([QUESTION])
    own = {"role": "assistant", "content": "four", "reasoning_content": "mine"}
    assert session.prompt_of([QUESTION, own, NEXT]).text == "sum?|<think>mine</think>four;sure?|"


def test_an_equal_answer_to_another_question_has_none():
    session = scripted_session(REPLY, KEEPS)
    session.run([QUESTION])
    other = [{"role": "user", "content": "days?"}, {"role": "assistant", "content": "four"}, NEXT]
    assert session.prompt_of(other).text == "days?|four;sure?|"


def test_a_thousand_replies_are_remembered():
    kept = Reasoning()
    for n in range(1001):
        reply = Reply("yes", f"thought {n}", (), 0, FinishReason.STOP, Stats())
        kept.keep([Message("user", str(n))], reply)
    told = [
        kept.put_back([Message("user", str(n)), Message("assistant", "yes")])[1].reasoning
        for n in (0, 1, 1000)
    ]
    assert told == ["", "thought 1", "thought 1000"]
