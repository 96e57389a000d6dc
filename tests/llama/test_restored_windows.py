"""A restored state is rewound only as far as it reaches: each cache kind, by contexts of one to eight windows."""

import sys
from itertools import product

import numpy as np
import pytest

from localspec.caches.store import Facts, Store, finish
from localspec.llama import prompt_cache
from localspec.llama.prompt_cache import DiskPromptCache
from tests.llama.rows import NEAR, logits_of, row_after

WINDOW = 64
KINDS = {
    "attention": {},
    "gemma2": {"architecture": "gemma2", "window": WINDOW},
    "gemma3": {"architecture": "gemma3", "window": WINDOW},
    "gemma4": {"architecture": "gemma4", "window": WINDOW},
    "mamba": {"architecture": "mamba"},
    "lfm2": {"architecture": "lfm2"},
    "hybrid": {"architecture": "qwen35"},
}


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
@pytest.mark.parametrize("windows", [1, 1.5, 2, 4, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_a_rewound_copy_gives_the_rows_of_a_fresh_read(context, tokens, from_disk, kind, windows, slots):
    length = int(windows * WINDOW)
    room = {"length": length, "saved_bytes": 10**8, "checkpoint_bytes": 10**8, "batch_size": 16}
    several = context(room | {"slots": slots}, **KINDS[kind])
    fresh = context(room, **KINDS[kind])
    one = several.slots[-1] if slots > 1 else several
    other = several.slots[0] if slots > 1 else several
    chance = np.random.default_rng(int(10 * windows) + slots)
    text = tokens(one.capacity - 2, seed=slots)  # llama.cpp rounds a length of a few tokens up
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
