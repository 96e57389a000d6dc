"""A restored state is rewound only as far as it reaches: each cache kind, by contexts of one to eight windows."""

import sys
from collections import deque
from contextlib import ExitStack
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from localspec.algorithm.images import ImageRow
from localspec.caches import prompt_cache
from localspec.caches.prompt_cache import DiskPromptCache
from localspec.caches.store import Facts, Store, finish
from localspec.llama.context import Context
from localspec.llama.images import Projector
from localspec.llama.model import Model
from tests.drafters.heads import GREEDY, opened_slots
from tests.drafters.heads import KINDS as HEADS
from tests.gguf.models import write_gguf
from tests.llama.rows import NEAR, logits_of, row_after
from tests.tiny_images import TARGETS, pictures, write_projector

KINDS = {"attention": "llama", "hybrid": "qwen35"} | {
    kind: kind for kind in ("gemma2", "gemma3", "gemma4", "mamba", "lfm2")
}
# llama.cpp rounds lengths up to 256, so the window changes and not the length of the context.
WINDOWS = {
    1: (256, 256),
    1.5: (256, 170),
    2: (256, 128),
    4: (256, 64),
    8: (512, 64),
}  # by the number: length, window
by_windows = pytest.mark.parametrize("windows", WINDOWS)


@pytest.fixture
def from_disk(tmp_path, monkeypatch, quick_disk):
    """from_disk(state, slot) is the state after it was written to the disk and read again."""
    monkeypatch.setattr(prompt_cache, "LEAST", 1)

    def written_and_read(state, slot):
        facts = Facts("key", sys.executable, not slot.needs_checkpoints, (), ())
        disk = DiskPromptCache(Store(tmp_path, 10**9), facts, capacity=slot.capacity, everything=True)
        disk.add(state)
        finish()
        return disk.find([*state.tokens, 7], 0, 10**9)

    return written_and_read


@pytest.mark.parametrize("slots", [1, 3])
@by_windows
@pytest.mark.parametrize("kind", KINDS)
def test_a_rewound_copy_gives_the_rows_of_a_fresh_read(context, tokens, from_disk, kind, windows, slots):
    length, window = WINDOWS[windows]
    shape = {"architecture": KINDS[kind], "window": window}
    room = {"length": length, "saved_bytes": 10**8, "checkpoint_bytes": 10**8, "batch_size": 16}
    several, fresh = context(room | {"slots": slots}, **shape), context(room, **shape)
    assert several.capacity == length
    one = several.slots[-1] if slots > 1 else several
    other = several.slots[0] if slots > 1 else several
    chance = np.random.default_rng(int(10 * windows) + slots)
    text = tokens(length - 2, seed=slots)
    for _ in one.prefill(text):
        pass
    state = one.copy()
    one.rollback(0)
    copies = state, from_disk(state, one)
    for keep in (len(text), *chance.integers(1, len(text), 4).tolist()):
        for slot, copy in product((other, one), copies):
            assert slot.replace(copy)
            left = slot.rewind(keep)
            assert 0 <= left <= keep
            row = logits_of(slot.decode([7], 1).rows[0])
            assert np.abs(row - row_after(fresh, [*text[:left], 7])).max() < NEAR
            slot.rollback(0)


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    """readers(kind, window) is a model that reads images, and its projector."""
    folder, opened = tmp_path_factory.mktemp("images"), {}
    with ExitStack() as stack:

        def reader(kind, window):
            if (kind, window) not in opened:
                shape = replace(TARGETS[kind], window=window)
                model = stack.enter_context(Model(write_gguf(folder / f"{kind}-{window}.gguf", shape)))
                file = write_projector(folder / f"mmproj-{kind}.gguf", kind)
                projector = stack.enter_context(Projector(file, model, kind, threads=1))
                opened[kind, window] = model, projector
            return opened[kind, window]

        yield reader


@pytest.mark.process  # over a second each
@pytest.mark.parametrize("slots", [1, 3])
@by_windows
@pytest.mark.parametrize("kind", ["gemma3", "qwen35"])
def test_a_rewound_copy_with_images_gives_the_rows_of_a_fresh_read(
    readers, tokens, from_disk, kind, windows, slots
):
    length, window = WINDOWS[windows]
    model, projector = readers(kind, window)
    room = {"length": length, "saved_bytes": 10**8, "checkpoint_bytes": 10**8, "threads": 1}
    chance, text = np.random.default_rng(int(10 * windows) + slots), []
    with Context(model, slots=slots, **room) as several, Context(model, **room) as fresh:
        one, other = several.slots[-1], several.slots[0]
        for picture in (pictures()[name] for name in ("square.png", "dot.png") * 8):
            part = [*tokens(int(chance.integers(1, 25)), seed=len(text)), *projector.tokens(picture)]
            text += part if len(text) + len(part) < length - 2 else []
        assert sum(isinstance(token, ImageRow) for token in text) >= 16
        deque(one.prefill(text), 0)
        state = one.copy()
        one.rollback(0)
        copies = state, from_disk(state, one)
        for keep in (len(text), *chance.integers(1, len(text), 4).tolist()):
            if keep < len(text) and isinstance(text[keep], ImageRow):
                keep -= text[keep].index
            for slot, copy in product((other, one), copies):
                assert slot.replace(copy)
                slot.tokens[:] = text  # as `recall` does: tokens of a copy do not know their images
                slot.place_images(0)
                left = slot.rewind(keep)
                fresh.rollback(0)
                deque(fresh.prefill(text[:left]), 0)
                rows = [logits_of(context.decode([7], 1).rows[0]) for context in (slot, fresh)]
                assert np.abs(rows[0] - rows[1]).max() < NEAR
                slot.rollback(0)


@pytest.mark.process
@pytest.mark.parametrize("slots", [1, 3])
@by_windows
@pytest.mark.parametrize("kind", ["assistant", "mtp inside"])
def test_a_rewound_copy_with_a_head_gives_the_rows_and_drafts_of_a_fresh_read(
    tmp_path, tokens, from_disk, kind, windows, slots
):
    length, window = WINDOWS[windows]
    head = replace(HEADS[kind], walk=replace(HEADS[kind].walk, window=window))
    files, room = head.files(tmp_path), {"length": length, "snapshots": 0, "checkpoint_bytes": 10**8}
    chance, text = np.random.default_rng(int(10 * windows) + slots), tokens(length - 12, seed=slots)
    with (
        opened_slots(head, files, slots, **room) as several,
        opened_slots(head, files, 1, **room) as (fresh,),
    ):
        one = several[-1]
        one.begin([*text, 7])
        state = one.target.copy()
        one.target.rollback(0)
        copies = state, from_disk(state, one.target)
        for keep in (len(text), *chance.integers(1, len(text), 3).tolist()):
            for pair, copy in product(several[:: max(slots - 1, 1)], copies):
                assert pair.target.replace(copy)
                left = pair.target.rewind(keep)
                fresh.target.rollback(0)
                found = [follow(each, text[:left]) for each in (pair, fresh)]
                (row, draft), (again, drafted) = found
                assert np.abs(row - again).max() < NEAR
                assert draft == drafted != ()
                pair.target.rollback(0)


def follow(pair, text):
    """The row behind the text and one more token, and what the head drafts there."""
    pair.begin([*text, 7])
    batch = pair.target.decode([7], 1)
    row = logits_of(batch.rows[0])
    pair.drafter.observe(batch, 1)
    return row, pair.drafter.propose([*text, 7, int(row.argmax())], 4, GREEDY).tokens
