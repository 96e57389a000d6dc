"""Calibration with a simulated clock: right within noise, within its budget, and without traces."""

import random

import pytest

from localspec.control.costs import Costs, CostTable
from localspec.drafters.model import ModelDrafter
from localspec.errors import ContextFull
from localspec.loading.drafting import calibrate
from tests.algorithm.exact_models import ExactModel, never

TEXT = tuple(range(1, 65))


class Timed(ExactModel):
    """An exact model whose passes take simulated time."""

    def __init__(self, clock, seconds, **kwargs):
        super().__init__(1, **kwargs)
        self.clock = clock
        self.seconds = seconds
        self.widths = []
        self.run = 0

    def decode(self, tokens, rows):
        if self.length + len(tokens) > self.capacity:
            raise ContextFull("no room")
        self.run = self.run + 1 if self.widths and self.widths[-1] == len(tokens) else 1
        self.widths.append(len(tokens))
        self.clock.now += self.seconds(len(tokens), self.run)
        return super().decode(tokens, rows)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def run(seconds, *, budget=3.0, step=0.002, capacity=4096):
    clock = Clock()
    target = Timed(clock, seconds, capacity=capacity)
    draft = Timed(clock, lambda width, run: step)
    target.cache, draft.cache = [1, 2, 3], [1, 2, 3]
    table = calibrate(target, [ModelDrafter(draft, never)], TEXT, budget_seconds=budget, clock=clock)
    assert target.cache == draft.cache == [1, 2, 3]
    return table, clock.now - 100.0


def curve(width, run=9):
    return 0.01 * (1 + 0.1 * (width - 1)) * (2 if width > 8 else 1)


def test_every_width_is_measured():
    table, _ = run(curve)
    assert table.widths == (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 32, 64)
    assert table.verify_seconds == pytest.approx([curve(n) for n in table.widths])
    assert table.run_seconds == pytest.approx({"model": 0.002})
    assert table.measured


def test_noise_and_hiccups_leave_the_medians_alone():
    chance = random.Random(3)

    def noisy(width, run):
        return curve(width) * chance.gauss(1, 0.06) * (5 if chance.random() < 0.05 else 1)

    table, _ = run(noisy)
    assert table.verify_seconds == pytest.approx([curve(n) for n in table.widths], rel=0.15)


def test_a_wild_price_of_reading_passes_and_one_that_nothing_confirms_is_not_stored():
    table = CostTable((1, 2), (1.0, 1.2), {"model": 0.1}, prefill_seconds={"model": 0.01})
    costs = Costs(table)
    assert costs.table().prefill_seconds == {}
    costs.learn_prefill("model", 10, 5.0)
    assert costs.reading("model") == costs.table().prefill_seconds["model"] == 0.01
    for _ in range(5):
        costs.learn_prefill("model", 10, 0.2)
    assert costs.table().prefill_seconds["model"] == pytest.approx(0.02, rel=0.2)


def test_passes_decode_the_text_and_not_one_token_over_and_over():
    """A mixture of experts asks for more of them the more its tokens differ."""
    clock, asked = Clock(), set()

    class Mixture(Timed):
        def decode(self, tokens, rows):
            asked.add(len(set(tokens)) == len(tokens))
            return super().decode(tokens, rows)

    drafter = ModelDrafter(Mixture(clock, curve), never)
    calibrate(Mixture(clock, curve), [drafter], TEXT, budget_seconds=3, clock=clock)
    assert asked == {True}


@pytest.mark.parametrize("plain", [0.001, 0.02, 0.1, 0.15, 0.4])
def test_the_budget_is_kept_on_slow_machines(plain):
    table, spent = run(lambda width, run: plain * (1 + 0.3 * (width - 1)), step=plain / 10)
    assert spent <= 3.0
    assert table is None or table.widths[0] == 1


def test_a_machine_too_slow_for_the_budget_gets_no_table():
    table, _ = run(lambda width, run: 10.0)
    assert table is None


def test_widths_that_do_not_fit_the_context_are_left_out():
    table, _ = run(curve, capacity=3 + 9)
    assert table.widths == (1, 2, 3, 4, 5, 6, 7, 8, 9)


def test_a_draft_without_room_is_not_taken_for_a_free_one():
    clock = Clock()
    target, draft = Timed(clock, curve), Timed(clock, lambda width, run: 0.002, capacity=6)
    target.cache, draft.cache = [1, 2, 3], [1, 2, 3]
    with pytest.raises(ContextFull):
        calibrate(target, [ModelDrafter(draft, never)], TEXT, budget_seconds=3, clock=clock)
    assert draft.cache == [1, 2, 3]
