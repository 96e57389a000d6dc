"""Rows of the target of which the device chose the largest logits: what is written is what whole rows give.

Without `--device` the CPU chooses them, as if it were a GPU.
"""

import random
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest

from localspec import api
from localspec.llama import shared
from localspec.llama.context import Context, SlotDecoder
from localspec.llama.load import Load
from localspec.llama.model import Model
from localspec.loading.plan import MemoryProbe
from localspec.models.local_models import ModelFile
from localspec.sampler.passes import Candidates
from localspec.sampler.sampling import Sampling

SHAPE = {"layers": 2, "vocab_size": 2048}


@pytest.fixture(autouse=True)
def chosen(device, monkeypatch, tmp_path_factory):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path_factory.getbasetemp() / "cut-home"))
    if device in (None, "CPU"):
        on_gpu = property(lambda model: True, lambda model, value: None)
        monkeypatch.setattr(Model, "output_on_gpu", on_gpu, raising=False)


@pytest.fixture
def always(monkeypatch):
    """Rows are cut though it may not pay."""
    monkeypatch.setattr(SlotDecoder, "prefer_rows", lambda slot, tokens: None)


@contextmanager
def whole_rows():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SlotDecoder, "top_k_rows", lambda slot, logits: None)
        yield


@pytest.fixture
def read_again(monkeypatch):
    """The passes that were read once more."""
    found, real = [], SlotDecoder._again

    def again(slot, tokens, rows):
        whole = real(slot, tokens, rows)
        return lambda row: found.append(tokens) or whole(row)

    monkeypatch.setattr(SlotDecoder, "_again", again)
    return found


def test_cut_rows_are_the_largest_of_whole_rows_and_can_give_these(tiny_gguf):
    texts = [[random.Random(seed).randrange(3, 250) for _ in range(5)] for seed in range(12)]
    with (
        Model(tiny_gguf(**SHAPE)) as model,
        Context(model, length=256, threads=1) as plain,
        Context(model, length=256, threads=1, top_k_rows=True) as context,
    ):
        for number, text in enumerate(texts):
            wanted = [np.array(row) for row in plain.decode(text, len(text)).rows]
            context.top_k_rows(None if number % 4 == 3 else 128)
            rows = context.decode(text, len(text)).rows
            assert all(isinstance(row, Candidates) for row in rows) == (number % 4 != 3)
            for row, known in zip(rows, wanted, strict=True):
                if isinstance(row, Candidates):
                    assert sorted(row.logits) == sorted(known[row.ids]) == sorted(np.sort(known)[-128:])
            if number % 4 == 1:
                for row, known in reversed(list(zip(rows, wanted, strict=True))):
                    assert row.whole().tolist() == known.tolist()
                assert context.tokens == plain.tokens
            for each in (plain, context):
                each.rollback(each.length - number % 3)


GREEDY = (
    {},
    {"repeat_penalty": 1.3},
    {"repeat_penalty": 1.8, "repeat_last_n": -1},
    {"presence_penalty": 2.0, "frequency_penalty": 0.5},
    {"logit_bias": {40: -100, 77: -5}},
)
SAMPLED = (
    {"temperature": 0.8},
    {"temperature": 1.2, "rule": "coupled"},
    {"temperature": 0.8, "repeat_penalty": 1.3, "top_k": 3},
    {"temperature": 0.8, "top_k": 0},
)


@pytest.mark.parametrize(
    ("settings", "most", "extra"),
    [
        (GREEDY, 128, {"temperature": 0}),
        (GREEDY, 2, {"temperature": 0}),
        (SAMPLED, 128, {}),
        (SAMPLED, 6, {"top_k": 5, "presence_penalty": 2.0}),
    ],
    ids=["greedy", "greedy, some rows too short", "sampled", "sampled, some rows too short"],
)
def test_texts_are_those_of_whole_rows(
    tiny_gguf, device, monkeypatch, always, read_again, settings, most, extra
):
    """Rows of few logits are declared sufficient, and some are too short."""
    if most < 128:
        monkeypatch.setattr(shared, "TOP_K", most)
        monkeypatch.setattr(Sampling, "logits_needed", property(lambda self: 1))
    target, draft = (str(tiny_gguf(**SHAPE, noise=noise)) for noise in (0.0, 0.1))
    cases = 100 if device and settings is GREEDY else 20
    with api.load(target=target, draft=draft, threads=1, context_length=512) as session:
        assert session.pair.target.shared.cut_to == most
        for case in range(cases):
            prompt = "".join(random.Random(case).choices("abcdefghij ", k=20))
            options = settings[case % len(settings)] | extra | {"seed": case, "max_tokens": 12}
            texts = []
            for rows in (nullcontext, whole_rows):
                with rows():
                    texts.append(session.complete(prompt, depth=case % 4, **options).tokens)
                session.reset()
            assert texts[0] == texts[1], options
    assert bool(read_again) == (most < 128)


@pytest.mark.parametrize("pattern", ["[a-f]{3,30}", "(?s:.{3,30})"], ids=["few tokens", "most tokens"])
def test_a_greedy_grammar_reads_whole_rows_where_it_forbids_all_cut_logits(
    tiny_gguf, always, read_again, pattern
):
    target, draft = (str(tiny_gguf(**SHAPE, noise=noise)) for noise in (0.0, 0.1))
    with api.load(target=target, draft=draft, threads=1, context_length=512) as session:
        for case in range(12):
            prompt = "".join(random.Random(case).choices("abcdefghij ", k=20))
            texts = []
            for rows in (nullcontext, whole_rows):
                with rows():
                    options = {"regex": pattern, "temperature": 0, "max_tokens": 12}
                    texts.append(session.complete(prompt, depth=case % 4, **options).tokens)
                session.reset()
            assert texts[0] == texts[1]
    assert len(read_again) < 4 if "." in pattern else len(read_again) >= 4


@pytest.mark.parametrize(("cut", "whole"), [(1.0, 2.0), (2.0, 1.0)])
def test_rows_are_cut_where_that_is_the_faster_way(tiny_gguf, monkeypatch, cut, whole):
    """The clock is faked."""
    settings = {"length": 256, "threads": 1, "top_k_rows": True}
    with Model(tiny_gguf(**SHAPE)) as model, Context(model, **settings) as context:
        ends = iter([0.0, cut + 3, 0.0, whole + 3, *[0.0, cut, 0.0, whole] * 2])
        monkeypatch.setattr("localspec.llama.context.perf_counter", lambda: next(ends))
        context.prefer_rows([5, 6, 7])
        context.top_k_rows(1)
        (row,) = context.decode([8], 1).rows
        assert (context.length, isinstance(row, Candidates)) == (1, cut < whole)


def test_rows_stay_whole_where_they_have_to(tiny_gguf, monkeypatch, always):
    asked, real = [], SlotDecoder.top_k_rows
    monkeypatch.setattr(
        SlotDecoder, "top_k_rows", lambda slot, logits: asked.append(logits) or real(slot, logits)
    )
    with api.load(target=str(tiny_gguf(**SHAPE)), threads=1, context_length=512, speculate=False) as session:
        penalties = {"repeat_penalty": 1.1, "repeat_last_n": -1}, {"presence_penalty": -1.0}
        for options in ({"regex": "[a-z]+"}, {"logprobs": 2}, {"top_k": 0}, *penalties):
            session.complete("abc", max_tokens=2, **options)
    assert asked == [None] * 10
    with Model(tiny_gguf(**SHAPE)) as model, Context(model, length=256, top_k_rows=True, slots=2) as context:
        context.top_k_rows(1)
        assert isinstance(context.decode([5], 1).rows[0], np.ndarray)
    for shape in ({"architecture": "gemma2"}, {"architecture": "qwen35", "layers": 4}):
        with Model(tiny_gguf(**shape)) as model, Context(model, length=1024, top_k_rows=True) as context:
            assert context.shared.cut_to == 0


def test_the_plan_counts_the_memory_of_cut_rows(tiny_gguf, device):
    path, places = tiny_gguf(**SHAPE), (device,) if device else None
    with MemoryProbe() as probe:
        whole, cut = (
            probe.needs(ModelFile.at(path), Load(256, devices=places, rows_max=9, top_k_rows=cuts)).compute
            for cuts in (False, True)
        )
    assert cut["CPU"] - whole["CPU"] >= 12 * SHAPE["vocab_size"] * 9
