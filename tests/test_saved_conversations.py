"""Whole states are copied for conversations that may come back, and never for what their history left out."""

import pytest

import localspec
from localspec.llama import lane

LONG = 300  # tokens: more than are read again about as fast as they are saved


@pytest.fixture
def session(monkeypatch, home_of_processes):
    with localspec.load(context_length=2048) as loaded:
        yield loaded


@pytest.fixture
def copies(session, monkeypatch):
    """The lengths of the states that were copied."""
    made, real = [], lane.state_of

    def counted(*arguments, **options):
        made.append(session.pair.target.length)
        return real(*arguments, **options)

    monkeypatch.setattr(lane, "state_of", counted)
    return made


def ask(session, messages):
    vocabulary = session.pair.vocabulary
    ends = {token: -100.0 for token in range(vocabulary.size) if vocabulary.is_end(token)}
    return session.run(messages, max_tokens=LONG, logit_bias=ends, temperature=0)


def test_a_thinking_model_s_turns_and_repeated_replies_save_no_dead_branch(session, copies):
    messages = [{"role": "user", "content": "Tell me a story."}]
    for turn in range(3):
        reply = ask(session, messages)
        assert ask(session, messages).text == reply.text
        # The history leaves out what came first, as it leaves out reasoning.
        answer = {"role": "assistant", "content": reply.text[-40:]}
        messages = [*messages, answer, {"role": "user", "content": f"And then, {turn}?"}]
    assert copies == []


def test_another_conversation_is_saved_with_its_long_reply_and_comes_back(session, copies):
    first = [{"role": "user", "content": "Tell me a story."}]
    reply = ask(session, first)
    ask(session, [{"role": "user", "content": "Name a city."}])
    assert len(copies) == 1
    again = [*first, {"role": "assistant", "content": reply.text}, {"role": "user", "content": "Go on."}]
    events = session.stream(again, max_tokens=1)
    assert next(events).reused_tokens > LONG
    events.close()


def test_a_raw_text_that_is_continued_saves_nothing_and_another_text_does(session, copies):
    text = "Once upon a time " * 80
    session.complete(text, max_tokens=4)
    session.complete(text + "there was", max_tokens=4)
    assert copies == []
    session.complete("Something else", max_tokens=4)
    assert len(copies) == 1
