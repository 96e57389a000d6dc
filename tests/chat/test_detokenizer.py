import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.text import Detokenizer
from tests.chat.toys import ToyVocabulary, byte_tokens


def read(tokens, vocabulary=None, **options):
    detokenizer = Detokenizer(vocabulary or ToyVocabulary(), **options)
    return [detokenizer.push(token) for token in tokens], detokenizer.flush()


def test_an_emoji_over_four_tokens_comes_whole():
    assert read(byte_tokens("a😀b".encode())) == (["a", "", "", "", "😀", "b"], "")


def test_bytes_become_a_replacement_only_when_nothing_can_save_them():
    assert read(byte_tokens(b"\xf0\x9fA")) == (["", "", "\ufffdA"], "")
    assert read(byte_tokens(b"\xff")) == (["\ufffd"], "")
    assert read(byte_tokens(b"\xe2\x82")) == (["", ""], "\ufffd")


@given(st.binary(max_size=40))
def test_any_bytes_read_one_by_one_give_what_decoding_them_together_gives(raw):
    pieces, rest = read(byte_tokens(raw))
    assert "".join(pieces) + rest == raw.decode(errors="replace")


@given(st.binary(max_size=40))
def test_nothing_is_held_longer_than_a_character_needs(raw):
    detokenizer = Detokenizer(ToyVocabulary())
    for end, token in enumerate(byte_tokens(raw), start=1):
        detokenizer.push(token)
        assert len(detokenizer._decoder.getstate()[0]) <= 3, raw[:end]


def test_the_space_before_the_first_word_belongs_to_sentencepiece_not_to_the_text():
    spm = ToyVocabulary(space_prefix=True)
    hello = [ord(c) for c in "  hi you"]
    assert read(hello, spm)[0] == ["", *" hi you"]
    assert read(hello, spm, starts_text=False)[0] == [*"  hi you"]
    assert read(hello)[0] == [*"  hi you"]


@pytest.mark.parametrize("visible", [False, True])
def test_control_tokens_are_shown_only_when_asked_for(visible):
    vocabulary = ToyVocabulary()
    end = vocabulary.control_texts()["<|im_end|>"]
    shown = {end: "<|im_end|>"} if visible else {}
    assert read([ord("a"), end], vocabulary, visible=shown)[0] == ["a", "<|im_end|>" if visible else ""]
