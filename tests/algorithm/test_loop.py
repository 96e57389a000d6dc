"""The loop on exact models: speculation may never change the text, whatever drafts, fails or is cancelled."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.algorithm.loop import emit, speculate
from localspec.algorithm.protocols import Proposal, Verdict
from localspec.algorithm.verification import make_rule
from localspec.drafters.copies import CopyDrafter
from localspec.drafters.model import ModelDrafter
from localspec.drafters.selection import Fixed, Plain
from localspec.events import Origin, Source
from localspec.sampler.sampling import Sampling
from tests.algorithm.exact_models import END, VOCABULARY, Blend, ExactModel, never

GREEDY = Sampling(temperature=0)
OPEN = Sampling(temperature=0.9, top_k=0, top_p=1.0, min_p=0.0)


def is_end(token):
    return token == END


class Scripted(CopyDrafter):
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


def run(target, strategy, prompt, *, room, rule, ends=is_end):
    tokens = list(prompt)
    list(target.prefill(tokens[target.length : -1]))
    return tokens, list(speculate(target, strategy, tokens, rule=rule, room=room, is_end=ends))


def plain_text(seed, prompt, room):
    """Token by token with a fresh model, sharing no code with the loop."""
    tokens = list(prompt)
    for _ in range(room):
        model = ExactModel(seed)
        (row,) = model.decode(tokens, rows=1).rows
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
    tokens, _ = run(ExactModel(seed), strategy_of(kind, seed, rule, depth), prompt, room=room, rule=rule)
    assert tokens == plain_text(seed, prompt, room)


@pytest.mark.parametrize("rule_name", ["block", "coupled"])
@pytest.mark.parametrize("moment", range(8))
def test_a_run_cancelled_at_random_moments_and_continued_equals_one_that_was_not(rule_name, moment):
    """Twenty-five cancels for each combination, some inside the prefill, some between cycles: 600 in all."""
    chance = random.Random(moment)
    prompt = [chance.randrange(1, VOCABULARY) for _ in range(30)]
    rule = make_rule(rule_name, OPEN, seed=moment)

    def drafting():
        return Fixed(ModelDrafter(Blend(7, 0.8), never), 3, rule)

    whole, _ = run(ExactModel(7), drafting(), prompt, room=60, rule=rule, ends=never)

    target, strategy, tokens = ExactModel(7), drafting(), list(prompt)
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


@pytest.mark.parametrize("agreement", [0.5, 1.0])
def test_the_draft_drops_its_rejected_tail_and_decodes_nothing_twice(agreement):
    rule, target, draft, tokens = (
        make_rule("greedy", GREEDY, 1),
        ExactModel(3),
        Blend(3, agreement),
        [5, 6, 7],
    )
    list(target.prefill(tokens[:-1]))
    strategy = Fixed(ModelDrafter(draft, never), 5, rule)
    for _ in speculate(target, strategy, tokens, rule=rule, room=80, is_end=never):
        assert draft.cache == tokens[: draft.length]
    assert agreement < 1 or draft.decoded <= len(tokens) - 1


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


def test_forced_tokens_in_front_of_a_proposal_are_distinguished():
    proposal = Proposal((1, 2, 3), (None,) * 3, (1.0,) * 3, Source.MODEL, certain=2)
    _, origins = emit(proposal, Verdict(3, 9, Origin.BONUS), never)
    assert origins == (Origin.FORCED, Origin.FORCED, Origin.ACCEPTED, Origin.BONUS)


@pytest.mark.parametrize(("end", "seconds"), [(5.0, 2.0), (2.0, 0.0)])
def test_a_wait_for_others_is_counted_apart_and_leaves_no_negative_time(end, seconds):
    class Waited(ExactModel):
        def decode(self, tokens, rows):
            return super().decode(tokens, rows)._replace(waited_seconds=3.0)

    reported, rule = iter([0.0, end]), make_rule("auto", GREEDY, 0)
    (cycle,) = speculate(
        Waited(7), Plain(), [1], rule=rule, room=1, is_end=never, clock=lambda: next(reported)
    )
    assert (cycle.seconds, cycle.waited_seconds) == (seconds, 3.0)
