"""The depths of replies that share passes: the best ones together, fair, and honest about plain decoding."""

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.shared_depths import CURVES, Fixed, automatic, texts_of
from localspec.algorithm.protocols import Proposal
from localspec.control.company import ADVANTAGE, BACKGROUND, Company, Seat, best_shared_depth, value
from localspec.control.cost_table import CostTable
from localspec.control.costs import CostsByContext
from localspec.drafters.arbiter import Arbiter
from tests.drafters.machine import cycle_of

TABLE = CostTable((1, 2, 8, 9, 32), (1.0, 1.1, 1.5, 2.6, 2.9), {"model": 0.08})
STEP = 0.08
worths = st.floats(0.2, 3.0)
chances = st.lists(st.floats(0.05, 0.99), max_size=4)


def survivals(chances):
    found, survival = [], 1.0
    for chance in chances:
        survival *= chance
        found.append(survival)
    return tuple(found)


@given(st.lists(st.tuples(worths, chances), min_size=1, max_size=4), st.sampled_from(list(CURVES)))
def test_the_shared_depth_is_the_best_of_all_there_are(replies, curve):
    """Plain decoding may be chosen where drafting hardly promises more."""
    seats = [Seat(worth, survivals=survivals(of)) for worth, of in replies]

    def found(depth):
        tokens = [1 + sum(seat.survivals[:depth]) for seat in seats]
        return value(seats, tokens, CURVES[curve](len(seats) * (1 + depth)) + STEP * depth)

    depth = best_shared_depth(seats, CURVES[curve], STEP)
    best = max(map(found, range(max(len(seat.survivals) for seat in seats) + 1)))
    assert best <= found(depth) * (1.0 if depth else ADVANTAGE) + 1e-9


def test_a_kernel_with_a_limit_is_passed_in_one_jump_or_not_at_all():
    """Four replies of code fill it to 8 rows, or jump far beyond where a draft step costs little."""
    code = [Seat(survivals=survivals([0.9] * 8)) for _ in range(4)]
    dear, cheap = (best_shared_depth(code, CURVES["cliff"], step) for step in (0.6, 0.02))
    assert 4 * (1 + dear) <= 8 < 16 < 4 * (1 + cheap)


def test_background_asks_for_less_than_what_somebody_waits_for():
    sure, doubtful = survivals([0.9] * 8), survivals([0.3] * 8)
    waited_for = [Seat(survivals=sure), Seat(BACKGROUND, survivals=doubtful)]
    background = [Seat(BACKGROUND, survivals=sure), Seat(survivals=doubtful)]
    deep, flat = (best_shared_depth(seats, CURVES["CPU"], STEP) for seats in (waited_for, background))
    assert deep > flat


@pytest.mark.parametrize(
    ("curve", "kind", "replies"),
    [("cliff", "mix", 4), ("smooth", "mix", 2), ("CPU", "code", 4), ("CPU", "prose", 2)],
)
def test_nearly_the_best_fixed_depths_and_nobody_is_starved(curve, kind, replies):
    """A part of benchmarks/shared_depths.py."""
    passes = 400
    texts = texts_of(kind, replies, 26 * passes, 7)
    found = automatic(CURVES[curve], texts, passes, 7)
    assert found.all >= 0.92 * Fixed(CURVES[curve], texts, passes).best(random.Random(7)).all
    assert found.all >= 0.98 * replies * passes
    assert min(found.tokens) >= 0.88 * passes


def company():
    return Company(CostsByContext([TABLE]))


def round_of(company, seats, widths, verify, clock=None):
    """All ask, are ready, share a pass and learn; returns the prices that they were asked to pay."""
    prices = [company.ask(seat, 100) for seat in seats]
    for seat, width in zip(seats, widths, strict=True):
        seat.width = width
    for seat, width in zip(seats, widths, strict=True):
        cycle = cycle_of(
            Proposal((1,) * (width - 1)),
            0,
            verify=verify,
            replies=len(seats),
            pass_width=len(seats) * max(widths),
        )
        if len(seats) > 1:
            company.learn(seat, cycle)
    return prices


def test_who_is_alone_pays_the_price_of_a_single_reply():
    together, one, other = company(), Seat(), Seat()
    assert round_of(together, [one], [1], 1.0) == [None]
    assert round_of(together, [one, other], [1, 1], 1.1)[1].replies == 2
    assert together.ask(one, 100).replies == 2, "nobody knows yet that the other one has left"
    assert together.ask(one, 100) is None
    assert together.places.costs.replies == 1


def test_a_reply_after_one_that_has_ended_is_alone():
    together, one, other = company(), Seat(), Seat()
    round_of(together, [one], [1], 1.0)
    together.leave(one)
    assert together.ask(other, 100) is None
    assert together.places.costs.replies == 1


def test_a_reply_that_ends_after_a_shared_pass_leaves_the_others_to_learn_from_it():
    together, one, other = company(), Seat(), Seat()
    round_of(together, [one, other], [1, 1], 1.1)
    for seat in (one, other, one, other):
        together.ask(seat, 100)
    together.leave(one)
    together.learn(other, cycle_of(Proposal(), 0, verify=1.1, replies=2, pass_width=2))
    assert together.places.costs.plain_steps == 2
    assert together.ask(other, 100) is None


def test_who_drafts_while_all_others_end_still_learns():
    together, slow, one = company(), Seat(), Seat()
    for seat in (slow, one, one, one):
        together.ask(seat, 100)
    together.leave(one)
    together.rate(slow)
    together.learn(slow, cycle_of(Proposal(), 0, verify=1.0))
    assert together.places.costs.plain_steps == 1


def test_a_token_widens_the_batches_of_all_and_costs_each_reply_that_waits_for_it():
    together, seats = company(), [Seat(), Seat()]
    prices = round_of(together, seats, [1, 1], 1.1)[1]
    costs = together.places.costs
    assert prices.verify(1) == costs.verify(1)
    assert prices.verify(3) - prices.verify(1) == pytest.approx(2 * (costs.verify(5) - costs.verify(1)))


def test_a_ready_batch_counts_as_it_is_and_an_expected_one_as_planned():
    together, one, other = company(), Seat(), Seat()
    round_of(together, [one, other], [1, 1], 1.1)
    together.ask(one, 100)
    one.width = 5
    assert together.ask(other, 100).drafted == 4


def test_a_pass_alone_teaches_nothing_about_shared_ones_though_another_reply_has_asked():
    together = company()
    alone = Arbiter(together, [], None)
    proposal = alone.propose(range(100), 9)
    together.ask(Seat(), 100)
    alone.learn(cycle_of(proposal, 0))
    assert (together.places.costs.replies, together.places.costs.plain_steps) == (2, 0)
    together.places.move(100)
    assert together.places.costs.plain_steps == 1


def test_plain_steps_are_measured_in_the_same_company():
    """Alone 1 second, with another one 1.5: a claim beside one compares with the second."""
    together, one, other = company(), Seat(), Seat()
    for _ in range(20):
        round_of(together, [one, other], [1, 1], 1.5)
    assert together.places.costs.plain_step_seconds == pytest.approx(1.5)
    together.places.move(100, 1)
    assert together.places.costs.plain_step_seconds == pytest.approx(1.0)


def test_a_pass_in_which_another_one_drafts_is_no_plain_step():
    together, one, other = company(), Seat(), Seat()
    round_of(together, [one, other], [1, 1], 1.1)
    for _ in range(5):
        round_of(together, [one, other], [1, 4], 2.0)
    assert together.places.costs.plain_steps == 1
    cycle = cycle_of(Proposal(), 0, verify=2.0, replies=2, pass_width=5)
    assert not cycle.is_plain


def test_drafting_that_does_not_promise_enough_is_tried_and_kept_if_it_does_better():
    texts = texts_of("code", 4, 26 * 300, 3)
    assert automatic(CURVES["CPU"], texts, 300, 3).all > 1.01 * 4 * 300


def test_trials_of_drafting_take_little_time():
    """A round at depth 1 loses a sixth of a plain one: so it may be one of 56."""
    together, planned = company(), list[int]()
    seats = [Seat(survivals=(0.05,), step_seconds=STEP) for _ in range(2)]
    for _ in range(400):
        round_of(together, seats, [1, 1], 1.1)
        planned.append(seats[0].depth)
    assert sum(planned) == 400 // 56


def test_the_longest_text_says_how_long_the_context_of_a_round_is():
    together, short, long = company(), Seat(), Seat()
    for _ in range(2):
        together.ask(short, 100)
        together.ask(long, 9000)
    together.ask(short, 101)
    there = together.places.costs
    together.places.move(9000, 2)
    assert together.places.costs is there


def test_a_first_round_of_so_many_replies_is_plain():
    together, one, other = company(), Seat(), Seat()
    round_of(together, [one], [1], 1.0)
    together.ask(one, 100)
    together.ask(other, 100)
    together.ask(one, 100)
    assert together.anchor


def test_a_pass_that_was_not_shared_teaches_nothing_about_shared_ones():
    together, one, other = company(), Seat(), Seat()
    round_of(together, [one, other], [1, 1], 1.1)
    for _ in range(10):
        together.ask(one, 100)
        together.ask(other, 100)
        together.learn(one, cycle_of(Proposal(), 0, verify=9.0))
        together.learn(other, cycle_of(Proposal(), 0, verify=9.0))
    assert together.places.costs.plain_step_seconds == pytest.approx(1.1)
    assert not together.anchor, "plain steps that cannot be measured are not asked for"


def test_where_widths_are_filled_up_tokens_below_the_widest_cost_nothing():
    together, one, other = company(), Seat(), Seat()
    round_of(together, [one, other], [1, 1], 1.1)
    together.ask(one, 100)
    one.width = 4
    prices = together.ask(other, 100)
    assert prices.verify(1) == prices.verify(4) < prices.verify(5)
    alone = together.places.costs.verify  # a pass of two filled batches delays two replies
    assert prices.verify(5) - prices.verify(4) == pytest.approx(2 * (alone(1 + 2 * 4) - alone(1 + 2 * 3)))


def test_draft_steps_that_another_reply_takes_as_well_cost_nothing():
    together, one, other = company(), Seat(), Seat()
    round_of(together, [one, other], [1, 1], 1.1)
    together.ask(one, 100)
    one.width = 4
    prices = together.ask(other, 100)
    assert [prices.drafting(lambda depth: 0.1 * depth, depth) for depth in (1, 3, 4)] == pytest.approx(
        [0, 0, 0.2]
    )


def test_a_reply_below_its_share_of_speed_gains_worth_and_the_worth_has_an_end():
    together, slow, fast = company(), Seat(), Seat()
    round_of(together, [slow, fast], [1, 1], 1.0)
    for _ in range(300):
        round_of(together, [slow, fast], [1, 9], 2.0)
    assert slow.plight > 1.0
    assert slow.plight <= 16.0


def test_many_threads_ask_and_learn_at_once():
    together = company()

    def reply(seed):
        rng, seat = random.Random(seed), Seat()
        for _ in range(300):
            with together.lock:
                prices = together.ask(seat, 100)
            width = rng.randint(1, 6)
            with together.lock:
                seat.width = width
                if prices:
                    assert prices.verify(width) > 0
                    assert together.rate(seat) > 0
                    proposal = Proposal((1,) * (width - 1))
                    together.learn(seat, cycle_of(proposal, 0, replies=together.replies))
        return seed

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(reply, range(4))) == [0, 1, 2, 3]


def test_a_reply_at_a_given_depth_is_reckoned_with_and_its_company_measures_no_plain_steps():
    together, free, given = company(), Seat(), Seat(given=3)
    for _ in range(4):
        round_of(together, [free, given], [1, 4], 1.4)
    assert together.ask(free, 100).drafted == 3
    assert not together.anchor
    assert together.places.costs.plain_steps == 0


def test_a_reply_that_never_drafts_is_planned_so():
    together, free, plain = company(), Seat(survivals=survivals([0.99] * 4)), Seat(given=0)
    for _ in range(3):
        round_of(together, [free, plain], [1, 1], 1.1)
    assert plain.depth == 0 < free.depth


def test_a_wait_for_the_prompt_of_another_reply_is_no_price_of_drafting():
    together = company()
    waited = replace(cycle_of(Proposal(), 0, verify=1.0), other_seconds=9.0)
    assert together.without_waits(waited).seconds == 10.0
    together.lanes = 2
    assert together.without_waits(waited).seconds == 1.25
