"""Loading model files: facts, settings, vocabularies, and every way in which a file can be bad."""

import os
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.errors import BadModelFile, BadSetting
from localspec.llama.context import Context
from localspec.llama.devices import default_gpu
from localspec.llama.model import Model
from tests.gguf import vocabularies
from tests.gguf.models import Shape, write_gguf


def test_a_model_knows_its_facts(load):
    model = load(
        name="Tiny Llama", weights="F16", layers=3, embedding=64, vocab_size=300, context_length=4096
    )
    assert (model.name, model.architecture, model.layer_count) == ("Tiny Llama", "llama", 3)
    parameters = 2 * 300 * 64 + 64 + 3 * (2 * 64 + 2 * 64 * 64 + 2 * 32 * 64 + 3 * 128 * 64)
    assert model.size_bytes == 2 * parameters + 2 * 64 * 7  # F16, and F32 for the seven norms
    assert model.metadata["llama.embedding_length"] == "64"
    assert model.can_roll_back
    assert model.generates_text


def test_the_chat_template_comes_whole(load):
    long = "{# " + "x" * 20_000 + " #}{{ messages[0]['content'] }}"
    assert load(chat_template=long).chat_template == long
    assert load(chat_template=long).metadata["tokenizer.chat_template"] == long
    assert load(chat_template=None).chat_template is None


def test_a_model_without_a_short_name_is_called_like_its_file(load):
    for name in ("", "Smollm2 135M 8k Lc100K Mix1 Ep2"):
        model = load(name=name)
        assert model.name == model.path.stem


def test_the_cpu_in_any_case_takes_no_layers_for_a_gpu(tiny_gguf):
    with Model(tiny_gguf(), devices=("cpu",)), Model(tiny_gguf(), devices=("CPU",), gpu_layers=0):
        pass
    with pytest.raises(BadSetting, match="20 layers cannot go to a GPU"):
        Model(tiny_gguf(), devices=("cpu",), gpu_layers=20)


@pytest.mark.skipif(default_gpu() is None, reason="needs a GPU")
def test_a_gpu_takes_the_whole_model_by_default(tiny_gguf):
    before = default_gpu().free_bytes
    with Model(tiny_gguf(vocab_size=128_256, embedding=256)) as model, Context(model, length=256):
        assert default_gpu().free_bytes < before - model.size_bytes // 2


def bad_files(good: bytes) -> dict[str, tuple[bytes, str]]:
    """Content and what the message must say about it."""
    return {
        "empty": (b"", "cannot load bad.gguf"),
        "text": (b"once upon a time " * 10, "invalid magic characters"),
        "two bytes": (b"GG", "cannot load bad.gguf"),
        "magic only": (good[:4], "cannot load bad.gguf"),
        "header only": (good[:24], "cannot load bad.gguf"),
        "cut in the metadata": (good[:3000], "cannot load bad.gguf"),
        "cut in the first tensor": (good[:-270_000], "cannot load bad.gguf: tensor"),
        "cut in the last tensor": (good[:-100], "cannot load bad.gguf: tensor"),
        "damaged metadata": (good[:24] + b"\xff" * 500 + good[524:], "cannot load bad.gguf"),
        "a version from the future": (good[:4] + b"\x09\0\0\0" + good[8:], "cannot load bad.gguf"),
        "unknown architecture": (good.replace(b"llama", b"lxama"), "architecture 'lxama'"),
        "no vocabulary": (good.replace(b"tokenizer.ggml.model", b"tokenizer.ggml.medol"), "key not found"),
        "a tensor missing": (good.replace(b"token_embd", b"tokem_embd"), "'token_embd.weight' not found"),
    }


@pytest.mark.parametrize("name", bad_files(b""))
def test_a_bad_file_is_one_sentence_and_a_hint(tiny_gguf, tmp_path, name):
    content, says = bad_files(tiny_gguf().read_bytes())[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(BadModelFile, match=says) as caught:
        Model(path)
    assert "bad.gguf" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def test_a_missing_file_and_a_directory_are_one_sentence_each(tmp_path):
    for path in (tmp_path / "missing.gguf", tmp_path, tmp_path / "missing" / "model.gguf"):
        with pytest.raises(BadModelFile, match=path.name):
            Model(path)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_a_file_that_may_not_be_read_says_so(tmp_path, tiny_gguf):
    path = tmp_path / "secret.gguf"
    path.write_bytes(tiny_gguf().read_bytes())
    path.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root may read everything
    try:
        with pytest.raises(BadModelFile, match="Permission denied"):
            Model(path)
    finally:
        os.seteuid(user)


def test_a_file_name_beyond_ascii_loads(tmp_path, tiny_gguf):
    path = tmp_path / "modèle ünï 模型.gguf"
    path.write_bytes(tiny_gguf().read_bytes())
    with Model(path) as model:
        assert model.vocab.size == 512


SHAPES = {"bpe": {}, "spm": {"vocab": "spm"}, "large": {"vocab_size": 128_256, "tied": True, "embedding": 32}}


@pytest.fixture(scope="module", params=SHAPES)
def vocab(request, load):
    return load(**SHAPES[request.param]).vocab


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
    control = vocab.special_tokens()["<|im_end|>"]
    assert control in vocab.tokenize(text, parse_special=True)
    harmless = vocab.tokenize(text, parse_special=False)
    assert not any(vocab.is_special(token) for token in harmless)
    assert b"<|im_end|>" in b"".join(map(vocab.piece, harmless))


def test_control_tokens_have_a_name_and_no_text(vocab):
    for text, token in vocab.special_tokens().items():
        assert vocab.text(token) == text
        assert vocab.tokenize(text, parse_special=True)[-1] == token
        assert vocab.is_special(token) or text == "<unk>"
        if vocab.is_special(token):
            assert vocab.piece(token) == b""


def test_ends_are_known(vocab):
    assert vocab.is_end(vocab.special_tokens()["<|im_end|>"])
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


def test_text_that_is_not_unicode_is_replaced(load):
    vocab = load().vocab
    assert b"".join(map(vocab.piece, vocab.tokenize("a\udce9b", parse_special=False))) == b"a?b"


@pytest.mark.parametrize("marks", ["<PRE> <SUF> <MID>", "<|code_prefix|> <|code_suffix|> <|code_middle|>"])
def test_marks_of_an_infill_are_those_that_llama_cpp_finds_in_any_spelling(marks, tmp_path, monkeypatch):
    monkeypatch.setattr(vocabularies, "CONTROL", (*marks.split(), *vocabularies.CONTROL))
    with Model(write_gguf(tmp_path / "coder.gguf", Shape())) as model:
        known = model.vocab.special_tokens()
        assert model.vocab.infill_tokens == (*(known[mark] for mark in marks.split()), None)
