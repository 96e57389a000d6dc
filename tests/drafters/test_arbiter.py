"""Who drafts: by value per second; and whoever does, the text stays the target's."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.drafters.arbiter import REST_TOKENS, best_prefix
from localspec.drafters.fixed import Plain
from localspec.drafters.lookup import Guess
from localspec.drafters.model import ModelDrafter
from localspec.drafters.tuning import Tuning
from localspec.events import Mode, Source
from localspec.speculation.costs import Costs, CostTable
from localspec.speculation.loop import speculate
from localspec.speculation.sampling import Sampling
from localspec.speculation.verification import make_rule

from ..speculation.toys import END, Blend, Toy

CHEAP = CostTable((1, 2, 9, 33), (1.0, 1.02, 1.16, 1.6), 0.05)
DEAR = CostTable((1, 2, 9, 33), (1.0, 1.3, 2.0, 4.0), 0.3)
GREEDY = Sampling(temperature=0)


class Ticking(Toy):
    """A toy whose time follows a table, so that decisions do not depend on the machine of the test."""

    table = CHEAP

    def decode(self, tokens, rows):
        self.busy_seconds += self.table.verify(len(tokens))
        return super().decode(tokens, rows)


class TickingDraft(Blend):
    def decode(self, tokens, rows):
        self.busy_seconds += DEAR.draft_step_seconds
        return super().decode(tokens, rows)


def is_end(token):
    return token == END


def run(target, draft, prompt, *, tuning, room, rule, lookup, end=is_end):
    tokens = list(prompt)
    list(target.prefill(tokens[:-1]))
    model = None
    if draft is not None:
        list(draft.prefill(tokens[:-1]))
        model = ModelDrafter(draft, rule, end)
    strategy = tuning.strategy(model, lookup=lookup, sampled=rule.name != "greedy")
    models = [target] if draft is None else [target, draft]

    def clock():
        return sum(one.busy_seconds for one in models)

    return tokens, list(speculate(target, strategy, tokens, rule=rule, room=room, is_end=end, clock=clock))


def plain(seed, prompt, room, rule, end=is_end):
    tokens, toy = list(prompt), Toy(seed)
    list(toy.prefill(tokens[:-1]))
    list(speculate(toy, Plain(), tokens, rule=rule, room=room, is_end=end))
    return tokens


@given(
    seed=st.integers(0, 10**6),
    agreement=st.sampled_from([None, 0.0, 0.5, 0.9, 1.0]),
    lookup=st.booleans(),
    depths=st.sampled_from([(1, 2, 3, 5, 7), tuple(range(1, 9)), (2, 4)]),
    prompt=st.lists(st.integers(1, 3), min_size=1, max_size=40),
    rule_name=st.sampled_from(["greedy", "coupled", "compare"]),
    turns=st.integers(1, 2),
)
@settings(max_examples=150, deadline=None)
def test_auto_depth_stopping_and_lookup_never_change_the_text(
    seed, agreement, lookup, depths, prompt, rule_name, turns
):
    rule = make_rule(rule_name, GREEDY if rule_name == "greedy" else Sampling(temperature=0.8), seed)
    tuning = Tuning(CHEAP, depths, most=32)
    for _ in range(turns):
        draft = None if agreement is None else TickingDraft(seed, agreement)
        tokens, cycles = run(Ticking(seed), draft, prompt, tuning=tuning, room=60, rule=rule, lookup=lookup)
        assert tokens == plain(seed, prompt, 60, rule)
        assert all(cycle.drafted <= cycle.depth or not cycle.depth for cycle in cycles)
        prompt = [*tokens, 1]


def never(token):
    return False


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


def edit_task():
    chance = random.Random(1)
    text = [
        chance.randrange(100, 150) if chance.random() < 0.5 else chance.randrange(1000, 1800)
        for _ in range(2000)
    ]
    return [5, 6, 7, *text, 8, 9], edited(text, 10, chance)


def test_editing_a_text_is_mostly_lookup_and_three_times_as_fast():
    """2,000 tokens with ten changes, at the costs of a 1.5 B model in F16 on two CPU cores."""
    prompt, answer = edit_task()
    table = CostTable((1, 2, 3, 4, 5, 6, 8), (1, 1.27, 1.33, 1.40, 1.50, 1.63, 2.03), 0.1)
    target = Reciting(answer, start=len(prompt))
    target.table = table
    rule = make_rule("greedy", GREEDY, 1)
    tokens, cycles = run(
        target,
        None,
        prompt,
        tuning=Tuning(table, (1, 2), most=32),
        room=2000,
        rule=rule,
        lookup=True,
        end=never,
    )
    assert tokens[len(prompt) :] == answer
    by_lookup = sum(cycle.accepted for cycle in cycles if cycle.source is Source.LOOKUP)
    assert by_lookup >= 0.8 * len(answer)
    assert len(answer) * table.verify(1) >= 3 * sum(cycle.verify_seconds for cycle in cycles)


def test_a_model_that_is_worth_more_than_a_doubtful_guess_drafts():
    """After three tokens that repeat, every other time the same one follows; the model is always right."""
    chance = random.Random(2)
    recital = [
        token for _ in range(100) for token in (1, 2, 3, chance.choice((7, chance.randrange(10, 3000))))
    ]
    prompt = recital[:40]
    target, rule = Reciting(recital[40:], start=40), make_rule("greedy", GREEDY, 1)
    draft = Reciting(recital[40:], start=40)
    draft.table = CostTable((1, 2), (0.05, 0.05), 0.0)
    _, cycles = run(
        target,
        draft,
        prompt,
        tuning=Tuning(CHEAP, tuple(range(1, 9)), most=32),
        room=300,
        rule=rule,
        lookup=True,
        end=never,
    )
    by_lookup = sum(cycle.source is Source.LOOKUP for cycle in cycles)
    assert by_lookup < 0.2 * len(cycles)
    assert sum(cycle.accepted for cycle in cycles if cycle.source is Source.MODEL) > 200


def useless(tuning, room):
    return replied(tuning, room, agreement=0.0)


def replied(tuning, room, agreement):
    rule = make_rule("greedy", GREEDY, 1)
    target, draft = Ticking(3), TickingDraft(3, agreement)
    target.table = DEAR
    return run(target, draft, [1, 2], tuning=tuning, room=room, rule=rule, lookup=True, end=never)[1]


def fresh(state=None):
    return Tuning(DEAR, tuple(range(1, 9)), most=32, state=state)


def test_a_useless_draft_costs_at_most_three_percent_over_512_tokens():
    cycles = useless(fresh(), 512)
    assert sum(len(cycle.tokens) for cycle in cycles) == 512
    assert sum(cycle.seconds for cycle in cycles) <= 1.03 * 512
    assert sum(cycle.mode is Mode.OFF for cycle in cycles) > 400


@given(
    chances=st.lists(st.floats(0, 1), max_size=40),
    depths=st.sets(st.integers(1, 32), min_size=1).map(sorted),
)
def test_the_best_prefix_is_the_best_allowed_one(chances, depths):
    costs, guess = Costs(CHEAP), Guess(tuple(range(len(chances))), tuple(chances))
    depth, value = best_prefix(guess, depths, costs)
    expected, survival, values = 1.0, 1.0, [0.0]
    for i, chance in enumerate(chances):
        survival *= chance
        expected += survival
        values.append(expected / costs.verify(i + 2))
    allowed = {min(d, len(chances)) for d in depths} - {0}
    if not allowed:
        assert depth == 0
    else:
        assert depth in allowed
        assert value == pytest.approx(max(values[d] for d in allowed))


def test_what_one_reply_teaches_the_next_one_knows():
    tuning = fresh()
    useless(tuning, 200)
    assert sum(cycle.drafted for cycle in useless(tuning, 60)) <= 4


def test_a_reply_in_which_the_draft_was_useless_does_not_hold_the_next_one_back():
    tuning = fresh()
    useless(tuning, 400)
    cycles = replied(tuning, 100, agreement=1.0)
    assert max(cycle.drafted for cycle in cycles[:8]) > 1
    assert sum(cycle.accepted for cycle in cycles) > 50


def test_what_one_run_teaches_the_next_one_knows():
    tuning = fresh()
    unknown = useless(tuning, 200)[:10]
    known = useless(fresh(tuning.state()), 10)
    assert sum(cycle.drafted for cycle in known) < sum(cycle.drafted for cycle in unknown)


def test_a_guess_that_would_not_be_used_takes_no_plain_steps():
    """The text repeats itself now and then, but the model is always right and cheaper to trust."""
    chance = random.Random(2)
    recital = [
        token for _ in range(600) for token in (1, 2, 3, chance.choice((7, chance.randrange(10, 3000))))
    ]
    target, draft = Reciting(recital[40:], start=40), Reciting(recital[40:], start=40)
    draft.table = CostTable((1, 2), (0.05, 0.05), 0.0)
    _, cycles = run(
        target,
        draft,
        recital[:40],
        tuning=Tuning(CHEAP, tuple(range(1, 9)), most=32),
        room=2000,
        rule=make_rule("greedy", GREEDY, 1),
        lookup=True,
        end=never,
    )
    assert sum(cycle.mode is Mode.ANCHOR for cycle in cycles) <= 5


def test_a_draft_model_whose_context_is_full_is_not_judged():
    tuning = fresh()
    target, draft = Ticking(3), Ticking(3, capacity=40)
    draft.table = CostTable((1, 2), (0.05, 0.05), 0.0)
    rule = make_rule("greedy", GREEDY, 1)
    _, cycles = run(target, draft, [1, 2], tuning=tuning, room=400, rule=rule, lookup=False, end=never)
    assert any(cycle.drafted for cycle in cycles)
    assert all(not cycle.depth and cycle.mode is Mode.DRAFTING for cycle in cycles[-300:])
    assert tuning.strategy(ModelDrafter(draft, rule, never), lookup=False, sampled=False).why_off is None


class Hiccuping(Reciting):
    """Every fourth wide pass takes far longer than the others, which typical costs do not show."""

    wide = 0

    def decode(self, tokens, rows):
        self.wide += len(tokens) > 1
        self.busy_seconds += 20.0 if len(tokens) > 1 and self.wide % 4 == 0 else 0.0
        return super().decode(tokens, rows)


def test_lookup_that_loses_time_rests_and_gets_another_chance():
    target, tuning = Hiccuping([10, 11, 12, 13, 14, 15] * 400, start=12), Tuning(CHEAP, (1, 2), most=2)
    rule = make_rule("greedy", GREEDY, 1)
    _, cycles = run(
        target, None, target.recital[:12], tuning=tuning, room=1500, rule=rule, lookup=True, end=never
    )
    rests, plain_tokens = [], 0
    for cycle in cycles:
        if cycle.source is Source.LOOKUP:
            rests += [plain_tokens] if plain_tokens > 1 else []
            plain_tokens = 0
        else:
            plain_tokens += len(cycle.tokens)
    assert rests == [REST_TOKENS] * len(rests)
    assert len(rests) >= 3
