"""The loop on exact toy models: speculation may never change the text, whatever drafts, fails or is cancelled."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.algorithm.loop import emit, speculate
from localspec.algorithm.protocols import Proposal, Verdict
from localspec.algorithm.verification import make_rule
from localspec.drafters.arbiter import Fixed, Plain
from localspec.drafters.lookup import LookupDrafter
from localspec.drafters.model import ModelDrafter
from localspec.events import Origin, Source
from localspec.sampler.sampling import Sampling
from tests.algorithm.toys import END, VOCABULARY, Blend, Toy

GREEDY = Sampling(temperature=0)


def is_end(token):
    return token == END


class Scripted(LookupDrafter):
    """A drafter that proposes arbitrary tokens of arbitrary number: the text must not care."""

    def __init__(self, seed):
        super().__init__()
        self.random = random.Random(seed)

    def propose(self, tokens, limit, rule=None, stopping=None):
        count = self.random.randint(0, limit)
        guesses = tuple(self.random.randrange(VOCABULARY) for _ in range(count))
        return Proposal(guesses, (None,) * count, (1.0,) * count, Source.LOOKUP)


def strategy_of(kind, seed, rule, depth):
    if kind == "none":
        return Plain()
    if kind == "scripted":
        return Fixed(Scripted(seed), depth, rule)
    return Fixed(ModelDrafter(Blend(seed, agreement=kind), is_end), depth, rule)


def never(token):
    return False


def run(target, strategy, prompt, *, room, rule, ends=is_end):
    tokens = list(prompt)
    list(target.prefill(tokens[target.length : -1]))
    return tokens, list(speculate(target, strategy, tokens, rule=rule, room=room, is_end=ends))


def plain_text(seed, prompt, room):
    """Token by token with a fresh toy, sharing no code with the loop."""
    tokens = list(prompt)
    for _ in range(room):
        toy = Toy(seed)
        (row,) = toy.decode(tokens, rows=1).rows
        tokens.append(int(np.argmax(row)))
        if tokens[-1] == END:
            break
    return tokens


@given(
    seed=st.integers(0, 10**6),
    depth=st.integers(0, 9),
    kind=st.sampled_from(["none", "scripted", 0.0, 0.5, 0.9, 1.0]),
    prompt=st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=12),
    room=st.integers(1, 40),
)
@settings(max_examples=250)
def test_greedy_speculation_never_changes_the_text(seed, depth, kind, prompt, room):
    rule = make_rule("greedy", GREEDY, seed)
    tokens, _ = run(Toy(seed), strategy_of(kind, seed, rule, depth), prompt, room=room, rule=rule)
    assert tokens == plain_text(seed, prompt, room)


@pytest.mark.parametrize("rule_name", ["block", "coupled"])
@pytest.mark.parametrize("moment", range(8))
def test_a_run_cancelled_at_random_moments_and_continued_equals_one_that_was_not(rule_name, moment):
    """Twenty-five cancels for each combination, some inside the prefill, some between cycles: 600 in all."""
    chance = random.Random(moment)
    prompt = [chance.randrange(1, VOCABULARY) for _ in range(30)]
    rule = make_rule(rule_name, Sampling(temperature=0.9, top_k=0, top_p=1.0, min_p=0.0), seed=moment)

    def drafting():
        return Fixed(ModelDrafter(Blend(7, 0.8), never), 3, rule)

    whole, _ = run(Toy(7), drafting(), prompt, room=60, rule=rule, ends=never)

    target, strategy, tokens = Toy(7), drafting(), list(prompt)
    for _ in range(25):
        if target.length < len(prompt) - 1:
            next(target.prefill(tokens[target.length : -1]), None)
        else:
            room = len(prompt) + 60 - len(tokens)
            loop = speculate(target, strategy, tokens, rule=rule, room=room, is_end=never)
            for _ in itertools.islice(loop, chance.randint(0, 3)):
                pass
            loop.close()
        assert target.cache == tokens[: target.length]
    room = len(prompt) + 60 - len(tokens)
    list(speculate(target, strategy, tokens, rule=rule, room=room, is_end=never))
    assert tokens == whole


def test_the_draft_never_decodes_again_what_is_in_its_cache():
    rule = make_rule("greedy", GREEDY, 1)
    draft = Toy(7)
    prompt = [1, 2, 3, 4]
    tokens = list(prompt)
    target = Toy(7)
    list(target.prefill(tokens[:-1]))
    strategy = Fixed(ModelDrafter(draft, never), 4, rule)
    list(speculate(target, strategy, tokens, rule=rule, room=50, is_end=never))
    # A draft that is always right decodes each token of the text at most once.
    assert draft.decoded <= len(tokens) - 1


def test_the_draft_drops_its_rejected_tail_and_keeps_the_rest():
    rule = make_rule("greedy", GREEDY, 1)
    draft = Blend(3, agreement=0.5)
    tokens = [5, 6, 7]
    target = Toy(3)
    list(target.prefill(tokens[:-1]))
    strategy = Fixed(ModelDrafter(draft, never), 5, rule)
    for _ in speculate(target, strategy, tokens, rule=rule, room=80, is_end=never):
        assert draft.cache == tokens[: draft.length]


@given(
    accepted=st.integers(0, 5),
    drafted=st.integers(0, 5),
    end_at=st.integers(0, 8),
)
def test_emitting_stops_after_the_first_end_token(accepted, drafted, end_at):
    accepted = min(accepted, drafted)
    proposal = Proposal(tuple(range(1, drafted + 1)), (None,) * drafted, (1.0,) * drafted, Source.MODEL)
    origin = Origin.BONUS if accepted == drafted else Origin.FIX
    emitted, origins = emit(proposal, Verdict(accepted, 99, origin), lambda token: token == end_at)
    assert len(emitted) == len(origins)
    if 1 <= end_at <= accepted:
        assert emitted[-1] == end_at
        assert len(emitted) == end_at
    else:
        assert emitted == (*range(1, accepted + 1), 99)
        assert origins[-1] is origin


def test_forced_tokens_in_front_of_a_proposal_are_told_apart():
    proposal = Proposal((1, 2, 3), (None,) * 3, (1.0,) * 3, Source.MODEL, certain=2)
    _, origins = emit(proposal, Verdict(3, 9, Origin.BONUS), never)
    assert origins == (Origin.FORCED, Origin.FORCED, Origin.ACCEPTED, Origin.BONUS)


def test_the_room_is_never_exceeded_even_when_everything_is_accepted():
    rule = make_rule("greedy", GREEDY, 1)
    for room in range(1, 12):
        tokens, cycles = run(Toy(7), strategy_of(1.0, 7, rule, 8), [1, 2], room=room, rule=rule)
        if tokens[-1] != END:
            assert len(tokens) == 2 + room
        assert sum(len(c.tokens) for c in cycles) == len(tokens) - 2


class Padding(Scripted):
    """Wants every verify batch to have the same width."""

    def __init__(self, seed, width):
        super().__init__(seed)
        self.width = width

    def propose(self, tokens, limit, rule=None, stopping=None):
        proposal = super().propose(tokens, limit)
        return replace(proposal, padding=max(self.width - len(proposal.tokens) - 1, 0))


@given(seed=st.integers(0, 10**6), width=st.integers(1, 12), capacity=st.integers(40, 80))
@settings(deadline=None, max_examples=60)
def test_rows_that_fill_a_batch_are_seen_by_nobody_and_need_no_room(seed, width, capacity):
    prompt, room = [3, 1, 4], capacity - 3
    target, rule = Toy(seed, capacity=capacity), make_rule("greedy", GREEDY, 0)
    tokens, cycles = run(
        target, Fixed(Padding(seed, width), 4, rule), prompt, room=room, rule=rule, ends=never
    )
    plain, _ = run(Toy(seed), Plain(), prompt, room=room, rule=rule, ends=never)
    assert tokens == plain
    assert all(cycle.width == cycle.drafted + 1 for cycle in cycles)
    assert target.cache == tokens[:-1]


def test_a_wait_for_the_prompts_of_others_is_counted_apart():
    class Waited(Toy):
        def decode(self, tokens, rows):
            return replace(super().decode(tokens, rows), waited_seconds=3.0)

    told, rule = iter([0.0, 5.0]), make_rule("auto", GREEDY, 0)
    (cycle,) = speculate(Waited(7), Plain(), [1], rule=rule, room=1, is_end=never, clock=lambda: next(told))
    assert (cycle.seconds, cycle.waited_seconds) == (2.0, 3.0)
