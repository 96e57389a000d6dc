"""A text in another vocabulary's words: the same bytes, whatever was translated before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.drafters.other_vocabulary import Translation


class Pieces:
    """A vocabulary of these pieces; a text is cut into the longest ones. Token 0 is a control token."""

    def __init__(self, *pieces, add_bos=False):
        self.pieces = [b"", *(piece.encode() if isinstance(piece, str) else piece for piece in pieces)]
        self.bos, self.add_bos = 0, add_bos

    def tokenize(self, text, *, parse_special, add_special=False):
        raw, found = text.encode(), []
        while raw:
            fitting = [i for i, piece in enumerate(self.pieces) if piece and raw.startswith(piece)]
            found.append(max(fitting, key=lambda i: len(self.pieces[i])))
            raw = raw[len(self.pieces[found[-1]]) :]
        return found

    def piece(self, token):
        return self.pieces[token]

    def is_control(self, token):
        return token == 0


EURO = "€".encode()
BYTES = [EURO[i : i + 1] for i in range(3)]
ANY_BYTE = [bytes([byte]) for byte in range(256)]
TARGET = Pieces("a", "b", "ab", " ", " a", " b", " ab", "  ", "ba", *BYTES)
DRAFT = Pieces("a", "b", " ", "bb", "a b", " abb", "aa", " b", "€", "\ufffd", *ANY_BYTE)
TOKENS = st.lists(st.integers(0, len(TARGET.pieces) - 1), max_size=120)


def translated(*parts, draft=DRAFT, shared=()):
    translation = Translation(draft, TARGET, dict(shared))
    for part in parts:
        translation.extend(part)
    return translation


def said(translation, count=None):
    words = translation.words if count is None else translation.words[: translation.reach(count)]
    return b"".join(map(DRAFT.piece, words))


def text_of(tokens):
    return b"".join(map(TARGET.piece, tokens))


@given(TOKENS, st.lists(st.integers(1, 9), max_size=30))
def test_the_words_say_what_the_tokens_say_however_the_text_grew(tokens, steps):
    translation, at = translated(), 0
    for step in [*steps, len(tokens)]:
        whole = translation.extend(tokens[at : at + step]) if tokens[at : at + step] else True
        at = min(at + step, len(tokens))
        assert translation.tokens == tokens[:at]
        text = text_of(tokens[:at]).decode("utf-8", "replace")
        if whole:
            assert said(translation).decode().replace("\ufffd", "") == text.replace("\ufffd", "")


@given(TOKENS, TOKENS, st.integers(0, 120))
def test_a_text_that_was_cut_and_goes_on_otherwise_says_what_it_is_now(before, after, keep):
    tokens = [token for token in before if token < 10]
    after = [token for token in after if token < 10] + [1]
    translation = translated(tokens)
    translation.cut(keep)
    translation.extend([*tokens[:keep], *after][len(translation.tokens) :])
    assert said(translation) == text_of([*tokens[:keep], *after])
    for count in range(len(translation.tokens) + 1):
        assert said(translation, count).startswith(text_of(translation.tokens[:count]))


@given(TOKENS, st.integers(0, 200))
def test_so_many_tokens_are_said_by_so_many_words(tokens, words):
    translation = translated([token for token in tokens if token < 10])
    count = translation.said(words)
    assert translation.reach(count) <= words
    assert count == len(translation.tokens) or translation.reach(count + 1) > words


def test_only_the_end_is_tokenised_anew():
    translation = translated([5, 6, 7] * 40)
    calls = []
    DRAFT_tokenize = DRAFT.tokenize
    translation._draft = type(
        "Counting",
        (),
        {
            "tokenize": lambda _, text, **kind: calls.append(text) or DRAFT_tokenize(text, **kind),
            "piece": DRAFT.piece,
            "add_bos": False,
            "bos": None,
        },
    )()
    before = list(translation.words)
    translation.extend([2])
    assert [len(text) < 12 for text in calls] == [True]
    assert translation.words[: translation.stable] == before[: translation.stable]
    assert translation.stable >= len(before) - 4


@pytest.mark.parametrize(
    ("parts", "whole"), [([BYTES], True), ([BYTES[:2]], False), ([BYTES[:1], BYTES[1:]], True)]
)
def test_a_text_inside_a_character_says_nothing_of_it(parts, whole):
    translation = translated([1])
    for part in parts:
        is_whole = translation.extend([TARGET.pieces.index(byte) for byte in part])
    assert is_whole == whole
    assert said(translation) == (b"a" + EURO if whole else b"a")


def test_control_tokens_are_said_by_the_drafts_own_or_passed_over():
    assert translated([1, 0, 2]).words == [1, 2]
    assert translated([1, 0, 2], shared={0: 0}.items()).words == [1, 0, 2]


def test_a_draft_that_wants_a_beginning_gets_one():
    draft = Pieces("a", "b", " ", add_bos=True)
    assert translated([1, 2], draft=draft).words == [0, 1, 2]
    assert translated([0, 1, 2], draft=draft, shared={0: 0}.items()).words == [0, 1, 2]
    assert translated([1], [2], draft=draft).words == [0, 1, 2]
