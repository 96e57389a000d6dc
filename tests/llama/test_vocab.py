"""Tokens and text, in both tokenizer families."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

SHAPES = {"bpe": {}, "spm": {"vocab": "spm"}, "large": {"vocab_size": 128_256, "tied": True, "embedding": 32}}


@pytest.fixture(scope="module", params=SHAPES)
def vocab(request, load):
    return load(**SHAPES[request.param]).vocab


@pytest.mark.parametrize(
    "text", ["", "hello world", "  two  spaces\n", "héllo 🎉 漢字", "\x00\x01 odd", "a" * 5000]
)
def test_tokens_give_their_text_back(vocab, text):
    tokens = vocab.tokenize(text, parse_special=False)
    space = " " if vocab.type == "spm" and text else ""  # SentencePiece puts one in front of every text
    assert b"".join(map(vocab.piece, tokens)).decode() == space + text


def test_any_text_survives_the_round_trip(load):
    vocab = load().vocab

    @settings(max_examples=200)
    @given(st.text())
    def check(text):
        pieces = b"".join(map(vocab.piece, vocab.tokenize(text, parse_special=False)))
        assert pieces == text.encode()

    check()


def test_text_can_become_a_control_token_only_when_asked(vocab):
    text = "a<|im_end|>b"
    control = vocab.control_texts()["<|im_end|>"]
    assert control in vocab.tokenize(text, parse_special=True)
    harmless = vocab.tokenize(text, parse_special=False)
    assert not any(vocab.is_control(token) for token in harmless)
    assert b"<|im_end|>" in b"".join(map(vocab.piece, harmless))


def test_control_tokens_have_a_name_and_no_text(vocab):
    for text, token in vocab.control_texts().items():
        assert vocab.text(token) == text
        assert vocab.is_control(token) or text == "<unk>"
        if vocab.is_control(token):
            assert vocab.piece(token) == b""


def test_every_control_text_is_what_tokenising_recognises(vocab):
    for text, token in vocab.control_texts().items():
        assert vocab.tokenize(text, parse_special=True)[-1] == token


def test_ends_are_known(vocab):
    assert vocab.is_end(vocab.control_texts()["<|im_end|>"])
    assert vocab.is_end(vocab.eos)
    assert not vocab.is_end(5)


@pytest.mark.parametrize("family", ["bpe", "spm"])
def test_bos_is_added_when_asked_and_the_file_says_so(load, family):
    with_bos, without = load(vocab=family, add_bos=True).vocab, load(vocab=family).vocab
    assert (with_bos.add_bos, without.add_bos) == (True, False)
    assert with_bos.tokenize("hi", parse_special=False, add_special=True)[0] == with_bos.bos
    assert with_bos.tokenize("hi", parse_special=False)[0] != with_bos.bos
    assert without.bos not in without.tokenize("hi", parse_special=False, add_special=True)


def test_sizes_and_types(load):
    assert (load().vocab.size, load().vocab.type) == (512, "bpe")
    assert (load(**SHAPES["large"]).vocab.size, load(vocab="spm").vocab.type) == (128_256, "spm")


def test_every_one_of_128256_tokens_has_a_piece_and_a_name(load):
    vocab = load(**SHAPES["large"]).vocab
    pieces = {vocab.piece(token) for token in range(vocab.size)}
    assert len(pieces) == vocab.size - 2  # the three control tokens share b""
    assert all(vocab.text(token) for token in range(0, vocab.size, 1000))


@pytest.mark.parametrize("token", [-1, 512])
def test_a_token_outside_the_vocabulary_is_our_own_bug(load, token):
    with pytest.raises(AssertionError):
        load().vocab.piece(token)
    with pytest.raises(AssertionError):
        load().vocab.text(token)


def test_text_that_is_not_unicode_is_replaced(load):
    vocab = load().vocab
    assert b"".join(map(vocab.piece, vocab.tokenize("a\udce9b", parse_special=False))) == b"a?b"
