"""What is left out of a prompt when a conversation outgrows the context, and how much is rendered to know it."""

import pytest

from localspec.chat.session import Session
from localspec.errors import BadSetting
from localspec.events import Started, ToolCall
from localspec.prompt.fitting import kept, starts_of
from localspec.prompt.messages import Message
from localspec.prompt.template import ChatTemplate
from tests.chat.letters import GREEDY, SYMBOLS, TEMPLATE, Letters, session_of
from tests.exact_engine import engine_of, exact_pair

THINKS = TEMPLATE + "{# <think> </think> #}"


def turns(count, text="bbbbb"):
    numbered = (text + "abcdefghij"[n % 10] for n in range(count))
    return [message for each in numbered for message in (Message("user", each), Message("assistant", "ccc"))]


def rounds(count):
    found = []
    for n in range(count):
        call = ToolCall("look", {"at": "abc"}, f"call{n:05}")
        found += [Message("assistant", "", tool_calls=(call,)), Message("tool", "bcd", tool_call_id=call.id)]
    return found


def started(session, messages, **options):
    return next(session.stream(messages, **GREEDY, **{"max_tokens": 10, **options}))


def test_a_system_message_alone_is_a_conversation():
    alone = (Message("system", "abc"),)
    assert starts_of(alone) == [0]
    assert kept(alone, 0) == alone


def prompt_text(session):
    """What the target has read."""
    return "".join(SYMBOLS[token] for token in session.pair.target.tokens)


@pytest.fixture
def rendered(monkeypatch):
    """How many messages each render was given."""
    sizes, render = [], ChatTemplate.render

    def counted(self, messages, **options):
        sizes.append(len(messages))
        return render(self, messages, **options)

    monkeypatch.setattr(ChatTemplate, "render", counted)
    return sizes


def test_a_prompt_that_fits_is_rendered_twice_and_once_more_for_a_checkpoint(rendered, monkeypatch):
    session, *_ = session_of(capacity=400)
    started(session, [*turns(4), Message("user", "d")])
    assert rendered == [9, 9]
    monkeypatch.setattr(type(session.pair.target), "needs_checkpoints", True)
    monkeypatch.setattr(type(session.pair.target), "checkpoint", lambda self, lasting: None, raising=False)
    rendered.clear()
    started(session_of(capacity=400)[0], [*turns(4), Message("user", "d")])
    assert rendered == [9, 9, 9]


def test_what_is_rendered_does_not_grow_with_a_conversation_that_does_not_fit(rendered):
    work = []
    for count in (500, 5_000):
        rendered.clear()
        first = started(session_of(capacity=400)[0], [*turns(count), Message("user", "d")])
        assert 0 < first.prompt_tokens <= 390
        assert first.trimmed_messages > 2 * count - 60
        work.append(sum(rendered))
    assert work[0] == work[1] < 2_500


def test_the_next_prompt_of_a_trimmed_conversation_is_rendered_like_one_that_fits(rendered):
    session, *_ = session_of(capacity=400)
    talk = [*turns(500), Message("user", "d")]
    trimmed = started(session, talk).trimmed_messages
    session.cancel()
    rendered.clear()
    again = started(session, [*talk, Message("assistant", "e"), Message("user", "f")])
    assert again.trimmed_messages == trimmed
    assert len(rendered) == 2
    assert max(rendered) < 60


def test_a_conversation_that_became_shorter_is_whole_again():
    session, *_ = session_of(capacity=400)
    talk = [*turns(25), Message("user", "d" * 80)]
    assert started(session, talk).trimmed_messages > 0
    session.cancel()
    assert started(session, [*talk[:-1], Message("user", "d")]).trimmed_messages == 0


def test_conversations_that_take_turns_are_trimmed_as_if_each_were_alone():
    def client(letter, count):
        return [*turns(count, text=letter * 9), Message("user", "d")]

    def trimmed(session, *conversations):
        found = []
        for talk in conversations:
            found.append(started(session, talk).trimmed_messages)
            session.cancel()
        return found

    short, long = client("a", 50), client("b", 60)
    alone = [trimmed(session_of(capacity=400)[0], talk)[0] for talk in (short, long)]
    assert 0 < alone[0] < alone[1]
    more = [*short, Message("assistant", "ccc"), Message("user", "e")]
    session, *_ = session_of(capacity=400)
    assert trimmed(session, long, short, long, more) == [alone[1], alone[0], alone[1], alone[0]]


def test_a_refused_request_renders_nothing_and_changes_nothing(rendered):
    session, *_ = session_of(capacity=400)
    talk = [*turns(90), Message("user", "d")]
    events = session.stream("one", **GREEDY, max_tokens=3)
    next(events)
    cuts, messages = session._in_use.omissions, session.messages
    rendered.clear()
    with pytest.raises(BadSetting, match="busy"):
        next(session.stream(talk, **GREEDY))
    assert rendered == []
    assert (session._in_use.omissions, session.messages) == (cuts, messages)
    list(events)
    assert session.messages[0] == Message("user", "one")


def test_an_agents_loop_keeps_its_question_and_its_newest_rounds():
    session, *_ = session_of(capacity=1200)
    events = session.stream([Message("user", "goon"), *rounds(60)], **GREEDY, max_tokens=5)
    first = next(events)
    assert first.trimmed_messages % 2 == 0
    assert 60 < first.trimmed_messages < 120
    list(events)
    assert prompt_text(session).startswith("<ugoon><a")
    assert first.prompt_tokens > 300


def test_an_older_turn_loses_its_rounds_before_its_question():
    talk = [Message("system", "s"), Message("user", "q"), *rounds(2), Message("assistant", "a")]
    talk = (*talk, Message("user", "r"), *rounds(2))
    assert starts_of(talk) == [1, 4, 7, 10]
    assert kept(talk, 4) == (*talk[:2], *talk[4:])
    assert kept(talk, 7) == (talk[0], *talk[7:])
    assert kept(talk, 10) == (talk[0], talk[7], *talk[10:])


def thinking_session():
    target, _ = exact_pair(Letters(False), 11, capacity=2_000, agreement=0.8, draft=False)
    return Session(engine_of(Letters(False), THINKS, target, None))


def test_a_model_that_reasons_has_a_quarter_of_the_context_for_its_reply():
    talk = [*turns(110), Message("user", "d")]
    whole = thinking_session().count_tokens(talk)
    assert 1_500 < whole < 1_744
    whole_fits = ({"think": False}, {"max_tokens": 200}, {"overflow": "error"})
    for options, trims in (({}, True), *((options, False) for options in whole_fits)):
        first = next(thinking_session().stream(talk, **GREEDY, **options))
        assert isinstance(first, Started)
        assert bool(first.trimmed_messages) is trims
        assert first.prompt_tokens <= (1_500 if trims else whole)
