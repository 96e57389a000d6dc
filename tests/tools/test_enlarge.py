"""An enlarged model says what the small one says."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from localspec.demo import draft_path, target_path
from localspec.gguf.enlarging import Shape, SmallModel
from localspec.gguf.header import header_at
from localspec.gguf.trimmed import tensor_at
from localspec.loading.memory import LoadChoices
from localspec.loading.plan import plan_for
from localspec.models.registry import named
from tools.demo.lowlevel import Model
from tools.enlarge import UnfitError, enlarge

PROMPT = "<|im_start|>user\nWhat is speculative decoding?<|im_end|>\n<|im_start|>assistant\n"
TEXT = PROMPT + "A small model guesses. 12 + 7 = 19, and `def f(x): return x` is Python."
WIDE = Shape(width=320, layers=6, heads=8, kv_heads=4, head_width=64, ffn=640, vocab=2700)
WIDE_HEADS = Shape(width=320, layers=5, heads=4, kv_heads=4, head_width=128, ffn=576, vocab=2560)
WHOLE_BLOCKS = Shape(width=512, layers=5, heads=8, kv_heads=4, head_width=64, ffn=768, vocab=2700)

# Half precision and q8_0 round activations too, and what is rounded differs by a last bit between the shapes: f16 by up
# to 0.0204 on a processor with SSE4.2 only.
BOUND = {"f32": 0.01, "f16": 0.05, "q8_0": 0.5, "q4_0": 0.5}


def read(path: Path, answer_tokens: int = 0) -> tuple[np.ndarray, str]:
    """Logits over a text, and the beginning of the greedy answer to a question."""
    with Model(path, exact=True) as model:
        tokens = model.tokens(TEXT)
        return model.logits(tokens), model.greedy(PROMPT, limit=answer_tokens)


def test_a_tool_leaves_llama_cpps_log_to_memory_plans(home):
    plan_for(named("demo"), LoadChoices(context_length=784))
    with Model(target_path()):
        pass
    plan = plan_for(named("demo"), LoadChoices(context_length=800))
    assert all(need.cache for need in plan.needs)


@pytest.fixture(scope="module")
def same_shape(tmp_path_factory):
    """The small model in another type, which is what the large one has to equal."""

    @cache
    def write(source: Path, kind: str) -> Path:
        out = tmp_path_factory.mktemp("same") / f"{source.stem}-{kind}.gguf"
        enlarge(source, out, SmallModel(source).shape, kind)
        return out

    return write


@pytest.mark.parametrize(
    ("source", "shape", "kind"),
    [
        *((target_path(), WIDE, kind) for kind in BOUND),
        *((target_path(), WIDE_HEADS, kind) for kind in ("f32", "q8_0")),
        *((draft_path(), shape, "f16") for shape in (WIDE, WIDE_HEADS)),
    ],
)
def test_a_larger_shape_computes_the_same_function(source, shape, kind, same_shape, tmp_path):
    large = tmp_path / "large.gguf"
    enlarge(source, large, shape, kind)
    answer_tokens = 24 if kind in ("f32", "f16") else 0
    expected, answer = read(same_shape(source, kind), answer_tokens)
    logits, replies = read(large, answer_tokens)
    known = expected.shape[1]
    gap = np.abs(logits[:, :known] - expected).max()
    print(f"{kind}: {gap:.4f}")
    assert gap <= BOUND[kind]
    assert replies == answer


@pytest.mark.parametrize("kind", ["f16", "q4_0", "q4_k_m"])
def test_extra_tokens_never_win(kind, tmp_path):
    large = tmp_path / "large.gguf"
    enlarge(target_path(), large, WHOLE_BLOCKS, kind)
    logits, _ = read(large)
    known = SmallModel(target_path()).shape.vocab
    assert logits.shape[1] == WHOLE_BLOCKS.vocab
    assert (logits[:, known:].max(axis=1) < logits[:, :known].max(axis=1) - 20).all()


def test_the_same_shape_and_type_keep_every_byte(same_shape):
    before, after = target_path(), same_shape(target_path(), "q8_0")
    kept = {tensor.name: tensor for tensor in header_at(after).tensors}
    for tensor in header_at(before).tensors:
        old = tensor_at(before, tensor, header_at(before).data_offset)
        new = tensor_at(after, kept[tensor.name], header_at(after).data_offset)
        assert np.array_equal(old, new), tensor.name


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"width": 128}, "width"),
        ({"layers": 1}, "layers"),
        ({"head_width": 96}, "head-width"),
        ({"vocab": 9}, "vocab"),
    ],
)
def test_a_shape_that_is_too_small_is_named(change, named, tmp_path):
    shape = Shape(**{name: getattr(WIDE, name) for name in Shape.__slots__} | change)
    with pytest.raises(UnfitError, match=named):
        enlarge(target_path(), tmp_path / "never.gguf", shape, "f16")
