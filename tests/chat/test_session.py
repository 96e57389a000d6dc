"""Conversations on exact models: what is remembered, reused, trimmed, stopped, cancelled and scored."""

import dataclasses
import threading

import numpy as np
import pytest

from localspec.algorithm.verification import log_softmax, top
from localspec.chat import reply as reading
from localspec.chat.request import request_from
from localspec.chat.session import Session, last_reply
from localspec.errors import BadSetting, ContextFull
from localspec.events import Cycle, Finished, FinishReason, Notice, Piece, Prefill, Scores, Started, ToolCall
from localspec.prompt.messages import Message
from localspec.prompt.template import NO_TEMPLATE
from localspec.sampler.sampling import Sampling
from tests.algorithm.exact_models import ExactModel
from tests.chat.letters import GREEDY, SYMBOLS, Letters, session_of


def test_events_come_in_order_and_the_pieces_are_the_text():
    session, *_ = session_of()
    events = list(session.stream("hello there", **GREEDY, max_tokens=40))
    kinds = [type(event) for event in events]
    assert kinds[0] is Started
    assert kinds[-1] is Finished
    assert kinds.index(Prefill) < kinds.index(Cycle)
    reply = events[-1].reply
    assert "".join(e.text for e in events if isinstance(e, Piece)) == reply.text
    assert sum((e.tokens for e in events if isinstance(e, Cycle)), ()) == reply.tokens
    assert reply.stats.emitted == len(reply.tokens)


def test_a_second_turn_decodes_only_what_is_new_in_both_caches():
    session, target, draft, _ = session_of(end=False)
    first = session.run("tell me", **GREEDY, max_tokens=20)
    decoded = target.decoded, draft.decoded
    events = list(session.stream("more", **GREEDY, max_tokens=1))
    started = events[0]
    new = started.prompt_tokens - started.reused_tokens
    assert started.reused_tokens >= len("<utell me><a") + len(first.tokens) - 1
    assert target.decoded - decoded[0] == new, "the whole rest, the newest token included"
    assert draft.decoded - decoded[1] <= new + 3, "a cycle may leave the draft a few tokens behind"


def test_a_draft_that_missed_a_reply_forgets_what_is_no_longer_the_text():
    session, target, draft, _ = session_of(end=False)
    session.complete("abcabcabc", **GREEDY, max_tokens=5, depth=3)
    session.complete("abcdef", **GREEDY, max_tokens=5, speculate=False)
    session.complete("abcdefgh", **GREEDY, max_tokens=5, depth=3)
    assert draft.tokens == target.tokens[: draft.length]
    assert draft.length > 6


def test_a_conversation_that_is_replaced_during_a_reply_stays_so():
    other = (Message("user", "other"), Message("assistant", "fine"))
    for replace, left in ((Session.reset, ()), (lambda session: session.resume(other), other)):
        session, *_ = session_of(end=False)
        events = session.stream("first", **GREEDY, max_tokens=5)
        next(events)
        replace(session)
        list(events)
        assert session.messages == left
        session.run("second", **GREEDY, max_tokens=5)
        assert session.messages[: len(left) + 1] == (*left, Message("user", "second"))


def test_a_stream_is_cancelled_by_its_own_caller_alone():
    session, *_ = session_of(end=False)
    ended = threading.Event()
    for ask in (session.stream, session.stream_complete):
        events = ask("one", **GREEDY, max_tokens=20, cancelled=ended.is_set)
        ended.set()
        assert last_reply(events).finish_reason is FinishReason.CANCELLED
        assert session.run("two", **GREEDY, max_tokens=20).finish_reason is FinishReason.LENGTH
        ended.clear()


@pytest.mark.parametrize(
    "use",
    [
        lambda session: session.run("b"),
        lambda session: session.complete("b"),
        Session.calibrate,
        Session.close,
    ],
)
def test_a_session_that_is_used_by_its_own_cancelled_says_so_and_then_replies_again(use):
    session, *_ = session_of(end=False)
    with pytest.raises(BadSetting, match="`cancelled` used the session"):
        list(session.stream("a", **GREEDY, max_tokens=5, cancelled=lambda: use(session)))
    assert session.run("c", **GREEDY, max_tokens=5).finish_reason is FinishReason.LENGTH


def test_a_list_of_messages_replaces_the_conversation_and_system_its_first_message():
    session, *_ = session_of()
    session.run("forget this", **GREEDY, max_tokens=3)
    session.run([{"role": "user", "content": "hi"}], system="be brief", **GREEDY, max_tokens=3)
    assert [m.role for m in session.messages] == ["system", "user", "assistant"]
    session.run("again", system="be long", **GREEDY, max_tokens=3)
    assert session.messages[0] == Message("system", "be long")
    assert [m.role for m in session.messages].count("system") == 1


def test_cancelling_keeps_what_was_written():
    session, target, *_ = session_of(end=False)
    seen = []
    for event in session.stream("go on", **GREEDY):
        seen.append(event)
        if sum(isinstance(e, Cycle) for e in seen) == 5:
            session.cancel()
    reply = seen[-1].reply
    assert reply.finish_reason is FinishReason.CANCELLED
    assert reply.stats.cycles == 5
    assert session.messages[-1] == Message("assistant", reply.text)
    tokens = [*Letters(False).tokenize("<ugo on><a", parse_special=True), *reply.tokens]
    assert target.tokens == tokens[: target.length]


def test_cancelling_in_the_prefill_leaves_the_conversation_as_it_was():
    session, target, *_ = session_of()
    for event in session.stream("a" * 200, **GREEDY):
        if isinstance(event, Prefill):
            session.cancel()
        last = event
    assert last.reply.finish_reason is FinishReason.CANCELLED
    assert last.reply.tokens == ()
    assert session.messages == ()
    assert 0 < target.length < 200


def test_a_cancel_stops_what_was_asked_for_before_it_and_nothing_after():
    session, *_ = session_of(end=False)
    session.cancel()
    asked = session.stream("one", **GREEDY, max_tokens=20)
    raw = session.stream_complete("one", **GREEDY, max_tokens=20)
    session.cancel()
    assert [last_reply(events).finish_reason for events in (asked, raw)] == [FinishReason.CANCELLED] * 2
    assert session.messages == ()
    assert session.run("two", **GREEDY, max_tokens=20).finish_reason is FinishReason.LENGTH


def test_a_cancel_while_the_prompt_is_rendered_is_not_lost(monkeypatch):
    session, target, *_ = session_of(end=False)
    tokenize = Letters.tokenize

    def cancelling(*args, **options):
        session.cancel()
        return tokenize(*args, **options)

    monkeypatch.setattr(Letters, "tokenize", cancelling)
    reply = session.run("one", **GREEDY, max_tokens=20)
    assert reply.finish_reason is FinishReason.CANCELLED
    assert target.tokens == []


def test_stop_strings_cut_text_tokens_and_counts_alike():
    session, *_ = session_of(end=False)
    whole = session.run("stop me", **GREEDY, max_tokens=60)
    session.reset()
    stop = whole.text[20:23]
    cut = session.run("stop me", **GREEDY, max_tokens=60, stop=[stop])
    assert cut.finish_reason is FinishReason.STOP
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert b"".join(map(Letters(False).piece, cut.tokens)).decode() == cut.text + stop
    assert cut.stats.emitted == len(cut.tokens)


def test_a_reply_ends_when_the_context_is_full_and_says_so():
    session, target, *_ = session_of(end=False, capacity=100)
    events = list(session.stream("fill it", **GREEDY))
    reply = events[-1].reply
    assert len(reply.tokens) == 100 - len("<ufill it><a")
    assert any(isinstance(e, Notice) and "full" in e.text and "--context" in e.text for e in events)
    assert target.length <= target.capacity


def test_the_oldest_turns_are_dropped_and_the_prompt_then_stays_stable():
    session, *_ = session_of(end=False, capacity=200)
    reused, trimmed = [], []
    for _ in range(24):
        started, *_ = session.stream("bbbbb", **GREEDY, max_tokens=10)
        assert started.prompt_tokens + 10 <= 200
        reused.append(started.reused_tokens / started.prompt_tokens)
        trimmed.append(started.trimmed_messages)
    assert trimmed[-1] > 0
    assert sum(share > 0.6 for share in reused[3:]) >= 15, "most turns reuse most of their prompt"


def test_trimming_can_be_refused():
    session, *_ = session_of(end=False, capacity=100)
    session.run("c" * 60, **GREEDY, max_tokens=10)
    before = session.messages
    with pytest.raises(ContextFull, match="conversation"):
        session.run("d" * 60, **GREEDY, max_tokens=10, overflow="error")
    assert session.messages == before
    session.run("d" * 60, **GREEDY, max_tokens=10)


def test_a_prompt_longer_than_the_context_is_an_error_that_loses_nothing():
    session, *_ = session_of(capacity=100)
    session.run("short", **GREEDY, max_tokens=5)
    before = session.messages
    with pytest.raises(
        ContextFull, match=r"prompt has \d+ tokens, which exceeds the available context size of 100"
    ):
        session.run("e" * 200, **GREEDY)
    assert session.messages == before


def test_closing_while_a_reply_is_read_is_an_error_that_says_so():
    session, _, _, closed = session_of()
    events = session.stream("one", **GREEDY)
    next(events)
    session.close()
    assert closed == [True]
    with pytest.raises(BadSetting, match="closed while it replied"):
        list(events)


def test_a_configured_system_message_gives_way_to_one_that_the_caller_brings():
    session = Session(session_of()[0].pair, {"system": "configured"})
    session.run(
        [{"role": "system", "content": "a pirate"}, {"role": "user", "content": "hi"}], **GREEDY, max_tokens=2
    )
    assert session.messages[0] == Message("system", "a pirate")
    session.run([{"role": "user", "content": "hi"}], **GREEDY, max_tokens=2)
    assert session.messages[0] == Message("system", "configured")
    session.run(
        [*session.messages, {"role": "user", "content": "hi"}], system="asked for", **GREEDY, max_tokens=2
    )
    assert session.messages[0] == Message("system", "asked for")


def test_reasoning_in_front_of_a_call_is_reported_until_the_next_question():
    session, *_ = session_of()
    call = ToolCall("add", {}, "1")
    asked = [Message("user", "q"), Message("assistant", "", "why", (call,))]
    session.run([*asked, Message("tool", "4", tool_call_id="1")], **GREEDY, max_tokens=2)
    assert session.messages[1].reasoning == "why"
    session.run("next", **GREEDY, max_tokens=2)
    assert [m.reasoning for m in session.messages] == [""] * 6


def test_a_stream_that_is_left_and_cancelled_gives_way_to_the_next_reply():
    session, *_ = session_of(end=False)
    left = session.stream("abc" * 30, **GREEDY, max_tokens=50)
    next(left)
    with pytest.raises(BadSetting, match="busy"):
        session.run("hi", **GREEDY, max_tokens=3)
    session.cancel()
    reply = session.run("abcd", **GREEDY, max_tokens=9)
    assert reply.tokens == session_of(end=False)[0].run("abcd", **GREEDY, max_tokens=9).tokens
    with pytest.raises(BadSetting, match="got another request"):
        list(left)
    assert session.messages[0].content == "abcd"


def test_a_text_that_brings_its_own_beginning_gets_no_second_one():
    session, target, *_ = session_of()
    vocabulary = session.pair.vocabulary
    vocabulary.bos = SYMBOLS.index("<")
    tokenize = Letters(True).tokenize
    vocabulary.tokenize = lambda text, **_: [vocabulary.bos, *tokenize(text, parse_special=True)]
    for text in ("<ab", "ab"):
        session.complete(text, **GREEDY, max_tokens=1)
        assert target.tokens[:3] == Letters(True).tokenize("<ab", parse_special=True)


def test_a_closed_session_says_so_and_touches_no_model():
    with session_of()[0] as session:
        late = session.stream("asked before, read after", **GREEDY)
    for ask in (lambda: session.run("hi"), lambda: session.complete("hi"), lambda: next(late)):
        with pytest.raises(BadSetting, match="closed"):
            ask()


def test_reading_seconds_are_the_models_and_not_the_callers(monkeypatch):
    now, prefill = 0, ExactModel.prefill

    def second_by_second(self, tokens, *_):
        nonlocal now
        for batch in prefill(self, tokens):
            now += 1
            yield batch

    monkeypatch.setattr(ExactModel, "prefill", second_by_second)
    monkeypatch.setattr(reading, "perf_counter", lambda: now)
    seconds = []
    for event in session_of()[0].stream("a" * 200, **GREEDY, max_tokens=2):
        now += 100
        if isinstance(event, Prefill):
            seconds.append(event.seconds)
    assert len(seconds) > 20
    assert seconds == list(range(1, len(seconds) + 1))
    assert event.reply.stats.prefill_seconds == len(seconds)


def test_notices_are_reported_once():
    session, *_ = session_of(draft=False)
    first = [e.text for e in session.stream("one", **GREEDY, max_tokens=2) if isinstance(e, Notice)]
    second = [e.text for e in session.stream("two", **GREEDY, max_tokens=2) if isinstance(e, Notice)]
    assert first == ["a notice"]
    assert second == []


def test_a_raw_text_gets_no_notice_about_a_missing_template():
    session, *_ = session_of(draft=False, notices=(NO_TEMPLATE,))
    for stream, notices in ((session.stream_complete, []), (session.stream, [NO_TEMPLATE])):
        events = stream("one", **GREEDY, max_tokens=2)
        assert [event.text for event in events if isinstance(event, Notice)] == notices


def test_raw_text_has_no_template_and_leaves_the_conversation_alone():
    session, *_ = session_of()
    events = list(session.stream_complete("abc", **GREEDY, max_tokens=5))
    assert events[0].prompt_tokens == 3
    assert session.messages == ()


@pytest.mark.parametrize(("rule", "depth"), [("auto", "auto"), ("block", 3), ("coupled", "auto")])
def test_the_same_seed_gives_the_same_reply_and_no_seed_a_fresh_one(rule, depth):
    session, *_ = session_of(end=False)
    a = session.complete("abc", seed=5, max_tokens=40, rule=rule, depth=depth)
    b = session.complete("abc", seed=5, max_tokens=40, rule=rule, depth=depth)
    fresh = {session.complete("abc", max_tokens=40).seed for _ in range(3)}
    assert a.tokens == b.tokens
    assert a.seed == 5
    assert len(fresh) == 3


def test_biases_may_name_tokens_as_json_does():
    request = request_from({"logit_bias": {"7": -1, 5: float("-inf")}}, Sampling())
    assert request.sampling.logit_bias == ((5, float("-inf")), (7, -1.0))
    assert request_from({"logit_bias": {}}, Sampling()).sampling.logit_bias == ()
    request = request_from(
        {"logit_bias": {"ab": -2}}, Sampling(), lambda text, parse_special: [*text.encode()]
    )
    assert request.sampling.logit_bias == ((97, -2.0), (98, -2.0))  # a text stands for its tokens


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"temprature": 1}, "temprature"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"rule": "magic"}, "magic"),
        ({"speculate": "no"}, "speculate"),
        ({"logit_bias": {"-1": -1}}, "{'-1': -1} is not a valid logit_bias"),
        ({"logit_bias": {10**20: 1}}, "logit_bias"),
        ({"logit_bias": {5: 10**400}}, "logit_bias"),
        ({"logit_bias": [(1, 2)]}, "logit_bias is of type list"),
        ({"template_arguments": {1: 2}}, "template_arguments"),
        ({"json_schema": {}, "regex": "a"}, "json_schema and regex"),
        ({"json_schema": "", "grammar": ""}, "json_schema and grammar"),
        ({"regex": ""}, "regular expression"),
    ],
)
def test_a_wrong_option_is_named(options, complaint):
    session, *_ = session_of()
    with pytest.raises(BadSetting, match=complaint):
        session.run("hi", **options)


def scored(**options):
    session, *_ = session_of(end=False)
    events = list(session.stream("hello there", **GREEDY, max_tokens=30, **options))
    (reply,) = (event.reply for event in events if isinstance(event, Finished))
    return reply, [token for event in events if isinstance(event, Scores) for token in event.tokens]


def test_drafted_and_plain_replies_have_the_same_scores_and_a_greedy_token_is_the_likeliest():
    reply, scores = scored(logprobs=3)
    assert reply.stats.accepted > 0
    assert len(scores) == len(reply.tokens) == 30
    assert scores == scored(logprobs=3, speculate=False)[1]
    assert "".join(bytes(score.chosen.piece).decode() for score in scores) == reply.text
    for score in scores:
        found = [likelihood.logprob for likelihood in score.alternatives]
        assert score.alternatives[0] == score.chosen
        assert found == sorted(found, reverse=True)
        assert max(found) <= 0


def test_nothing_is_scored_unasked_and_no_more_than_can_be():
    assert scored()[1] == []
    assert scored(logprobs=0)[1][0].alternatives == ()
    with pytest.raises(BadSetting, match="logprobs is 21"):
        scored(logprobs=21)


def test_log_softmax_and_the_largest():
    logits = np.array([1.0, 3.0, 3.0, -np.inf], dtype=np.float32)
    assert np.exp(log_softmax(logits)).sum() == pytest.approx(1.0)
    assert top(logits, 3) == [1, 2, 0]
    assert top(logits, 0) == []


@pytest.mark.parametrize(
    ("trained", "loops", "hint"),
    [
        (None, False, "; load the pair with a larger context (--context)"),
        (4096, False, "; load the pair with a larger context (--context)"),
        (64, False, ""),
        (4096, True, "; it repeats itself, and --max-tokens (-n) limits it"),
    ],
)
def test_a_larger_context_is_advised_where_the_model_has_one_and_does_not_loop(trained, loops, hint):
    session, *_ = session_of(end=False, capacity=64)
    pair = dataclasses.replace(session.pair, trained_context=trained)
    bias = {"logit_bias": {5: 100.0}} if loops else {}
    events = list(Session(pair).stream_complete("abc", **GREEDY, **bias))
    (full,) = [event.text for event in events if isinstance(event, Notice) and " is full" in event.text]
    assert full == f"the context of 64 tokens is full, so the reply was cut off{hint}"
