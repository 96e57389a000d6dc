"""Probes are paid for by the tokens written without drafting, and end when they have convinced or lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.speculation.probing import CONVINCING, DEAREST, GIFT, LOST, MOST_WAIT, SHARE, Probes

STAKE = 0.3


def tokens_until_a_probe(probes, *, reading=0.0, most=100_000):
    for tokens in range(most):
        if probes.probing:
            return tokens
        probes.save(1, STAKE, reading)
    return most


def off():
    probes = Probes()
    probes.restart()
    return probes


def test_the_first_probe_comes_when_its_stake_is_saved():
    assert tokens_until_a_probe(off()) == pytest.approx(STAKE / SHARE, abs=1)


def test_what_the_draft_has_to_read_first_is_saved_for_as_well():
    assert tokens_until_a_probe(off(), reading=2.0) == pytest.approx((STAKE + 2.0) / SHARE, abs=1)


def test_a_new_reply_is_probed_at_once():
    probes = off()
    probes.begin()
    assert GIFT > STAKE
    assert tokens_until_a_probe(probes) == 1


def test_a_probe_that_wins_convinces_and_one_that_loses_its_stake_is_over():
    winning, losing = off(), off()
    for probes in (winning, losing):
        tokens_until_a_probe(probes)
    assert not winning.convinced(CONVINCING / 2, STAKE)
    assert winning.probing
    assert winning.convinced(CONVINCING / 2, STAKE)
    assert not losing.convinced(-LOST * STAKE, STAKE)
    assert not losing.probing


def test_after_a_dear_probe_the_next_one_waits_until_the_loss_is_saved():
    probes = off()
    tokens_until_a_probe(probes)
    probes.convinced(-3.0, STAKE)
    assert tokens_until_a_probe(probes) > 3.0 / SHARE


def test_failed_probes_come_ever_more_rarely_until_another_reply_begins():
    probes, waits = off(), []
    for _ in range(4):
        waits.append(tokens_until_a_probe(probes))
        probes.convinced(-LOST * STAKE, STAKE)
    assert waits == sorted(waits)
    assert waits[-1] > 2 * waits[0]
    probes.begin()
    assert tokens_until_a_probe(probes) < waits[0]


@given(losses=st.lists(st.floats(0.1, 4.0), min_size=1, max_size=30))
def test_probes_never_lose_more_than_their_share_and_the_last_loss(losses):
    probes, written, lost = off(), 0, 0.0
    for loss in losses:
        written += tokens_until_a_probe(probes)
        assert lost <= SHARE * written
        while probes.probing:
            probes.convinced(-loss, STAKE)
            lost += loss


def test_however_much_has_to_be_read_a_probe_comes_in_the_end():
    assert tokens_until_a_probe(off(), reading=1e9) == MOST_WAIT


def test_however_dear_a_probe_was_the_next_one_comes():
    probes = off()
    tokens_until_a_probe(probes)
    probes.convinced(-1000.0, STAKE)
    assert tokens_until_a_probe(probes) <= (DEAREST + 2 * STAKE) / SHARE + 1


def test_a_probe_that_the_end_of_a_reply_cut_short_is_over():
    probes = off()
    tokens_until_a_probe(probes)
    probes.convinced(CONVINCING / 2, STAKE)
    probes.begin()
    assert not probes.probing
    tokens_until_a_probe(probes)
    assert not probes.convinced(CONVINCING / 2, STAKE)
