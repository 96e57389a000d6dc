"""Who drafts: by value per second; and whoever does, the text stays the target's."""

import math
import random
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.algorithm.loop import speculate
from localspec.algorithm.verification import make_rule
from localspec.chat.request import Request
from localspec.control.acceptance import AcceptanceModel
from localspec.control.costs import Costs, CostTable
from localspec.control.depth import START, DepthControl
from localspec.drafters.copies import CopyDrafter
from localspec.drafters.model import ModelDrafter
from localspec.drafters.selection import MOST_SKIPPED, Plain, best_prefix
from localspec.events import Mode, Source
from localspec.loading.drafting import Drafting
from localspec.sampler.passes import ForwardPass
from localspec.sampler.sampling import Sampling
from tests.algorithm.exact_models import END, Blend, ExactModel, never

CHEAP = CostTable((1, 2, 9, 33), (1.0, 1.02, 1.16, 1.6), {"model": 0.05})
DEAR = CostTable((1, 2, 9, 33), (1.0, 1.3, 2.0, 4.0), {"model": 0.3})
GREEDY = Sampling(temperature=0)


class Ticking(ExactModel):
    """An exact model whose time follows a table, so that decisions do not depend on the machine of the test."""

    table = CHEAP

    def decode(self, tokens, rows):
        self.busy_seconds += self.table.verify(len(tokens))
        return super().decode(tokens, rows)


class TickingDraft(Blend):
    def decode(self, tokens, rows):
        self.busy_seconds += DEAR.run_seconds["model"]
        return super().decode(tokens, rows)


def is_end(token):
    return token == END


def drafting_of(draft, table, deepest, *, most=32, lookup=True, learned=None, end=never):
    drafters = [] if draft is None else [ModelDrafter(draft, end)]
    return Drafting(drafters, table, deepest, most=most, lookup=lookup, learned=learned)


def run(target, draft, prompt, *, drafting, room, rule, end=is_end):
    tokens = list(prompt)
    strategy = drafting.strategy(rule, Request(Sampling(temperature=float(rule.name != "greedy"))))
    strategy.observe(ForwardPass(0, ()), 0)
    target.rollback(0)
    for batch in target.prefill(tokens[:-1]):
        strategy.observe(batch, len(batch.tokens))
    models = [target] if draft is None else [target, draft]

    def clock():
        return sum(one.busy_seconds for one in models)

    return tokens, list(speculate(target, strategy, tokens, rule=rule, room=room, is_end=end, clock=clock))


def plain(seed, prompt, room, rule, end=is_end):
    tokens, target = list(prompt), ExactModel(seed)
    list(target.prefill(tokens[:-1]))
    list(speculate(target, Plain(), tokens, rule=rule, room=room, is_end=end))
    return tokens


@pytest.mark.process
@given(
    seed=st.integers(0, 10**6),
    agreement=st.sampled_from([None, 0.0, 0.5, 0.9, 1.0]),
    lookup=st.booleans(),
    deepest=st.sampled_from([1, 4, 8]),
    prompt=st.lists(st.integers(1, 3), min_size=1, max_size=40),
    rule_name=st.sampled_from(["greedy", "coupled"]),
    turns=st.integers(1, 2),
)
@settings(max_examples=150, deadline=None)
def test_auto_depth_stopping_and_lookup_never_change_the_text(
    seed, agreement, lookup, deepest, prompt, rule_name, turns
):
    rule = make_rule(rule_name, GREEDY if rule_name == "greedy" else Sampling(temperature=0.8), seed)
    draft = None if agreement is None else TickingDraft(seed, agreement)
    drafting = drafting_of(draft, CHEAP, deepest, lookup=lookup, end=is_end)
    for _ in range(turns):
        tokens, cycles = run(Ticking(seed), draft, prompt, drafting=drafting, room=60, rule=rule)
        assert tokens == plain(seed, prompt, 60, rule)
        assert all(cycle.drafted <= cycle.depth or not cycle.depth for cycle in cycles)
        prompt = [*tokens, 1]


class Reciting(Ticking):
    """A target that recites a given text, whatever it reads."""

    def __init__(self, recital, start):
        super().__init__(0, vocabulary=4000)
        self.recital = recital
        self.start = start

    def row(self):
        row = super().row() * 0
        position = self.length - self.start
        row[self.recital[position] if 0 <= position < len(self.recital) else 1] = 9
        return row


def edited(text, changes, chance):
    answer = list(text)
    for i in sorted(chance.sample(range(50, len(text) - 50), changes)):
        answer[i] = chance.randrange(3000, 4000)
    return answer


def test_editing_a_text_is_mostly_lookup_and_three_times_as_fast():
    """2,000 tokens with ten changes, at the costs of a 1.5 B model in F16 on two CPU cores."""
    chance, ranges = random.Random(1), ((1000, 1800), (100, 150))
    text = [chance.randrange(*ranges[chance.random() < 0.5]) for _ in range(2000)]
    prompt, answer = [5, 6, 7, *text, 8, 9], edited(text, 10, chance)
    table = CostTable((1, 2, 3, 4, 5, 6, 8), (1, 1.27, 1.33, 1.40, 1.50, 1.63, 2.03), {"model": 0.1})
    target = Reciting(answer, start=len(prompt))
    target.table = table
    rule = make_rule("greedy", GREEDY, 1)
    tokens, cycles = run(
        target, None, prompt, drafting=drafting_of(None, table, 2), room=2000, rule=rule, end=never
    )
    assert tokens[len(prompt) :] == answer
    by_lookup = sum(cycle.accepted for cycle in cycles if cycle.source is Source.LOOKUP)
    assert by_lookup >= 0.8 * len(answer)
    assert len(answer) * table.verify(1) >= 3 * sum(cycle.verify_seconds for cycle in cycles)


def test_a_model_that_is_worth_more_than_a_doubtful_guess_drafts():
    """After three tokens that repeat, every other time the same one follows; the model is always right.

    Long copies look better than they are until several were rejected. A guess that is not used takes no plain steps.
    """
    chance = random.Random(2)
    recital = [
        token for _ in range(300) for token in (1, 2, 3, chance.choice((7, chance.randrange(10, 3000))))
    ]
    prompt = recital[:40]
    target, rule = Reciting(recital[40:], start=40), make_rule("greedy", GREEDY, 1)
    draft = Reciting(recital[40:], start=40)
    draft.table = CostTable((1, 2), (0.05, 0.05), {"model": 0.0})
    _, cycles = run(
        target, draft, prompt, drafting=drafting_of(draft, CHEAP, 8), room=1000, rule=rule, end=never
    )
    later = cycles[len(cycles) // 2 :]
    assert sum(cycle.source is Source.LOOKUP for cycle in later) < 0.2 * len(later)
    assert sum(cycle.accepted for cycle in cycles if cycle.source is Source.MODEL) > 600
    assert sum(cycle.mode is Mode.BASELINE for cycle in cycles) <= 4


class Pair:
    """A dear target with a draft that can be made better or worse."""

    def __init__(self, learned=None):
        self.draft = TickingDraft(3, 0.0)
        self.drafting = drafting_of(self.draft, DEAR, 8, learned=learned)

    def replied(self, room, agreement=0.0):
        self.draft.agreement = agreement
        target, rule = Ticking(3), make_rule("greedy", GREEDY, 1)
        target.table = DEAR
        return run(target, self.draft, [1, 2], drafting=self.drafting, room=room, rule=rule, end=never)[1]


@given(st.lists(st.floats(0, 1), max_size=40), st.integers(1, 32))
def test_the_best_prefix_has_the_most_tokens_per_second_within_the_bound(chances, most):
    costs = Costs(CHEAP)
    depth, value = best_prefix(chances, costs.verify(most + 1), costs.verify)
    expected = [
        1 + sum(math.prod(chances[: i + 1]) for i in range(depth)) for depth in range(len(chances) + 1)
    ]
    values = [tokens / costs.verify(depth + 1) for depth, tokens in enumerate(expected)][1 : most + 1]
    assert (depth, value) == (
        (values.index(max(values)) + 1, pytest.approx(max(values))) if values else (0, 0.0)
    )


def test_a_reply_in_which_the_draft_was_useless_does_not_hold_the_next_one_back():
    pair = Pair()
    pair.replied(400)
    cycles = pair.replied(100, agreement=1.0)
    assert max(cycle.drafted for cycle in cycles[:8]) > 1
    assert sum(cycle.accepted for cycle in cycles) > 50


def test_what_one_run_teaches_the_next_one_knows():
    pair = Pair()
    unknown = pair.replied(200)[:10]
    known = Pair(pair.drafting.learned).replied(10)
    assert sum(cycle.drafted for cycle in known) < sum(cycle.drafted for cycle in unknown)


def following(token):
    return (7 * token + 1) % 23


class Forgetting(Ticking):
    """A model that looks at the newest token alone, so that a window of the text suffices."""

    def row(self):
        return np.eye(self.vocabulary, dtype=np.float32)[following(self.cache[-1])]


def test_a_draft_model_goes_on_drafting_when_the_text_outgrows_its_cache():
    target, draft = Forgetting(3), Forgetting(3, capacity=64)
    draft.table = CostTable((1, 2), (0.05, 0.05), {"model": 0.0})
    rule = make_rule("greedy", GREEDY, 1)
    drafting = drafting_of(draft, CHEAP, 8, lookup=False)
    tokens, cycles = run(target, draft, [1, 2], drafting=drafting, room=400, rule=rule, end=never)
    assert all(tokens[i + 1] == following(tokens[i]) for i in range(1, 401))
    assert sum(cycle.accepted for cycle in cycles[-30:]) > 100
    assert draft.length <= 64


def test_steps_that_decide_on_drafting_say_how_long_it_took():
    rule = make_rule("greedy", GREEDY, 1)
    _, cycles = run(Ticking(1), None, [1, 2, 3], drafting=drafting_of(None, DEAR, 2), room=40, rule=rule)
    steps = [cycle for cycle in cycles if cycle.is_plain]
    assert steps[0].deciding_seconds > 0.0
    # After a decision that a busy machine made long, a few steps have none.
    assert sum(cycle.deciding_seconds > 0.0 for cycle in steps) > len(steps) / 4


def test_steps_without_a_decision_are_not_learned_refill_the_budget_and_are_observed_together(monkeypatch):
    target, rule, learned, saved, seen = Ticking(3), make_rule("greedy", GREEDY, 1), [], [], []
    target.table = CostTable((1, 2), (1e-6, 2e-6), {})
    learn, save, observe = Costs.learn_verify, DepthControl.save, CopyDrafter.observe
    monkeypatch.setattr(Costs, "learn_verify", lambda *a, **k: learned.append(1) or learn(*a, **k))
    monkeypatch.setattr(DepthControl, "save", lambda self, count: saved.append(count) or save(self, count))
    monkeypatch.setattr(CopyDrafter, "observe", lambda self, *a: seen.append(a) or observe(self, *a))
    tokens, cycles = run(
        target, None, [1, 2], drafting=drafting_of(None, DEAR, 2), room=400, rule=rule, end=never
    )
    skipped = sum(cycle.is_plain and not cycle.deciding_seconds for cycle in cycles)
    assert skipped > 200
    assert len(learned) == len(cycles) - skipped
    plain = sum(len(cycle.tokens) for cycle in cycles if cycle.is_plain)
    assert plain - MOST_SKIPPED <= sum(saved) <= plain
    assert len(seen) < len(cycles) / 4
    known = []
    for batch, kept in seen:
        known[batch.start :] = batch.tokens[:kept]
    assert known == tokens[: len(known)]
    assert len(tokens) - len(known) <= MOST_SKIPPED + 1


def test_wide_passes_have_multiples_of_sixteen_tokens():
    widths = {best_prefix([0.999] * room, inf, lambda width: 1 + 0.01 * width)[0] + 1 for room in range(64)}
    assert widths == {*range(1, 17), 32, 48, 64}


def test_copies_that_the_budget_does_not_pay_are_judged_by_the_written_tokens():
    costs = Costs(CostTable((1, 2), (1.0, 1.6), {}))
    control = DepthControl(costs, CopyDrafter(), AcceptanceModel(), 8)
    for _ in range(9):
        control.judge(kept=False)
    assert control.affordable_seconds == 1.0
    for _ in range(2):
        control.judge(kept=True)
    assert control.affordable_seconds == pytest.approx(1.8)
    for _ in range(99):
        control.judge(kept=True)
    assert control.affordable_seconds == 1 + START


@pytest.mark.parametrize(("step_seconds", "decisions"), [(1e-6, 400 / 33), (1e3, 400)])
def test_where_a_decision_costs_much_of_a_plain_step_fewer_steps_have_one(step_seconds, decisions):
    target, rule = Ticking(3), make_rule("greedy", GREEDY, 1)
    target.table = CostTable((1, 2), (step_seconds, 2 * step_seconds), {})
    _, cycles = run(target, None, [1, 2], drafting=drafting_of(None, DEAR, 2), room=400, rule=rule, end=never)
    decided = sum(cycle.deciding_seconds > 0 for cycle in cycles if cycle.is_plain)
    assert decided <= 1.5 * decisions
    assert decided >= 0.5 * min(decisions, sum(cycle.is_plain for cycle in cycles))
