"""A constraint at any text of a reply equals a fresh one that was told that text and nothing else."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.sampler.passes import Candidates
from localspec.structure.constraint import Constrained, GrammarTokens, Mask
from localspec.structure.grammar import json_grammar, regex_grammar
from tests.structure.toys import SYMBOLS, Characters

VOCABULARY = Characters()
TOKENS = GrammarTokens(VOCABULARY)
RECORD = json_grammar(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 4}, "kind": {"enum": ["cat", "cow"]}},
        "required": ["name", "kind"],
    }
)
PROMPT = [9, 8, 7]
END = 0


def constraint(grammar=RECORD):
    return Constrained(
        TOKENS.matcher(grammar), grammar.name, size=TOKENS.size, ends=TOKENS.ends, start=len(PROMPT)
    )


def allowed(constrained, text):
    """The tokens that may follow, as a set."""
    row = constrained.permitted(np.zeros(TOKENS.size, np.float32), [*PROMPT, *text])
    return set(row.ids.tolist() if isinstance(row, Candidates) else np.flatnonzero(np.isfinite(row)).tolist())


def written(text):
    return [SYMBOLS.index(c) for c in text]


@settings(max_examples=60, deadline=None)
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


def test_outside_the_grammar_nothing_is_said_and_the_way_back_is_found():
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


def kept(row):
    return (
        set(row.ids.tolist())
        if isinstance(row, Candidates)
        else set(np.flatnonzero(np.isfinite(row)).tolist())
    )


def test_a_mask_belongs_to_a_text_and_not_to_its_length():
    changing = constraint()
    begun = '{"name":"Ann","kind":"c'
    assert allowed(changing, written(begun + "a")) == set(written("t"))
    assert allowed(changing, written(begun + "o")) == set(written("w"))
    assert allowed(changing, written(begun + "a")) == set(written("t"))


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
