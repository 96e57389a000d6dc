"""Loading model files: facts, settings, and every way in which a file can be bad."""

import os
import sys

import pytest

from localspec.errors import BadModelFile, BadSetting
from localspec.llama.context import Context
from localspec.llama.devices import default_gpu
from localspec.llama.model import Model


def test_a_model_knows_its_facts(load):
    model = load(name="Tiny Llama", layers=3, embedding=64, vocab_size=300, context_length=4096)
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


@pytest.mark.parametrize(
    ("architecture", "steps_back"), [("mamba", False), ("lfm2", False), ("gemma2", True)]
)
def test_models_whose_state_cannot_step_back_say_so(load, architecture, steps_back):
    assert load(architecture=architecture).can_roll_back == steps_back


def test_a_draft_with_little_noise_agrees_with_its_target(context, tokens):
    """What the test library's `noise` is for."""
    target, near, far = context(), context(noise=0.02), context(noise=1.0)

    def agreement(draft):
        kept = [
            target.decode([t], 1).rows[0].argmax() == draft.decode([t], 1).rows[0].argmax()
            for t in tokens(100)
        ]
        target.rollback(0)
        return sum(kept)

    assert agreement(near) > 70 > 30 > agreement(far)


def test_an_unknown_device_is_named_with_those_that_are_there(tiny_gguf):
    with pytest.raises(BadSetting, match="no device called CUDA99") as caught:
        Model(tiny_gguf(), devices=("CUDA99",))
    assert "CPU" in caught.value.hint


def test_the_cpu_can_be_asked_for_in_any_case(tiny_gguf):
    with Model(tiny_gguf(), devices=("cpu",)), Model(tiny_gguf(), devices=("CPU",), gpu_layers=0):
        pass


def test_layers_for_a_gpu_that_is_not_used_are_refused(tiny_gguf):
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
        "a version from the future": (
            good[:4] + b"\x09\0\0\0" + good[8:],
            "cannot load bad.gguf",
        ),
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


def test_a_model_can_be_loaded_again_after_a_bad_one(tmp_path, tiny_gguf):
    (tmp_path / "bad.gguf").write_bytes(b"nothing")
    with pytest.raises(BadModelFile):
        Model(tmp_path / "bad.gguf")
    with Model(tiny_gguf()) as model:
        assert model.vocab.size == 512
