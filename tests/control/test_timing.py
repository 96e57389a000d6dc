"""The numbers that users are shown: speed-up with its uncertainty, sources, histograms, percentiles."""

import random
from dataclasses import astuple, replace

import pytest

from localspec.algorithm.protocols import PlainStep, Proposal
from localspec.control.timing import Tally
from localspec.events import Mode, Source, Stats
from tests.drafters.machine import cycle_of


def cycle(accepted, drafted, seconds, *, mode=Mode.DRAFTING, source=Source.MODEL, deciding=0.0):
    proposal = Proposal((1,) * drafted, source=source, depth=drafted, mode=mode)
    draft = seconds / 4 if drafted else 0.0
    found = cycle_of(proposal, accepted, verify=seconds / 2, draft=draft)
    return replace(found, other_seconds=seconds / 2 - draft, deciding_seconds=deciding)


def tally_of(*cycles):
    tally = Tally()
    for one in cycles:
        tally.add(one)
    return tally.stats()


def test_without_a_plain_step_no_speed_up_is_claimed():
    stats = tally_of(cycle(3, 3, 0.1))
    assert stats.speedup is None
    assert stats.saved_seconds is None


def test_plain_decoding_is_exactly_as_fast_as_itself():
    stats = tally_of(*(cycle(0, 0, s, mode=Mode.OFF) for s in (0.1, 0.2, 0.13) * 11))
    assert stats.speedup.value == pytest.approx(1.0)
    assert stats.speedup.low == stats.speedup.high
    assert stats.saved_seconds == pytest.approx(0.0)


def test_the_speed_up_is_measured_against_the_plain_steps():
    stats = tally_of(*[cycle(3, 3, 0.2), cycle(0, 0, 0.1), cycle(3, 3, 0.2)] * 4)
    assert stats.speedup.value == pytest.approx(0.9 / 0.5)
    assert stats.saved_seconds == pytest.approx(1.6)
    assert stats.speedup.low <= 1.8 <= stats.speedup.high


def test_no_speed_up_is_above_the_tokens_of_a_pass():
    """The plain step was slow, as on a busy machine: two passes of two tokens save no more than half."""
    stats = tally_of(*[cycle(1, 1, 0.1), cycle(0, 0, 0.9), cycle(1, 1, 0.1)] * 7)
    assert stats.plain_seconds > 4
    assert stats.speedup.value == stats.speedup.high == stats.mean_accepted_length == pytest.approx(5 / 3)
    assert stats.saved_seconds == pytest.approx(2 / 3 * stats.decode_seconds)


@pytest.mark.parametrize("slow", [1.0, 1.1, 1.3])
def test_no_loss_is_above_the_time_of_drafts_and_wide_passes(slow):
    """One draft token in 86 passes cannot have made a reply slower by a third."""
    tally = Tally(known=lambda: PlainStep(0.1))
    tally.add(cycle(0, 1, 0.15))
    for _ in range(85):
        tally.add(cycle(0, 0, 0.1 * slow, mode=Mode.OFF))
    stats = tally.stats()
    if slow > 1.2:  # the machine is slower than when the cost was measured
        assert stats.speedup is stats.saved_seconds is None
    else:
        assert stats.speedup.value > 0.99
        assert stats.saved_seconds >= -0.05 * slow


def test_a_step_is_plain_by_its_width_and_not_by_its_purpose():
    """Forced tokens in front of a plain step make it a batch of many."""
    stats = tally_of(cycle(0, 0, 0.1), cycle(3, 3, 0.2, mode=Mode.BASELINE))
    assert stats.plain_seconds == pytest.approx(0.5)


@pytest.mark.parametrize("mode", [Mode.DRAFTING, Mode.OFF, Mode.BASELINE])
def test_what_plain_steps_take_to_decide_on_drafting_is_a_loss(mode):
    stats = tally_of(*(cycle(0, 0, 0.1, mode=mode, deciding=0.02) for _ in range(32)))
    assert stats.plain_seconds == pytest.approx(32 * 0.08)
    assert stats.speedup.value == pytest.approx(0.8)


def test_waits_for_the_prompts_of_other_replies_are_no_part_of_the_claim():
    cycles = [cycle(3, 3, 0.2), cycle(0, 0, 0.1), cycle(3, 3, 0.2)] * 4
    alone, waited = tally_of(*cycles), tally_of(*(replace(each, waited_seconds=4.0) for each in cycles))
    assert waited.speedup == alone.speedup
    assert (alone.waited_seconds, waited.waited_seconds) == (0.0, 48.0)


def test_the_interval_holds_the_truth_and_narrows():
    chance, hits, widths = random.Random(1), 0, []
    for trial in range(200):
        n = 200 if trial % 2 else 40
        cycles = [
            cycle(0, 0, chance.gauss(0.1, 0.006)) if i % 5 == 0 else cycle(2, 3, chance.gauss(0.15, 0.01))
            for i in range(n)
        ]
        stats = tally_of(*cycles)
        truth = 0.1 * stats.emitted / stats.decode_seconds
        hits += stats.speedup.low <= truth <= stats.speedup.high
        widths.append(stats.speedup.high - stats.speedup.low)
    assert hits >= 180
    assert sum(widths[1::2]) < 0.6 * sum(widths[0::2])


def test_one_hiccup_among_the_plain_steps_does_not_inflate_the_claim():
    plain = [cycle(0, 0, 0.1, mode=Mode.BASELINE) for _ in range(7)]
    stats = tally_of(*plain, cycle(0, 0, 1.0), *(cycle(3, 3, 0.2) for _ in range(20)))
    assert (stats.plain_seconds - 1.7) / 80 == pytest.approx(0.1, rel=0.01)


def test_steps_that_only_measure_are_judged_like_drafted_tokens():
    """On a device that records its passes the first of them take longer than those of plain decoding."""
    tally = Tally(known=lambda: PlainStep(0.1))
    for _ in range(4):
        tally.add(cycle(3, 3, 0.2))
        for step in (0.125, 0.175, 0.1, 0.1):
            tally.add(cycle(0, 0, step, mode=Mode.BASELINE))
    stats = tally.stats()
    assert stats.plain_seconds == pytest.approx(0.1 * stats.emitted)


def test_a_cold_first_step_does_not_price_the_tokens_around_it():
    cold = cycle(0, 0, 0.3, mode=Mode.BASELINE)
    warm = [cycle(0, 0, 0.1, mode=Mode.BASELINE)] * 6
    drafted = [cycle(3, 3, 0.2)] * 5
    stats = tally_of(*drafted, cold, *drafted, *warm, *drafted)
    assert stats.plain_seconds == pytest.approx(0.1 * stats.emitted)


def test_the_first_price_holds_for_what_was_long_ago():
    price = 0.1
    tally = Tally(known=lambda: PlainStep(price))
    for count in range(200):
        tally.add(cycle(3, 3, 0.2))
        assert count < 7 or tally.stats().speedup.value == pytest.approx(2.0)
    price = 0.2
    assert tally.stats().plain_seconds < 0.12 * tally.stats().emitted


def test_tokens_written_beside_another_reply_are_judged_by_plain_steps_beside_it():
    """The price changes with the replies that share a pass, and the first tokens wait for several steps of theirs."""
    step = PlainStep(2.0, replies=2)
    tally = Tally(known=lambda: step)
    for _ in range(5):
        tally.add(cycle(3, 3, 2.0))
    step = PlainStep(1.0)
    for _ in range(5):
        tally.add(cycle(3, 3, 1.0))
    assert tally.stats().speedup.value == pytest.approx(4.0)


def test_every_token_has_a_source():
    stats = tally_of(
        cycle(2, 3, 0.1), cycle(5, 5, 0.1, source=Source.LOOKUP), cycle(0, 0, 0.1), cycle(0, 2, 0.1)
    )
    assert (stats.from_model, stats.from_lookup, stats.from_target) == (2, 5, 4)


def test_a_switch_off_is_counted_once():
    off, probe, drafting = Mode.OFF, Mode.PROBE, Mode.DRAFTING
    modes = [drafting, off, off, probe, probe, off, probe, drafting, off]
    stats = tally_of(*(cycle(0, 0, 0.1, mode=mode) for mode in modes))
    assert stats.switch_offs == 2


def test_no_cycles_no_numbers():
    assert tally_of() == Stats()


def test_a_reply_in_which_the_machine_stood_still_claims_nothing():
    """As after Ctrl-Z: the stop would count against drafting alone."""
    cycles = [cycle(0, 0, 0.1, mode=Mode.BASELINE), *(cycle(3, 3, 0.2) for _ in range(10))]
    assert tally_of(*cycles).speedup.value > 1
    assert tally_of(*cycles, cycle(3, 3, 5.0)).speedup is None


def test_the_interval_has_both_margins_and_ends_at_what_drafting_can_have_caused():
    taken = {"cycles": 50, "emitted": 100, "wide_cycles": 50, "wide_seconds": 9.0, "verify_seconds": 9.0}
    taken |= {"draft_seconds": 1.0, "plain_seconds": 8.0, "plain_error_seconds": 1.0}
    assert astuple(Stats(**taken).speedup) == pytest.approx((0.8, 0.604, 0.996))
    assert astuple(Stats(**taken | {"plain_error_seconds": 9.0}).speedup) == pytest.approx((0.8, 0.0, 2.0))
