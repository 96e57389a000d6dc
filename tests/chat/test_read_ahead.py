"""Reading ahead: the next turn prefills only its new message, whatever the cache, and no text changes by it."""

import json
import random
import threading
from itertools import count

import pytest

import localspec
from localspec.caches.store import finish
from localspec.chat import reply as reading
from localspec.engine import requests
from localspec.engine.messages import Generate, LoadPair, Typed
from localspec.engine.requests import PairRequests
from localspec.events import Finished, FinishReason
from localspec.models.registry import named
from localspec.prompt.messages import Message, with_reply
from tests.chat.letters import session_of
from tests.drafters import heads

# As Qwen's: the reasoning stays until the next question, and a tool's result has a header of its own.
THINKING = (
    "{% set last = namespace(at=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set last.at = loop.index0 %}{% endif %}{% endfor %}"
    "{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and loop.index0 > last.at %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{% if m.role == 'tool' %}<tool_response>{{ m.content }}</tool_response>{% else %}{{ m.content }}{% endif %}"
    "{% for c in m.tool_calls or [] %}<tool_call>"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>{% endfor %}'
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
KINDS = {
    "attention": {},
    "window": {"architecture": "gemma2", "window": 64, "layers": 4},
    "recurrent": {"architecture": "mamba"},
    "hybrid": {"architecture": "qwen35", "layers": 4},
}
FRAME = 32  # tokens
THOUGHT = {"temperature": 0, "think": False, "regex": "<think>[a-z]{150}</think>[a-z ]{20}"}
WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"enum": ["Rome"]}}}}
TOOLS = [{"type": "function", "function": WEATHER}]


@pytest.fixture
def load(tiny_gguf, tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))

    def open_session(kind, **options):
        path = tiny_gguf(vocab_size=1024, chat_template=THINKING, seed=3, **KINDS[kind])
        options = {"draft": "lookup", "threads": 1, "context_length": 2048} | options
        return localspec.load(target=path, **options)

    return open_session


def fresh(reply):
    return reply.stats.prompt_tokens - reply.stats.reused_tokens


def tokens(session, text):
    return len(session.pair.vocabulary.tokenize(text, parse_special=False))


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_thinking_reply_the_next_turn_reads_only_its_message(load, kind):
    question = "and what of the gulls over the grey sea?"
    with load(kind) as session, load(kind) as other:
        first = session.run("tell me of the sea and the wind", **THOUGHT)
        assert len(first.reasoning) == 150
        assert first.finish_reason is FinishReason.STOP
        assert other.run("tell me of the sea and the wind", **THOUGHT).tokens == first.tokens
        for number in range(2):
            session.read_ahead(lambda: False)
            assert not session._in_use.writer._upcoming, "idle once the beginning is read"
            reply, without = session.run(question, **THOUGHT), other.run(question, **THOUGHT)
            assert fresh(reply) <= tokens(session, question) + FRAME
            assert reply.stats.read_ahead_tokens > 0
            assert fresh(reply) + reply.stats.read_ahead_tokens <= fresh(without) + FRAME, f"turn {number}"
            assert without.stats.read_ahead_tokens == 0


@pytest.mark.parametrize("kind", ["attention", "hybrid"])
def test_a_turn_with_a_tool_result_reads_the_result_and_its_frame(load, kind):
    with load(kind) as session:
        asked = [Message("user", "How is the weather in Rome?")]
        options = {"temperature": 0, "think": False, "tools": TOOLS}
        options |= {"tool_choice": "weather", "parallel_tool_calls": False}
        reply = session.run(asked, **options)
        (call,) = reply.tool_calls
        session.read_ahead(lambda: False)
        result = Message("tool", json.dumps({"sky": "grey", "wind": "north " * 20}), tool_call_id=call.id)
        following = session.run([*with_reply(asked, reply), result], **options)
        assert fresh(following) <= tokens(session, result.content) + FRAME
        assert following.stats.read_ahead_tokens > 0


def test_what_is_typed_is_read_up_to_its_last_whole_word_and_changed_words_are_read_again(load, monkeypatch):
    with load("hybrid") as session:
        session.run("tell me of the sea", **THOUGHT)
        session.read_ahead(lambda: False)
        turns, target, lengths = session.messages, session.pair.target, []
        sent, rewind = target.length, target.rewind
        monkeypatch.setattr(target, "rewind", lambda keep: lengths.append(rewind(keep)) or lengths[-1])
        for typed in ("and what of the old ", "and what of the old and the grey ", "but when "):
            session.read_ahead(lambda: False, [*turns, Message("user", typed)], think=False)
        reply = session.run("but when will they come?", **THOUGHT)
        assert fresh(reply) <= tokens(session, "will they come?") + FRAME
        assert min(lengths) == sent, "the history itself is not read again"
        assert not session.pair.slots.sent


def test_the_first_message_is_read_while_it_is_typed(load):
    with load("attention") as session:
        typed = "of the old and the grey " * 9
        session.read_ahead(lambda: False, [Message("user", typed)])
        reply = session.run(typed + "sea", max_tokens=1)
        assert fresh(reply) <= tokens(session, "sea") + FRAME
        assert not session.pair.slots.sent


def test_no_file_gets_a_text_that_is_typed_and_not_sent(load):
    with load("hybrid", cache="all") as session:
        session.run("tell me of the sea", **THOUGHT)
        session.read_ahead(lambda: False)
        sent = session.pair.target.length
        typed = (*session.messages, Message("user", "my secret " * 9))
        for forget in (session.pair.slots.store, lambda: session.another().run("hi", max_tokens=1)):
            session.read_ahead(lambda: False, typed, think=False)
            assert session.pair.target.length > sent + 9
            saved = session.pair.target.prompt_cache._saved
            forget()
            assert all(len(state.tokens) <= sent for state in saved)
            assert session.pair.slots.sent == {}
        finish()


@pytest.mark.process
def test_an_interrupted_reading_goes_on_and_the_texts_stay_those_of_a_fresh_cache(load, monkeypatch):
    dice = random.Random(3)
    for kind in KINDS:
        with load(kind) as session, load(kind, speculate=False) as plain:
            for opened in (session, plain):
                monkeypatch.setattr(opened.pair.target, "chunk", 8)
            for question in ("tell me of the sea", "the wind?", "the gulls?", "the rain?"):
                reply = session.run(question, **THOUGHT)
                held = list(session.pair.target.tokens)[: reply.stats.prompt_tokens]
                plain.pair.target.rollback(0)
                options = THOUGHT | {"think": None, "max_tokens": len(reply.tokens)}
                fresh_tokens = plain.complete(held, **options).tokens[:24]
                assert reply.tokens[:24] == fresh_tokens, f"{kind}: {question}"
                for _ in range(dice.randrange(3)):
                    moments, last = count(), dice.randrange(2, 9)
                    session.read_ahead(lambda moments=moments, last=last: next(moments) >= last)


def test_a_request_that_arrives_waits_for_a_chunk_and_gets_the_slot_that_was_read(load, monkeypatch):
    with load("attention", parallel=2) as session, session.another() as asker:
        session.run("tell me of the sea " * 20, **THOUGHT)
        monkeypatch.setattr(session.pair.target, "chunk", 8)
        turns, replies = session.messages, []
        arrives = threading.Thread(
            target=lambda: replies.append(asker.run([*turns, Message("user", "more")], **THOUGHT))
        )
        read, passes = reading.read, count()

        def arriving(target, *others):
            for event in read(target, *others):
                yield event
                if not next(passes):
                    arrives.start()
                    while not session.pair.slots.awaited:
                        arrives.join(0.001)

        monkeypatch.setattr(reading, "read", arriving)
        session.pair.target.rollback(0)  # so that there is much to read
        session.read_ahead(lambda: False)
        arrives.join()
        (reply,) = replies
        assert reply.stats.read_ahead_tokens == reply.stats.reused_tokens == 8
        second = session.pair.slots.all[1].target
        assert second.length == 0


def test_a_reply_that_was_cut_off_keeps_its_tokens_because_it_may_be_continued(load):
    with load("hybrid") as session:
        session.run("tell me of the sea", temperature=0, max_tokens=40)
        held = list(session.pair.target.tokens)
        session.read_ahead(lambda: False)
        assert session.pair.target.tokens == held


def test_letters_are_read_ahead_by_target_and_draft():
    session, target, draft, _ = session_of(3)
    object.__setattr__(session.pair, "reads_ahead", True)
    session.run("hello", temperature=0, max_tokens=60, depth=3)  # automatic depth may switch a draft off
    session.read_ahead(lambda: False)
    assert "".join(session.pair.vocabulary.text(token) for token in target.tokens).endswith("<u")
    assert draft.length >= target.length - 8


@pytest.mark.parametrize("spent", [False, True])
def test_an_ended_time_or_a_switch_reads_nothing(load, monkeypatch, spent):
    if spent:
        monkeypatch.setattr("localspec.chat.reply.READ_AHEAD_SECONDS", 0.0)
        monkeypatch.setattr("localspec.chat.session.READ_AHEAD_SECONDS", 0.0)
    with load("attention", read_ahead=spent) as session:
        session.run("tell me of the sea", **THOUGHT)
        before = list(session.pair.target.tokens)
        session.read_ahead(lambda: False, [Message("user", "some typed words")])
        assert list(session.pair.target.tokens) == before


def test_the_engine_reads_ahead_unless_on_battery_and_drops_what_was_typed_when_it_is_sent(
    load, monkeypatch, tmp_path
):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    handler, reports = PairRequests(), []
    handler.perform(LoadPair(named("demo")), reports.append, bool)
    target, asked = handler._session.pair.target, (Message("user", "Tell me a story about a ferry."),)
    options = {"regex": "A ferry sank.", "temperature": 0}
    handler.perform(Typed((Message("user", "Tell me "),)), reports.append, bool)
    handler.perform(Generate(1, asked, options), reports.append, bool)
    assert handler._typed == Typed()
    reply = reports[-1].reply
    for battery in (True, False):
        monkeypatch.setattr(requests, "on_battery", lambda battery=battery: battery)
        held = list(target.tokens)
        handler.perform(
            Typed((*with_reply(asked, reply), Message("user", "And then "))), reports.append, bool
        )
        handler.rest(lambda: False)
        assert (target.tokens == held) == battery
        assert handler._typed == Typed()
    handler.perform(
        Generate(2, (*with_reply(asked, reply), Message("user", "And then what?")), options),
        reports.append,
        bool,
    )
    assert isinstance(reports[-1], Finished)
    assert reports[-1].reply.stats.read_ahead_tokens > 5
    handler.close()


@pytest.mark.parametrize("name", heads.KINDS)
def test_a_head_reads_along_and_drafts_as_if_nothing_had_been_read_ahead(name, tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    (target, draft), replies = heads.KINDS[name].files(tmp_path), []
    greedy = {"temperature": 0, "max_tokens": 16, "depth": 3}
    for typed in ("", "what of the sea and the gulls "):
        with localspec.load(target=target, draft=draft, threads=1, context_length=512) as session:
            monkeypatch.setattr(
                session.pair.target, "chunk", 8
            )  # from 64 tokens on rows are rounded otherwise
            session.run("abc def " * 4, **greedy)
            session.read_ahead(lambda: False, [*session.messages, Message("user", typed)] if typed else ())
            replies.append(session.run("what of the sea and the gulls again", **greedy))
    without, ahead = replies
    assert ahead.tokens == without.tokens
    assert (ahead.stats.accepted, ahead.stats.drafted) == (without.stats.accepted, without.stats.drafted)
    assert fresh(ahead) + ahead.stats.read_ahead_tokens == fresh(without)
