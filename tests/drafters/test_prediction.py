"""Drafts from what the caller predicts: in step from the first token on, and back in step after every edit."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.control.acceptance import AcceptanceModel
from localspec.control.company import Company
from localspec.control.cost_table import CostTable
from localspec.control.costs import CostsByContext
from localspec.control.depth import DepthControl
from localspec.drafters.arbiter import Arbiter, Fixed
from localspec.drafters.lookup import LookupDrafter
from localspec.drafters.prediction import PredictionDrafter
from tests.algorithm.random_pairs import RULES, World
from tests.chat.letters import GREEDY, session_of
from tests.drafters.test_law import EXACT, error

CHANCE = random.Random(5)
FILE = [CHANCE.randrange(CHANCE.choice((10, 300))) for _ in range(400)]  # some tokens occur often
NEW = list(range(1000, 1012))


def kept_tokens(predicted, answer, most=8):
    """For each token of the answer whether it was drafted from the prediction, and how many were not kept."""
    drafter, text, kept, rejected = PredictionDrafter(predicted), [7, 7], [], 0
    while len(kept) < len(answer):
        left = answer[len(kept) :]
        proposed = drafter.propose(text, min(most, len(left) - 1)).tokens
        same = next((i for i, t in enumerate(proposed) if left[i] != t), len(proposed))
        rejected += len(proposed) - same
        text += left[: same + 1]
        kept += [True] * same + [False]
    return kept, rejected


def test_a_reply_that_is_the_prediction_is_drafted_from_the_first_token_to_the_last():
    kept, rejected = kept_tokens(FILE, FILE)
    assert kept.count(False) <= len(FILE) / 9 + 2  # each pass ends with a token of the target's own
    assert rejected == 0


@pytest.mark.parametrize("new", [0, 1, 2, 12])
@pytest.mark.parametrize("old", [0, 1, 2, 12])
def test_after_an_edit_it_is_back_in_step_within_eight_tokens(old, new):
    for at in range(20, 380, 24):
        answer = FILE[:at] + NEW[:new] + FILE[at + old :]
        kept, _ = kept_tokens(FILE, answer)
        behind = kept[at + new :]
        assert sum(behind[:8]) > 0
        assert sum(behind[8:]) >= 0.85 * len(behind[8:]) - 1


def test_a_preamble_that_the_prediction_lacks_costs_the_first_guesses_only():
    kept, rejected = kept_tokens(FILE, [*range(2000, 2020), *FILE])
    assert rejected <= 8
    assert sum(kept[20:]) > 0.85 * len(FILE)


def test_it_comes_back_at_the_same_place_and_not_where_the_words_occur_once_more():
    block = [*range(500, 520)]
    predicted = [*FILE[:100], *block, *FILE[100:200], *block, *FILE[200:]]
    kept, rejected = kept_tokens(predicted, [*FILE[:100], 999, *predicted[101:]])
    assert sum(kept) > 0.85 * len(predicted)
    assert rejected <= 8


def test_a_part_that_moved_is_followed_to_its_new_place():
    kept, _ = kept_tokens(FILE, [*FILE[200:], *FILE[:200]])
    assert sum(kept) > 0.8 * len(FILE)


@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_no_prediction_breaks_it(predicted, answer):
    kept, _ = kept_tokens(predicted, answer)
    assert len(kept) == len(answer)


def test_text_that_is_taken_back_is_no_longer_followed():
    drafter = PredictionDrafter(FILE)
    drafter.propose([7], 4)
    drafter.propose([7, *FILE[:50]], 4)
    assert drafter.propose([7, *FILE[:20]], 4).tokens == tuple(FILE[20:24])


def test_what_is_probably_kept_is_less_than_what_may_be_tried():
    drafter = PredictionDrafter(FILE)
    assert 0 < len(drafter.likely([7], 31).tokens) < len(drafter.propose([7], 31).tokens)


@pytest.mark.parametrize("depth", [None, 3])
@pytest.mark.parametrize("rule", RULES)
def test_its_sampled_text_has_the_law_of_the_target(rule, depth):
    table = CostTable((1, 2, 9), (1.0, 1.1, 1.5))

    def strategy_of(draft, rule, is_end):
        prediction = PredictionDrafter([1, 0, 1, 1])
        if depth:
            return Fixed(LookupDrafter(), depth, rule, prediction, 3)
        places = CostsByContext([table])
        control = DepthControl(places, prediction, AcceptanceModel(), (1, 2, 3))
        return Arbiter(Company(places), [control], rule)

    for world in map(World, range(2)):
        assert error(world, RULES[rule], strategy_of, 4) < EXACT


@pytest.mark.parametrize("depth", ["auto", 1, 4])
def test_a_session_drafts_from_it_and_writes_the_same_text(depth):
    options = {**GREEDY, "max_tokens": 120, "depth": depth}
    plain = session_of(end=False)[0].complete("abc" * 9, **GREEDY, max_tokens=120, speculate=False)
    predicted = session_of(end=False)[0].complete("abc" * 9, prediction=plain.text, **options)
    useless = session_of(end=False)[0].complete("abc" * 9, prediction="q" * 200, **options)
    assert plain.tokens == predicted.tokens == useless.tokens
    assert (plain.stats.predicted, predicted.stats.predicted) == (0, predicted.stats.from_prediction)
    assert depth == "auto" or predicted.stats.from_prediction > 60  # the clock decides whether a toy drafts
    assert useless.stats.predicted - useless.stats.from_prediction < 60
