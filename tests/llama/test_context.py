"""Decoding on real GGUFs: rows, chunks, rollback, cancellation, top-k."""

import gc
from types import SimpleNamespace

import numpy as np
import pytest

from localspec.errors import BackendFailure, BadSetting, ContextFull, RollbackUnsupported
from localspec.llama import shared
from localspec.llama.batch import Stretch
from localspec.llama.cache import _KV_TYPES
from localspec.llama.context import Context
from localspec.llama.library import lib
from localspec.llama.model import Model
from localspec.llama.shared import TOP_K
from localspec.llama.threads import Contention
from localspec.measure.compare import width_difference_on, width_gap
from localspec.sampler.passes import Candidates, ForwardPass
from localspec.stopping import WorkStopped
from tests.llama.rows import NEAR, row_after
from tests.raw_passes import RawPasses, moved

BIG = {"vocab_size": 128_256, "tied": True, "embedding": 32}
WINDOW = {"architecture": "gemma2", "window": 8, "layers": 4}


# rows


def test_rows_are_views_of_llama_cpps_own_buffer(context, tokens):
    decoder = context(**BIG)
    rows = decoder.decode(tokens(5), 5).rows
    address = lib.llama_get_logits(decoder.shared.handle)
    base = np.ctypeslib.as_array(address, shape=(1,)).__array_interface__["data"][0]
    assert [row.__array_interface__["data"][0] for row in rows] == [base + 4 * 128_256 * i for i in range(5)]
    assert all(
        row.dtype == np.float32 and row.shape == (128_256,) and not row.flags.writeable for row in rows
    )


def test_rows_belong_to_the_last_tokens_in_order(context, tokens):
    decoder, sequence = context(), tokens(12)
    last = [np.array(row) for row in decoder.decode(sequence, 3).rows]
    alone = [row_after(decoder, sequence[: n + 1]) for n in (9, 10, 11)]
    np.testing.assert_allclose(last, alone, atol=NEAR)


@pytest.mark.parametrize(("remote", "asked"), [("", 0), ("RPC0", 1)])
def test_a_pass_on_another_machine_asks_for_a_row_so_that_its_time_is_measured(
    context, tokens, monkeypatch, remote, asked
):
    """The decision only: over RPC llama.cpp waits for nothing but rows, and builds for tests may lack RPC."""
    decoder, seen = context(), []
    monkeypatch.setattr(decoder.model, "remote", remote)
    monkeypatch.setattr(shared, "Stretch", lambda *parts: (seen.append(parts[-1]), Stretch(*parts))[1])
    assert len(decoder.decode(tokens(4), 0).rows) == 0
    assert sum(seen[0]) == asked
    assert len(decoder.decode([5, 6], 2).rows) == 2
    assert sum(seen[1]) == 2


def test_rows_that_are_not_finite_are_an_error_and_leave_the_cache_as_it_was(tiny_gguf, tmp_path, tokens):
    broken = tmp_path / "broken.gguf"
    data = bytearray(tiny_gguf(weights="F32").read_bytes())
    data[-4096:] = np.full(1024, np.nan, np.float32).tobytes()  # the end of the last layer's last matrix
    broken.write_bytes(data)
    with Model(broken) as model, Context(model, length=64) as decoder:
        list(decoder.prefill(tokens(6)))
        with pytest.raises(BackendFailure, match="NaN or infinity"):
            decoder.decode(tokens(3), 3)
        assert decoder.tokens == tokens(6)


def test_rows_of_a_draft_end_where_the_targets_vocabulary_does(context, tokens):
    whole, shorter = context(), context({"vocabulary": 500})
    for rows in (1, 3):
        got, expected = shorter.decode(tokens(5), rows).rows, whole.decode(tokens(5), rows).rows
        np.testing.assert_array_equal(np.array(got), np.array(expected)[:, :500])
        assert all(row.shape == (500,) and not row.flags.writeable for row in got)


def test_a_draft_reads_tokens_that_only_the_target_has_as_its_last(context, tokens):
    draft, same = context({"vocabulary": 600}), context()
    text = [*tokens(5), 512, 599, *tokens(3)]
    got = draft.decode(text, 2).rows
    np.testing.assert_array_equal(got, same.decode([min(token, 511) for token in text], 2).rows)
    assert draft.tokens == text
    assert all(row.shape == (512,) for row in got)


# chunks


@pytest.mark.parametrize("rows", [0, 1, 9])
@pytest.mark.parametrize("count", [15, 16, 17, 24, 25, 64, 70])
def test_chunked_decode_equals_one_batch(context, tokens, count, rows):
    chunked, whole = context({"batch_size": 16}), context({"batch_size": 512})
    sequence = tokens(count)
    got, expected = chunked.decode(sequence, rows).rows, whole.decode(sequence, rows).rows
    assert chunked.tokens == whole.tokens == sequence
    assert len(got) == rows
    np.testing.assert_allclose(list(got), list(expected), atol=NEAR)


@pytest.mark.parametrize("stop_after", [0, 1, 2])
def test_a_cancelled_prefill_that_is_continued_equals_one_that_was_not(context, tokens, stop_after):
    cancelled, straight = context({"batch_size": 16}), context({"batch_size": 16})
    sequence = tokens(60)
    chunks = cancelled.prefill(sequence)
    for _ in range(stop_after):
        next(chunks)
    chunks.close()
    assert cancelled.tokens == sequence[: 16 * stop_after]
    list(cancelled.prefill(sequence[cancelled.length :]))
    list(straight.prefill(sequence))
    np.testing.assert_array_equal(cancelled.decode([7], 1).rows[0], straight.decode([7], 1).rows[0])


def test_a_prefill_that_is_stopped_without_a_cancel_does_not_look_whole(context, tokens, monkeypatch):
    one = context({"batch_size": 16})
    monkeypatch.setattr(lib, "llama_decode", lambda *_: 2)
    with pytest.raises(WorkStopped):
        list(one.prefill(tokens(60)))
    assert list(one.prefill(tokens(60), lambda: True)) == []


# rollback


@pytest.mark.parametrize(
    "shape", [{}, {"tied": True, "weights": "Q8_0"}, WINDOW], ids=["llama", "q8", "window"]
)
@pytest.mark.parametrize("keep", [0, 1, 5, 8, 23, 39])
def test_after_a_rollback_rows_equal_a_fresh_contexts(context, tokens, shape, keep):
    rolled, fresh = context(**shape), context(**shape)
    kept, dropped, after = tokens(keep), tokens(40 - keep, seed=1), tokens(3, seed=2)
    gap = max(width_gap(fresh, tokens(40)), 1e-6)
    rolled.decode(kept + dropped, 0)
    rolled.rollback(keep)
    assert rolled.tokens == kept
    got = np.array(rolled.decode(after, 3).rows)
    fresh.decode(kept, 0) if kept else None
    assert np.abs(got - np.array(fresh.decode(after, 3).rows)).max() <= gap


def test_the_window_of_the_test_model_is_real(context, tokens):
    """Otherwise the tests above would pass with a cache that forgets the window."""
    windowed, wide = context(**WINDOW), context(**(WINDOW | {"window": 512}))
    sequence = tokens(40)
    assert np.abs(row_after(windowed, sequence) - row_after(wide, sequence)).max() > 0.1


def test_a_recurrent_model_is_known_before_the_first_cycle_and_refuses(context, tokens):
    decoder = context(architecture="mamba")
    assert not decoder.model.can_roll_back
    assert decoder.rollback_limit == 0
    decoder.decode(tokens(6), 0)
    with pytest.raises(RollbackUnsupported, match="cannot remove 2 rejected draft tokens"):
        decoder.rollback(4)
    assert decoder.tokens == tokens(6)
    decoder.rollback(0)
    assert decoder.tokens == []


def test_a_hybrid_with_snapshots_takes_back_drafts_of_the_last_batch_only(context, tokens):
    rolled, fresh = context({"snapshots": 5}, architecture="lfm2"), context(architecture="lfm2")
    assert (rolled.rollback_limit, fresh.rollback_limit, context().rollback_limit) == (5, 0, None)
    assert not rolled.model.can_roll_back
    gap = max(width_gap(fresh, tokens(40)), 1e-6)
    random, kept = np.random.default_rng(5), tokens(20)
    rolled.decode(kept, 0)
    for _ in range(12):
        batch = random.integers(3, 250, 6).tolist()
        rolled.decode(batch, 6)
        kept = kept + batch[: random.integers(1, 7)]
        rolled.rollback(len(kept))
    assert np.abs(rolled.decode([9], 1).rows[0] - row_after(fresh, [*kept, 9])).max() <= gap
    with pytest.raises(RollbackUnsupported):
        rolled.rollback(len(kept) - 3)


# a full context


def test_more_tokens_than_the_context_holds_are_refused_before_anything_is_decoded(context, tokens):
    decoder = context({"length": 256})
    decoder.decode(tokens(200), 0)
    with pytest.raises(ContextFull, match="257 tokens"):
        decoder.decode(tokens(57), 1)
    with pytest.raises(ContextFull):
        next(decoder.prefill(tokens(57)))
    assert decoder.tokens == tokens(200)
    assert len(decoder.decode(tokens(56), 1).rows) == 1


@pytest.mark.parametrize("settings", [{"length": 0}, {"length": 2**31}, {"kv_type": "q9"}])
def test_settings_that_cannot_be_used_are_named(load, settings):
    with pytest.raises(BadSetting) as caught:
        Context(load(), **({"length": 64} | settings))
    assert caught.value.hint


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0", "q4_0"])
def test_rows_with_any_kv_cache_type_are_those_of_llama_cpp(context, load, shipped, tokens, kind):
    shape = {"embedding": 128, "kv_heads": 4}
    decoder = context({"kv_type": kind}, **shape)
    raw = RawPasses(load(**shape), _KV_TYPES[kind], lib.LLAMA_FLASH_ATTN_TYPE_AUTO)
    expected = raw.all_rows(tokens(20), 20)[-1]
    raw.close()
    np.testing.assert_allclose(row_after(decoder, tokens(20)), expected, atol=NEAR)


# top-k rows


@pytest.fixture
def top_context(context, load, monkeypatch):
    """A context that chooses candidates on the device even where the device is the CPU."""

    def make(settings=None, **shape):
        monkeypatch.setattr(load(**shape), "output_on_gpu", True)
        return context({"top_k": True, **(settings or {})}, **shape)

    return make


@pytest.mark.parametrize(("vocabulary", "shape"), [(None, BIG), (400, {})], ids=["whole", "a draft"])
def test_top_k_rows_hold_the_largest_logits_of_tokens_that_the_target_has(
    context, top_context, tokens, vocabulary, shape
):
    full, top = context(**shape), top_context({"vocabulary": vocabulary}, **shape)
    for row, candidates in zip(full.decode(tokens(6), 6).rows, top.decode(tokens(6), 6).rows, strict=True):
        largest = candidates.ids[np.argsort(candidates.logits)[::-1]][:TOP_K]
        assert set(largest.tolist()) == set(np.argsort(row[:vocabulary])[::-1][:TOP_K].tolist())
        np.testing.assert_array_equal(candidates.logits, row[candidates.ids])


@pytest.mark.parametrize("devices", [None, ("cpu",)], ids=["not wanted", "on the CPU"])
def test_full_rows_stay_where_top_k_cannot_be(tiny_gguf, tokens, devices):
    with Model(tiny_gguf(), devices=devices) as model:
        decoder = Context(model, length=64, top_k=devices is not None)
        assert decoder.decode(tokens(3), 1).rows[0].shape == (512,)


# ends


def test_closing_a_model_closes_its_contexts_and_twice_is_once(tiny_gguf):
    model = Model(tiny_gguf())
    model.output_on_gpu = True
    first = Context(model, length=64, top_k=True)
    assert isinstance(first.decode([1], 1).rows[0], Candidates)
    second = Context(model, length=64)
    first.close()
    first.close()
    model.close()
    model.close()
    with pytest.raises(AssertionError, match="the context is closed"):
        second.decode([1], 1)
    with pytest.raises(AssertionError, match="tiny is closed"):
        Context(model, length=64)
    second.close()


@pytest.mark.parametrize("cycle", [False, True], ids=["dropped", "dropped in a cycle"])
def test_forgetting_to_close_frees_contexts_before_models(tiny_gguf, monkeypatch, cycle):
    model = Model(tiny_gguf())
    decoder = Context(model, length=64)
    loaded, free, freed = model._finalizer, lib.llama_free, []
    monkeypatch.setattr(lib, "llama_free", lambda pointer: (freed.append(loaded.alive), free(pointer)))
    if cycle:
        decoder.itself = decoder
    del model, decoder
    gc.collect()
    assert freed == [True]
    gc.collect()  # the finalizer held the model until now
    assert not loaded.alive


SHAPES = {
    "llama f32": {},
    "llama f16": {"weights": "F16"},
    "llama q8_0": {"weights": "Q8_0"},
    "gemma2, window 8": {"architecture": "gemma2", "window": 8, "layers": 4},
    "mamba": {"architecture": "mamba"},
    "lfm2": {"architecture": "lfm2"},
}


@pytest.mark.parametrize("name", SHAPES)
def test_logits_move_between_batch_widths_as_in_llama_cpp(context, load, tokens, name):
    """The widths are not the same ones, so the largest moves are not the same."""
    gap = width_gap(context(**SHAPES[name]), tokens(40))
    assert gap <= 2 * moved(load(**SHAPES[name]), tokens(40)) + 1e-5


class Skewed:
    """A decoder whose logits are the tokens before it, plus an error that grows with the batch width."""

    def __init__(self, begins: int = 0) -> None:
        self.length = 0
        self.begins = begins  # tokens that come before the error

    def decode(self, tokens, rows):
        start, self.length = self.length, self.length + len(tokens)
        width = len(tokens) if start >= self.begins else 1
        return ForwardPass(start, tokens, [np.array([float(start + i), 0.01 * width]) for i in range(rows)])

    def prefill(self, tokens):
        self.length += len(tokens)
        return iter(())

    def rollback(self, keep):
        self.length = keep

    def rewind(self, keep):
        self.length = keep
        return keep


def test_the_gap_is_the_largest_difference_to_width_one():
    decoder = Skewed()
    assert width_gap(decoder, list(range(18))) == pytest.approx(0.08)
    assert decoder.length == 0


def test_the_widths_that_a_comparison_used_are_compared_as_well():
    assert width_gap(Skewed(), list(range(36)), 0, {1, 18}) == pytest.approx(0.17)


def test_widths_are_compared_where_the_text_stands_because_long_texts_have_other_kernels():
    """Such as flash attention on a CPU, which for one token divides a cache of 512 cells among its threads."""
    target = Skewed(begins=256)
    pair = SimpleNamespace(target=target, threads=Contention(1))
    assert width_difference_on(pair, list(range(262))) == pytest.approx(0.04)
    assert target.length == 0
