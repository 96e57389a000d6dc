"""Several slots in one context of llama.cpp, on real GGUFs: rows, texts, and the number of passes."""

import ctypes
import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

from localspec.algorithm.pass_order import Part
from localspec.errors import BackendFailure
from localspec.llama import shared
from localspec.llama.context import Context
from localspec.llama.library import lib, symbol
from localspec.sampler.passes import HiddenRows, common_prefix_length
from tests.llama.rows import NEAR

SHAPES = {
    "attention": {},
    "window": {"architecture": "gemma2", "window": 8, "layers": 4},
    "hybrid": {"architecture": "qwen35", "layers": 4},
}
OPTIONS = {"length": 256, "threads": 1, "snapshots": 3}


@pytest.fixture
def counted(monkeypatch):
    """Counts the graphs that llama.cpp computes in contexts that are made from now on."""
    outputs, make = [], shared.params_of
    name_of = symbol("ggml_get_name", ctypes.c_char_p, [ctypes.c_void_p])

    @lib.ggml_backend_sched_eval_callback
    def look(tensor, ask, _data):
        if ask and name_of(tensor) == b"result_output":
            outputs.append(True)
        return False

    def params_of(*args, **options):
        params = make(*args, **options)
        params.cb_eval = look
        return params

    monkeypatch.setattr(shared, "params_of", params_of)
    return outputs


def together(context, *texts, seed=0):
    """The rows of a pass over these tokens of the slots, which come in any order, copied."""
    order = np.random.default_rng(seed).permutation(len(texts)).tolist()
    found = context.shared.decode([Part(i, texts[i], len(texts[i])) for i in order])
    return [np.array(found[order.index(i)].rows) for i in range(len(texts))]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(4))
def test_any_slots_in_any_order_at_any_time_get_their_rows_in_one_pass(load, tokens, counted, shape, seed):
    """Four slots read prompts, verify drafts, step back and begin again, neighbours in each pass."""
    random, model = np.random.default_rng(seed), load(**SHAPES[shape])
    with ExitStack() as opened:
        several = opened.enter_context(Context(model, **OPTIONS, slots=4))
        alone = [opened.enter_context(Context(model, **OPTIONS)) for _ in several.slots]
        for step in range(40):
            parts = []
            first, last = sorted(random.integers(0, 4, 2).tolist())
            for number in random.permutation(range(first, last + 1)).tolist():
                slot, one = several.slots[number], alone[number]
                if slot.length > 200 or random.random() < 0.15:
                    slot.rollback(0)
                    one.rollback(0)
                width = int(random.integers(1, 5) if slot.length else random.integers(5, 20))
                text = tokens(width, 1000 * seed + 4 * step + number)
                parts.append(Part(number, text, width * bool(slot.length)))
            numbers = sorted(part.slot for part in parts if part.rows)
            gap = bool(numbers) and numbers[-1] - numbers[0] >= len(numbers)
            for group in [[part] for part in parts] if gap else [parts]:
                counted.clear()
                decoded = several.shared.decode(group)
                assert len(counted) == 1 or not all(part.rows for part in group), "one pass over the weights"
                for part, found in zip(group, decoded, strict=True):
                    slot, one = several.slots[part.slot], alone[part.slot]
                    rows = one.decode(part.tokens, part.rows).rows
                    if part.rows:
                        np.testing.assert_allclose(np.array(found.rows), np.array(rows), atol=NEAR)
                        keep = slot.length - len(part.tokens) + int(random.integers(1, len(part.tokens) + 1))
                        slot.rollback(keep)
                        one.rollback(keep)


def test_recurrent_slots_with_a_gap_between_them_decode_one_after_the_other(load, tokens):
    """llama.cpp would give them wrong rows."""
    model = load(**SHAPES["hybrid"])
    with Context(model, **OPTIONS, slots=3) as several:
        with pytest.raises(BackendFailure):
            several.shared.decode([Part(0, tokens(3), 3), Part(2, tokens(3), 3)])
        with ThreadPoolExecutor(2) as threads:
            jobs = [threads.submit(several.slots[i].decode, tokens(3), 3) for i in (0, 2)]
            for slot, job in zip((0, 2), jobs, strict=True):
                job.result()
                several.slots[slot].rollback(3)
        assert [slot.length for slot in several.slots] == [3, 0, 3]


def test_two_texts_together_get_the_hidden_rows_that_each_gets_alone(load, tokens):
    texts, wants = [tokens(6), tokens(6, 1)], HiddenRows(layers=(1,), output=True)
    alone = []
    for text in texts:
        with Context(load(layers=3), **OPTIONS) as one:
            one.shared.extract(wants)
            alone.append(one.decode(text, 2).hidden)
    with Context(load(layers=3), **OPTIONS, slots=2) as several:
        several.shared.extract(wants)
        found = several.shared.decode([Part(i, text, 2) for i, text in enumerate(texts)])
    for each, hidden in zip(found, alone, strict=True):
        np.testing.assert_allclose(each.hidden, hidden, atol=NEAR)


def test_a_text_of_one_slot_comes_back_in_another(load, tokens):
    text = tokens(150, 3)
    with Context(load(), **OPTIONS | {"length": 512}, slots=2, saved_bytes=1 << 26) as several:
        first, second = several.slots
        list(first.prefill([*text, *text]))
        expected = np.array(first.decode([9], 1).rows[0])
        first.rollback(300)
        first.recall(tokens(10, 4))
        second.recall([*text, *text])
        assert second.tokens == [*text, *text]
        np.testing.assert_allclose(second.decode([9], 1).rows[0], expected, atol=NEAR)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("unread", [0, 3])
def test_a_slot_takes_over_what_another_one_has_read_while_a_reply_runs_there(load, tokens, shape, unread):
    """`unread`: tokens of padding and of drafts, which the other slot has not taken back yet."""
    model, prompt = load(**SHAPES[shape]), tokens(300)
    options = OPTIONS | {"length": 512, "saved_bytes": 1 << 26, "checkpoint_bytes": 1 << 26}

    def read(slot):
        list(slot.prefill(prompt[:-4]))
        slot.checkpoint(lasting=True)
        list(slot.prefill(prompt[-4:-1]))

    with Context(model, **options) as one:
        read(one)
        written = [*prompt[-1:], 7, 8, 9, 12]
        expected, *_, after = [np.array(one.decode([token], 1).rows[0]) for token in written]
    with Context(model, **options, slots=3) as several:
        first, second, third = several.slots
        read(first)
        list(third.prefill(tokens(20, 2)))
        second.decode(tokens(30, 1), 0)
        for token in [*prompt[-1:], 7, 8]:
            first.decode([token], 1)
        together(several, [9, *[10] * unread], tokens(2, 3), [11])
        second.rollback(31)
        second.recall(prompt)
        kept = second.rewind(common_prefix_length(second.tokens, 0, prompt[:-1]))
        assert kept >= 296
        third.rollback(third.length)
        third.recall([*prompt, 7, 8, 9, 12])
        list(third.prefill([*prompt, 7, 8, 9][third.rewind(303) :]))
        np.testing.assert_allclose(third.decode([12], 1).rows[0], after, atol=NEAR)
        first.rollback(303)
        list(second.prefill(prompt[kept:-1]))
        np.testing.assert_allclose(second.decode(prompt[-1:], 1).rows[0], expected, atol=NEAR)
        np.testing.assert_allclose(first.decode([12], 1).rows[0], after, atol=NEAR)


@pytest.mark.parametrize("shape", ["window", "hybrid"])
def test_a_slot_that_cannot_step_back_lends_nothing(load, tokens, shape):
    options = OPTIONS | {"length": 512, "saved_bytes": 1 << 26}
    with Context(load(**SHAPES[shape]), **options, slots=2) as several:
        first, second = several.slots
        list(first.prefill(tokens(400)))
        second.decode(tokens(20), 0)
        second.recall([*tokens(300), 7])
        assert second.length == 20


def test_a_slot_may_roll_back_while_another_looks_what_it_lends(load, tokens):
    class RolledBack(list):
        def __getitem__(self, index):
            found = super().__getitem__(index)
            del self[4:]
            return found

    with Context(load(), slots=2, **OPTIONS) as context:
        list(context.prefill(prompt := tokens(20)))
        context.tokens = RolledBack(context.tokens)
        assert context.lends(prompt) in (4, 20)


def test_a_long_text_of_another_slot_is_not_copied_for_its_short_beginning(load, tokens):
    common = tokens(300)
    with Context(load(), **OPTIONS | {"length": 4096}, slots=2, saved_bytes=1 << 30) as several:
        first, second = several.slots
        list(first.prefill([*common, *tokens(2300, 1)]))
        second.recall([*common, *tokens(100, 2)])
        assert not second.tokens
        first.rollback(2000)
        second.recall([*common, *tokens(100, 2)])
        assert second.length == 2000


@pytest.mark.parametrize("shape", SHAPES)
def test_a_pass_that_fails_leaves_every_slot_as_it_was(load, tokens, monkeypatch, shape):
    """A recurrent state cannot step back: its text is read again."""
    model = load(**SHAPES[shape])

    def broken(row):
        raise BackendFailure("x", hint="y")

    with Context(model, **OPTIONS, slots=2) as several:
        for slot in several.slots:
            list(slot.prefill(tokens(8)))
        with monkeypatch.context() as patch:
            patch.setattr(shared, "check_finite", broken)
            with pytest.raises(BackendFailure):
                together(several, tokens(3), tokens(3, 1))
        assert [slot.tokens for slot in several.slots] == [tokens(8)] * 2
        with Context(model, **OPTIONS) as one:
            list(one.prefill(tokens(8)))
            alone = np.array(one.decode(tokens(3), 3).rows)
        np.testing.assert_allclose(together(several, tokens(3), tokens(3, 1))[0], alone, atol=NEAR)


@pytest.mark.parametrize("broken", [(2,), (3,), (2, 3)])
def test_a_second_failure_in_the_repair_fails_only_the_reply_whose_tokens_are_lost(
    load, tokens, monkeypatch, broken
):
    """The first failure is behind the shared pass, the others as the recurrent slots are read again."""
    decode, passes = lib.llama_decode, itertools.count(1)

    def not_finite(row):
        raise BackendFailure("x", hint="y")

    with Context(load(**SHAPES["hybrid"]), **OPTIONS, slots=2) as several:
        for slot in several.slots:
            list(slot.prefill(tokens(8)))
        with monkeypatch.context() as patch:
            patch.setattr(shared, "check_finite", not_finite)
            patch.setattr(lib, "llama_decode", lambda *args: -3 if next(passes) in broken else decode(*args))
            with pytest.raises(BackendFailure):
                together(several, tokens(3), tokens(3, 1))
        lost = [slot for slot in several.slots if slot.length < 8]
        assert len(lost) == len(broken)
        for slot in lost:
            with pytest.raises(BackendFailure):
                together(several, tokens(3), tokens(3, 1))
            with pytest.raises(BackendFailure):
                slot.decode(tokens(3), 3)
            slot.recall(tokens(11))
            list(slot.prefill(tokens(8)[slot.length :]))
        with Context(load(**SHAPES["hybrid"]), **OPTIONS) as one:
            list(one.prefill(tokens(8)))
            alone = np.array(one.decode(tokens(3), 3).rows)
        np.testing.assert_allclose(together(several, tokens(3), tokens(3, 1))[0], alone, atol=NEAR)


def test_slots_get_their_largest_logits_where_the_device_chooses_them(load, tokens, monkeypatch):
    """As drafts on a GPU have it: one row for each slot, after texts of any lengths, some slots in each pass."""
    model, random = load(), np.random.default_rng(3)
    monkeypatch.setattr(model, "output_on_gpu", True)
    with ExitStack() as opened:
        several = opened.enter_context(Context(model, **OPTIONS, slots=3, rows_max=1, top_k=True))
        alone = [opened.enter_context(Context(model, **OPTIONS, rows_max=1)) for _ in several.slots]
        for step in range(20):
            slots = random.permutation(3)[: random.integers(1, 4)].tolist()
            parts = [Part(i, tokens(int(random.integers(1, 4)), 10 * step + i), 1) for i in slots]
            for part, found in zip(parts, several.shared.decode(parts), strict=True):
                row = alone[part.slot].decode(part.tokens, 1).rows[0]
                top = found.rows[0]
                assert len(top.ids) == shared.TOP_K
                np.testing.assert_allclose(top.logits, row[top.ids], atol=NEAR)
                assert top.logits.min() >= np.sort(row)[-shared.TOP_K] - NEAR
                keep = several.slots[part.slot].length - int(random.integers(0, len(part.tokens)))
                several.slots[part.slot].rollback(keep)
                alone[part.slot].rollback(keep)
