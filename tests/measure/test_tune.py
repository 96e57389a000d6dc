"""A cost curve is what the passes cost, and leaves the caches as empty as it found them."""

import re
from dataclasses import replace

import pytest

from localspec.events import Source
from localspec.measure.tune import as_json, report, tune
from localspec.sampler.passes import Pass
from tests.measure.scripted import Clock

TEXT = tuple(range(1, 50))


class PricedDecoder:
    """A cache whose passes take as long as a price list says; `change` is added when the width changes."""

    def __init__(self, clock, price, *, change=0.0, capacity=1000):
        self.clock, self.price, self.change, self.capacity = clock, price, change, capacity
        self.length = 0
        self.passes = 0
        self.last = 0

    def decode(self, tokens, rows):
        assert self.length + len(tokens) <= self.capacity
        self.clock.now += self.price(len(tokens)) + self.change * (len(tokens) != self.last)
        self.length += len(tokens)
        self.passes += 1
        self.last = len(tokens)

    def prefill(self, tokens):
        self.length += len(tokens)
        yield Pass(self.length - len(tokens), tokens)

    def rollback(self, keep):
        self.length = keep


class PricedDrafter:
    """A drafter whose runs take as long as is said."""

    source = Source.MODEL
    hidden_rows_needed = None

    def __init__(self, clock, seconds):
        self.clock, self.seconds, self.length = clock, seconds, 0

    def model_runs(self, depth):
        return depth

    def observe(self, batch, kept):
        self.length = batch.start + kept

    def read(self, tokens, most):
        assert self.length == len(tokens)
        return most

    def warm_up(self, batches):
        self.clock.now += self.seconds * len(batches)


def price(width):
    return 0.010 + 0.002 * width


def measured(seconds=60.0, **settings):
    clock = Clock()
    target = PricedDecoder(clock, price, **settings)
    draft = PricedDrafter(clock, 0.003)
    return tune(target, [draft], TEXT, seconds=seconds, clock=clock), target, draft


def test_every_width_costs_what_it_costs():
    curve, target, draft = measured()
    assert curve.table.widths == (1, 2, 3, 4, 5, 6, 7, 8, 16, 32)
    assert curve.table.verify_seconds == pytest.approx([price(width) for width in curve.table.widths])
    assert curve.draft_seconds == pytest.approx([0.003 * depth for depth in range(8)])
    assert curve.table.context_tokens == 256
    assert (target.length, draft.length) == (0, 0)


def test_a_change_of_width_is_told_apart_from_the_width():
    curve, _, _ = measured(change=0.010)
    assert curve.table.verify(1) == pytest.approx(price(1))
    assert curve.table.direct_extra_seconds == pytest.approx(0.010)


def test_break_even_is_the_cycle_over_the_plain_step():
    curve, _, _ = measured()
    assert curve.break_even(3) == pytest.approx((price(4) + 3 * 0.003) / price(1))


def test_too_little_time_gives_no_curve():
    curve, target, draft = measured(seconds=0.001)
    assert curve is None
    assert (target.length, draft.length) == (0, 0)


def test_a_short_context_leaves_the_wide_passes_out():
    curve, _, _ = measured(capacity=20)
    assert curve.table.widths[-1] == 16


def test_a_recurrent_target_is_measured_without_stepping_back():
    """It can only forget everything."""
    clock = Clock()
    target = PricedDecoder(clock, price)
    kept = []
    target.rollback = lambda keep: (kept.append(keep), setattr(target, "length", keep))
    curve = tune(target, [], TEXT, seconds=60.0, steps_back=False, clock=clock)
    assert set(kept) == {0}
    assert len(curve.table.widths) == 10


def test_a_stopped_measurement_gives_no_curve_and_leaves_the_caches_empty():
    clock = Clock()
    target = PricedDecoder(clock, price)
    stopped = lambda: target.passes > 3  # noqa: E731
    assert tune(target, [], TEXT, seconds=60.0, clock=clock, stopped=stopped) is None
    assert target.length == 0


def test_the_report_shows_the_table_and_from_where_on_drafting_pays():
    curve, _, _ = measured()
    text = report(curve)
    assert re.search(r"^ +2 .* 1 +1\.42$", text, re.M), "one guess makes a pass of two tokens"
    assert "A guess takes 3.0 ms, 25% of the time of a plain token." in text
    slow = report(replace(curve, draft_seconds=tuple(0.02 * depth for depth in range(8))))
    assert re.search(r"^ +2 .* 1 +never$", slow, re.M), "a pass after one guess writes two tokens at most"
    assert as_json(curve)["widths"][0]["seconds"] == pytest.approx(price(1))
