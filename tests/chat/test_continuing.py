"""Conversations that go on from somewhere: resumed, edited, answered again, continued; and all of it for asyncio."""

import asyncio

import pytest

from localspec.chat.messages import Message
from localspec.chat.prompt import encode
from localspec.chat.template import ChatTemplate
from localspec.errors import BadSetting
from localspec.events import Finished
from tests.chat.carried import TEMPLATES
from tests.chat.letters import GREEDY, session_of
from tests.chat.toys import ToyVocabulary

SHORT = {**GREEDY, "max_tokens": 8}
TOY = ToyVocabulary()


def test_a_last_message_of_the_assistant_is_continued():
    session, target, *_ = session_of(end=False)
    session.run([{"role": "user", "content": "go on"}, {"role": "assistant", "content": "abc"}], **SHORT)
    assert session.prompt_of(session.messages[:-1]).text == "<ugo on><a"
    assert "".join(map(str, target.tokens)).startswith("".join(map(str, letters("<ugo on><aabc"))))


def letters(text):
    from tests.chat.letters import Letters

    return Letters(False).tokenize(text, parse_special=True)


def test_the_conversation_has_the_beginning_and_what_was_added_as_one_message():
    session, *_ = session_of(end=False)
    reply = session.run([Message("user", "go"), Message("assistant", "abc")], **SHORT)
    assert session.messages == (Message("user", "go"), Message("assistant", "abc" + reply.text))


def test_a_reply_that_was_cut_goes_on_as_if_it_had_not_been():
    whole, *_ = session_of(end=False)
    expected = whole.run("tell me", **GREEDY, max_tokens=16)
    session, *_ = session_of(end=False)
    session.run("tell me", **SHORT)
    session.run(session.messages, **SHORT)
    assert session.messages[-1].content == expected.text


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_every_template_ends_the_prompt_where_the_reply_began(name):
    template = ChatTemplate(TEMPLATES[name], bos_text="<s>", eos_text="</s>")
    messages = (Message("user", "Count."), Message("assistant", "One, end of <two"))
    prompt = encode(TOY, template, messages)
    assert prompt.text.endswith("One, end of <two")
    assert prompt.text.count("Count.") == 1


def test_a_resumed_conversation_goes_on():
    session, *_ = session_of(end=False)
    session.resume([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    session.run("c", **SHORT)
    assert [message.content for message in session.messages[:3]] == ["a", "b", "c"]
    assert len(session.messages) == 4


def test_regenerating_answers_the_last_question_again():
    session, *_ = session_of(end=False)
    first = session.run("tell me", **SHORT)
    again = session.regenerate(**SHORT)
    assert again.text == first.text
    assert len(session.messages) == 2
    assert session.regenerate(seed=1, temperature=5.0, max_tokens=8).text != first.text


def test_an_edited_question_drops_what_followed_it():
    session, *_ = session_of(end=False)
    session.run("first", **SHORT)
    session.run("second", **SHORT)
    session.edit("third", **SHORT)
    assert [m.content for m in session.messages if m.role == "user"] == ["first", "third"]
    session.edit("other", message=0, **SHORT)
    assert [m.content for m in session.messages if m.role == "user"] == ["other"]
    with pytest.raises(BadSetting, match="is not a user message"):
        session.edit("x", message=1)


def test_without_a_question_there_is_nothing_to_answer_again():
    with pytest.raises(BadSetting, match="nothing was asked"):
        session_of()[0].regenerate()


def test_tokens_are_counted_as_a_reply_would_read_them():
    session, *_ = session_of(end=False)
    assert session.count_tokens("abc") == len("<uabc><a")
    session.run("tell me", **SHORT)
    counted = session.count_tokens("more")
    assert next(session.stream("more", **SHORT)).prompt_tokens == counted


async def test_asyncio_gets_the_same_reply():
    expected = session_of(end=False)[0].run("tell me", **SHORT)
    session, *_ = session_of(end=False)
    assert (await session.arun("tell me", **SHORT)).tokens == expected.tokens
    events = [event async for event in session.astream(session.messages[:1], **SHORT)]
    assert isinstance(events[-1], Finished)


async def test_a_cancelled_task_stops_the_reply_and_frees_the_session():
    session, *_ = session_of(end=False, capacity=100_000)
    stream = session.astream("tell me", **GREEDY)
    async for event in stream:
        if not isinstance(event, Finished):
            break
    await stream.aclose()
    assert (await session.arun("abc", **SHORT)).tokens


async def test_errors_reach_who_awaits():
    with pytest.raises(BadSetting):
        await session_of()[0].arun("")


async def test_an_event_loop_goes_on_meanwhile():
    session, *_ = session_of(end=False)
    reply = asyncio.create_task(session.arun("tell me", **GREEDY, max_tokens=60))
    ticks = 0
    while not reply.done():
        await asyncio.sleep(0)
        ticks += 1
    assert ticks > 1
