"""Heads of three replies in one context: they draft as each does alone, in a third of the passes."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice

import numpy as np
import pytest

from localspec.algorithm.pass_order import PassSeconds
from localspec.llama.head import HeadCache
from tests.drafters.heads import KINDS, opened_slots
from tests.drafters.test_heads_on_ggufs import Watching, difference

DEPTH, CYCLES, REPLIES = 3, 12, 3
SHARING = {name: kind for name, kind in KINDS.items() if kind.keeps}  # others read the target's cache


@pytest.fixture
def passes(monkeypatch):
    """How many heads shared each pass, in the order of their slots; sharing always pays."""
    decode, found = HeadCache._decode, []

    def counted(cache, call, layer, heads):
        assert [head.sequence for head in heads] == sorted(head.sequence for head in heads)
        found.append(len(heads))
        decode(cache, call, layer, heads)

    monkeypatch.setattr(HeadCache, "_decode", counted)
    monkeypatch.setattr(PassSeconds, "pays", lambda *_: True)
    return found


def drafted(pair, prompt, begun):
    """The rows that a reply drafts from, and its cycles."""
    watching, text = Watching(), list(prompt)
    with pair.target.running():
        begun.wait()
        cycles = list(islice(pair.cycles(text, DEPTH, 200, watching), CYCLES))
    return watching.rows, [(cycle.tokens, cycle.accepted) for cycle in cycles], text


@pytest.mark.parametrize("name", SHARING)
def test_three_replies_at_once_draft_as_each_does_alone_in_a_third_of_the_passes(name, passes, tmp_path):
    kind = KINDS[name]
    files = kind.files(tmp_path)
    prompts = [np.random.default_rng(i).integers(0, kind.walk.vocab_size, 8 + i).tolist() for i in range(3)]
    with ExitStack() as opened:
        pairs = [opened.enter_context(opened_slots(kind, files, 1))[0] for _ in prompts]
        begin(pairs, prompts)
        alone = list(map(drafted, pairs, prompts, [threading.Barrier(1)] * REPLIES))
    separate = len(passes)
    passes.clear()
    begun = threading.Barrier(REPLIES, timeout=300)
    with opened_slots(kind, files, REPLIES) as pairs, ThreadPoolExecutor(REPLIES) as threads:
        begin(pairs, prompts)
        found = list(threads.map(drafted, pairs, prompts, [begun] * REPLIES))
    assert len(passes) <= 1.1 * separate / REPLIES
    for (rows, cycles, text), (rows_alone, cycles_alone, text_alone) in zip(found, alone, strict=True):
        assert (cycles, text) == (cycles_alone, text_alone)
        assert max(map(difference, rows, rows_alone)) < 1e-2
    assert sum(accepted for _, cycles, _ in found for _, accepted in cycles) > 0


def begin(pairs, prompts):
    for pair, prompt in zip(pairs, prompts, strict=True):
        pair.begin(prompt)
