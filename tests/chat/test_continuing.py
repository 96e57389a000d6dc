"""Conversations that go on from somewhere: resumed, edited, continued, or sent back without their reasoning."""

import pytest

from localspec.events import FinishReason, Reply, Started, Stats
from localspec.prompt.messages import Message, Reasoning
from localspec.prompt.template import ChatTemplate
from localspec.prompt.tokens import encode
from tests.chat.letters import GREEDY, Letters, session_of
from tests.prompt.carried import TEMPLATES, tiered
from tests.prompt.character_vocabulary import CharacterVocabulary
from tests.structure.characters import scripted_session

SHORT = {**GREEDY, "max_tokens": 8}
DEMO_MODEL = CharacterVocabulary()


def test_a_last_message_of_the_assistant_is_continued():
    session, target, *_ = session_of(end=False)
    reply = session.run([Message("user", "go on"), Message("assistant", "abc")], **SHORT)
    assert session.messages == (Message("user", "go on"), Message("assistant", "abc" + reply.text))
    assert session.prompt_of(session.messages[:-1]).text == "<ugo on><a"
    tokens = Letters(False).tokenize("<ugo on><aabc", parse_special=True)
    assert target.tokens[: len(tokens)] == tokens


def test_a_reply_that_was_cut_goes_on_as_if_it_had_not_been():
    whole, *_ = session_of(end=False)
    expected = whole.run("tell me", **GREEDY, max_tokens=16)
    session, *_ = session_of(end=False)
    session.run("tell me", **SHORT)
    session.run(session.messages, **SHORT)
    assert session.messages[-1].content == expected.text


@pytest.mark.parametrize("name", tiered(TEMPLATES))
def test_every_template_ends_the_prompt_where_the_reply_began(name):
    template = ChatTemplate(TEMPLATES[name], bos_text="<s>", eos_text="</s>")
    messages = (Message("user", "Count."), Message("assistant", "One, end of <two"))
    prompt = encode(DEMO_MODEL, template, messages)
    assert prompt.text.endswith("One, end of <two")
    assert prompt.text.count("Count.") == 1


def test_tokens_are_counted_as_a_reply_would_read_them():
    session, *_ = session_of(end=False)
    assert session.count_tokens("abc") == len("<uabc><a")
    session.run("tell me", **SHORT)
    counted = session.count_tokens("more")
    assert next(session.stream("more", **SHORT)).prompt_tokens == counted


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


@pytest.mark.parametrize(
    ("template", "question", "answer", "prompt"),
    [
        (DROPS, "sum?", {}, "sum?|four;sure?|"),  # a template without a place for it
        (KEEPS, "sum?", {"reasoning_content": "mine"}, "sum?|<think>mine</think>four;sure?|"),
        (KEEPS, "days?", {}, "days?|four;sure?|"),  # an equal answer to another question
    ],
)
def test_the_reasoning_that_is_shown_is_the_clients_own_or_that_of_this_question(
    template, question, answer, prompt
):
    session = scripted_session(REPLY, template)
    session.run([QUESTION])
    back = [QUESTION | {"content": question}, {"role": "assistant", "content": "four"} | answer, NEXT]
    assert session.prompt_of(back).text == prompt


def test_long_reasoning_is_kept_of_as_many_replies_as_fit(monkeypatch):
    monkeypatch.setattr("localspec.prompt.messages.MOST_REASONING", 300)
    kept = Reasoning()
    for n in range(5):
        kept.keep(
            [Message("user", str(n))], Reply("yes", str(n) * 100, (), 0, FinishReason.STOP, Stats()), ""
        )
    back = [kept.put_back([Message("user", str(n)), Message("assistant", "yes")], "") for n in range(5)]
    assert [messages[1].reasoning for messages in back] == ["", "", "2" * 100, "3" * 100, "4" * 100]


def test_a_thousand_replies_are_remembered():
    kept = Reasoning()
    for n in range(1001):
        reply = Reply("yes", f"thought {n}", (), 0, FinishReason.STOP, Stats())
        kept.keep([Message("user", str(n))], reply, "")
    for n, thought in ((0, ""), (1, "thought 1"), (1000, "thought 1000")):
        back = [Message("user", str(n)), Message("assistant", "yes")]
        assert kept.put_back(back, "")[1].reasoning == thought
