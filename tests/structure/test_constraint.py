"""A constraint equals a fresh one at any text; replies held to one are complete or marked as cut."""

import json
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.errors import BadSetting
from localspec.events import Cycle, FinishReason, Notice, Piece
from localspec.sampler.chain import Chain
from localspec.sampler.passes import Candidates
from localspec.sampler.sampling import Sampling
from localspec.structure.constraint import SPARE, Constrained, GrammarTokens, Mask, on_deep_stack
from localspec.structure.grammar import FENCE, FENCE_END, json_grammar, regex_grammar
from tests.structure.characters import SYMBOLS, TEMPLATE, Characters, scripted_session, session_of

VOCABULARY = Characters()
TOKENS = GrammarTokens(VOCABULARY)
MEMBERS = {"name": {"type": "string", "maxLength": 4}, "kind": {"enum": ["cat", "cow"]}}
RECORD = json_grammar({"type": "object", "properties": MEMBERS, "required": ["name", "kind"]}, compact=True)
PROMPT = [9, 8, 7]
END = 0


def constraint(grammar=RECORD):
    return Constrained(TOKENS.matcher(grammar), grammar.name, TOKENS, start=len(PROMPT))


def allowed(constrained, text):
    """The tokens that may follow, as a set."""
    return kept(constrained.permitted(np.zeros(TOKENS.size, np.float32), [*PROMPT, *text]))


def kept(row):
    return set(row.ids.tolist() if isinstance(row, Candidates) else np.flatnonzero(np.isfinite(row)).tolist())


def written(text):
    return [SYMBOLS.index(c) for c in text]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_walk_forward_and_back_ends_where_a_fresh_constraint_stands(data):
    walker, text, settled = constraint(), [], 0
    for _ in range(data.draw(st.integers(1, 12))):
        keep = data.draw(st.integers(settled, len(text)))
        text = text[:keep]
        for _ in range(data.draw(st.integers(0, 5))):
            choices = sorted(allowed(walker, text))
            if not choices or END in text:
                break
            text.append(data.draw(st.sampled_from(choices)))
        if data.draw(st.booleans()):
            walker.valid([*PROMPT, *text], written("}{x"))  # a drafter that knows no grammar
        if data.draw(st.booleans()):
            walker.settle([*PROMPT, *text])
            settled = len(text)
        fresh = constraint()
        assert walker.forced([*PROMPT, *text]) == fresh.forced([*PROMPT, *text])
        assert allowed(walker, text) == allowed(constraint(), text)


def test_every_forced_token_is_the_only_one_that_its_mask_allows():
    checked, text = constraint(), []
    random = np.random.default_rng(4)
    while not checked.finished:
        forced = checked.forced([*PROMPT, *text])
        for token in forced:
            assert allowed(checked, text) == {token}
            text.append(token)
        text.append(int(random.choice(sorted(allowed(checked, text)))))
        checked.settle([*PROMPT, *text])
    assert len(text) > 20


def test_the_whole_frame_of_a_record_is_forced():
    begun = constraint()
    assert begun.forced(PROMPT) == written('{"name":"')
    assert begun.forced([*PROMPT, *written('{"name":"Ann"')]) == written(',"kind":"c')
    assert begun.forced([*PROMPT, *written('{"name":"Ann","kind":"co')]) == written('w"}')


class TaggedCharacters(Characters):
    """Characters, a tag that is one token although it is text, and a token that goes on behind a tag's end."""

    tag, size = Characters.size, Characters.size + 2

    def tokenize(self, text, *, parse_special, add_special=False):
        before, found, after = text.partition("</call>")
        rest = [self.tag, *self.tokenize(after, parse_special=False)] if found else []
        return super().tokenize(before, parse_special=parse_special) + rest

    def piece(self, token):
        return {self.tag: b"</call>", self.tag + 1: b">b"}.get(token) or super().piece(token)

    def special_tokens(self):
        return {**super().special_tokens(), "</call>": self.tag}


def test_a_tag_that_is_one_token_is_not_spelled_where_it_must_follow():
    tokens = GrammarTokens(TaggedCharacters())
    for pattern, begun, alone in ((r"a</call>b?", "a", True), (r"a(</call>|<b>)", "a", False)):
        followed = Constrained(tokens.matcher(regex_grammar(pattern)), "it", tokens, start=0)
        found = followed.mask(written(begun)).allowed
        assert found[TaggedCharacters.tag]
        assert found[SYMBOLS.index("<")] != alone
        assert followed.valid([], [*written("a"), TaggedCharacters.tag]) == 2
        assert followed.valid([], written("a")) == 1


def test_outside_the_grammar_nothing_is_reported_and_the_way_back_is_found():
    lost = constraint()
    row = np.arange(TOKENS.size, dtype=np.float32)
    assert lost.permitted(row, [*PROMPT, *written('{"nope"')]) is row
    assert lost.valid([*PROMPT, *written('{"na')], written("me?x")) == 2
    assert lost.forced([*PROMPT, *written('{"na')]) == written('me":"')


def test_an_end_comes_where_the_text_is_complete_and_can_be_taken_back():
    done = constraint(regex_grammar("ab+"))
    assert END not in allowed(done, written("a"))
    assert allowed(done, written("abb")) == {END, *written("b")}
    done.valid(PROMPT, [*written("ab"), END])
    assert done.complete
    assert done.forced([*PROMPT, *written("ab"), END]) == []
    assert allowed(done, written("ab")) == {END, *written("b")}
    done.settle([*PROMPT, *written("ab")])
    assert done.complete
    assert not done.finished


def test_masks_are_kept_for_the_texts_that_the_draft_has_passed(monkeypatch):
    counted = constraint()
    computed = []
    original = Constrained._mask
    monkeypatch.setattr(Constrained, "_mask", lambda self: computed.append(1) or original(self))
    texts = [written('{"name":"' + "x" * n) for n in range(4)]
    for text in texts:
        allowed(counted, text)
    for text in texts:
        allowed(counted, text)
    assert len(computed) == len(texts)


@pytest.mark.parametrize("few", [True, False])
def test_a_draft_row_may_be_shorter_or_longer_than_the_vocabulary(few):
    bits = np.zeros(10, bool)
    bits[[2, 9]] = True
    mask = Mask(bits, np.flatnonzero(bits) if few else None)
    assert kept(mask.applied(np.zeros(12, np.float32))) == {2, 9}
    assert kept(mask.applied(np.zeros(6, np.float32))) == {2}


def test_no_end_before_the_text_is_complete():
    assert constraint().valid(PROMPT, [*written('{"name"'), END]) == len('{"name"')
    assert constraint(regex_grammar("ab+")).valid(PROMPT, [*written("ab"), END, END]) == 3


def test_no_more_masks_are_kept_than_a_verify_batch_has_tokens():
    walker = constraint(regex_grammar("[a-z ]*"))
    history = list(PROMPT)
    for _ in range(60):
        walker.settle(history)
        drafted = written("abcdefgh")
        for count in range(len(drafted) + 1):
            walker.permitted(np.zeros(TOKENS.size, np.float32), [*history, *drafted[:count]])
        kept = [mask for mask in walker._masks if mask is not None]
        assert len(kept) <= len(drafted) + 1
        history += drafted[:3]


def test_grammars_of_several_replies_leave_the_stacks_of_later_threads_alone():
    before, interval = threading.stack_size(), sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as replies:
            found = list(replies.map(lambda number: on_deep_stack(lambda: number), range(1500)))
    finally:
        sys.setswitchinterval(interval)
    assert found == list(range(1500))
    assert threading.stack_size() == before


class Masking:
    """A constraint with one mask at every text; it records the rows that were masked whole."""

    whole_rows = True

    def __init__(self, allowed, *, few):
        self.mask, self.whole = Mask(allowed, np.flatnonzero(allowed) if few else None), []

    def allows(self, token, history):
        return self.mask.allowed[token]

    def permitted(self, row, history):
        if not isinstance(row, Candidates):
            self.whole.append(row)
        return self.mask.applied(row)


@given(
    seed=st.integers(0, 2**32),
    share=st.sampled_from([0.003, 0.05, 0.5, 0.95, 1.0]),
    levels=st.sampled_from([3, 50, 10**6]),
    top_k=st.sampled_from([0, 1, 40]),
    penalty=st.sampled_from([1.0, 1.3]),
    few=st.booleans(),
)
@settings(deadline=None)
def test_masking_the_likely_tokens_gives_what_masking_the_whole_row_gives(
    seed, share, levels, top_k, penalty, few
):
    random = np.random.default_rng(seed)
    row = random.integers(0, levels, 5000).astype(np.float32) * np.float32(12 / levels)
    bits = random.random(5000) < share
    bits[random.integers(5000)] = True
    masked, history = np.where(bits, row, np.float32(-np.inf)), list(range(70))
    for temperature in (0.0, 0.8):
        sampling = Sampling(temperature=temperature, top_k=top_k, repeat_penalty=penalty)
        found, wanted = Chain(sampling, Masking(bits, few=few)), Chain(sampling)
        assert found.best(row, history) == wanted.best(masked, history)
        token, confidence = found.likeliest(row, history)
        assert (token, confidence) == (wanted.best(masked, history), pytest.approx(confidence))
        if temperature:
            one, other = found.distribution(row, history), wanted.distribution(masked, history)
            assert one.ids.tolist() == other.ids.tolist()
            assert one.probabilities == pytest.approx(other.probabilities, rel=1e-6)


def test_a_row_is_masked_whole_only_where_its_likely_tokens_are_forbidden():
    row, bits = np.linspace(0, 9, 5000, dtype=np.float32), np.ones(5000, bool)
    for sampling in (Sampling(), Sampling(temperature=0.0)):
        masking = Masking(bits, few=False)
        chain = Chain(sampling, masking)
        read = chain.best if sampling.greedy else chain.distribution
        read(row, [])
        assert not masking.whole
        masking.mask.allowed[-2000:] = False
        read(row, [])
        assert len(masking.whole) == 1
        bits[:] = True


GREEDY = {"temperature": 0}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
}
CUT = "the reply was cut off before it matched the JSON schema"
CLOSED = "the reply came near its limit of tokens, so its JSON was closed early"
THINKS = TEMPLATE + "{# <think> </think> #}"


def notices(events):
    return [event.text for event in events if isinstance(event, Notice)]


def test_plain_and_speculative_replies_are_the_same_and_valid():
    for seed in range(15):
        fast = session_of(seed).run("a person", json_schema=PERSON, max_tokens=300, **GREEDY)
        slow = session_of(seed).run("a person", json_schema=PERSON, max_tokens=300, speculate=False, **GREEDY)
        assert fast.tokens == slow.tokens
        jsonschema.validate(json.loads(fast.text), PERSON)
        assert fast.stats.from_grammar >= 4
        assert slow.stats.from_grammar == slow.stats.drafted == 0


def test_every_length_is_either_a_valid_beginning_that_says_so_or_complete():
    tokens = GrammarTokens(Characters())
    whole = session_of().run("a person", json_schema=PERSON, **GREEDY)
    for count in range(1, len(whole.tokens) + 1):
        events = list(session_of().stream("a person", json_schema=PERSON, max_tokens=count, **GREEDY))
        reply = events[-1].reply
        accepted = tokens.matcher(json_grammar(PERSON)).try_consume_tokens(list(reply.tokens))
        assert accepted == sum(token not in tokens.ends for token in reply.tokens)
        assert reply.finish_reason is FinishReason.LENGTH
        if count < len('{"name":"","age":0}') or CUT in notices(events):
            assert reply.tokens == whole.tokens[:count]
            assert CUT in notices(events)


@pytest.mark.parametrize("written", ['{"name": "`A`", "age": 3}', '{\n  "name": "A",\n  "age": 3\n}'])
def test_a_fence_around_json_is_no_part_of_the_reply(written):
    for text in (written, f"{FENCE}{written}{FENCE_END}"):
        session = scripted_session(text)
        for most in (None, *range(len(text))):
            session.reset()
            events = list(session.stream("who?", json_schema=PERSON, max_tokens=most or None))
            reply = events[-1].reply
            assert "".join(e.text for e in events if isinstance(e, Piece)) == reply.text
            assert written.startswith(reply.text) or reply.text.endswith("}")
            if most is None:
                assert (reply.text, session.messages[-1].content) == (written, written)
                assert len(reply.tokens) == len(text) + 1
    assert scripted_session(f"{FENCE}{written}").run("who?", regex=r"(?s:.)*").text == FENCE + written
    raw = scripted_session(f"{FENCE}{written}{FENCE_END}").complete("who?|", json_schema=PERSON)
    assert raw.text == written


@pytest.mark.parametrize("speculate", [True, False])
@pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=pytest.mark.nightly)])
def test_json_is_closed_before_the_limit_cuts_it_and_says_so(seed, speculate):
    options = {"json_schema": PERSON, "speculate": speculate, **GREEDY}
    whole = session_of(seed).run("a person", **options)
    for count in range(40, len(whole.tokens) + SPARE + 2):
        events = list(session_of(seed).stream("a person", max_tokens=count, **options))
        reply, closed = events[-1].reply, CLOSED in notices(events)
        jsonschema.validate(json.loads(reply.text), PERSON)
        assert reply.finish_reason is (FinishReason.LENGTH if closed else FinishReason.STOP)
        assert closed <= (count <= len(whole.tokens) + SPARE)
        assert closed or reply.text == whole.text
        assert not reply.unmatched


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
    session = scripted_session('<think>hm</think>{"name":"Bo","age":7}', template)
    reply = session.run("who?", json_schema=PERSON)
    assert (reply.reasoning, reply.text) == ("hm", '{"name":"Bo","age":7}')
