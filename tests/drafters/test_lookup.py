"""Drafts without a model: from the text, by an index and the trust in it, and from what the caller predicts."""

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from localspec.algorithm.verification import make_rule
from localspec.control.cost_table import CostTable
from localspec.drafters.lookup import GrowingIndex, LookupAcceptance, LookupDrafter, followed, keys_of
from localspec.drafters.prediction import PredictionDrafter
from localspec.drafters.selection import Fixed
from tests.algorithm.random_pairs import RULES, World
from tests.chat import letters
from tests.drafters.test_lossless import EXACT, error, selection_of
from tests.drafters.test_selection import CHEAP, GREEDY, Reciting, drafting_of, never, run

TOKENS = st.lists(st.integers(0, 3), max_size=150)


@given(st.lists(TOKENS, max_size=6))
@settings(deadline=None)
def test_the_growing_index_knows_every_place(texts):
    index, tokens = GrowingIndex(), []
    for more in texts:
        index.extend(more)
        tokens += more
        assert index.tokens[: index.length].tolist() == tokens
        grams = {i: tuple(tokens[i - 2 : i + 1]) for i in range(len(tokens) - 1, 1, -1)}
        for gram in {*grams.values(), (9, 9, 9)}:
            places = [i for i, other in grams.items() if other == gram]
            assert index.positions(int(keys_of(np.array(gram))[0]), 10**6) == places


def trusting():
    """A drafter that has learned to believe what it finds."""
    drafter = LookupDrafter()
    for match in (3, 4, 6, 9, 17, 33):
        for _ in range(100):
            drafter.trust.learn(match, (1.0,) * 16, 16, 0)
            drafter.trust.learn(match, (0.6,) * 16, 16, 0)
    return drafter


def test_it_proposes_what_followed_before():
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]
    assert trusting().propose(text, 4).tokens == (4, 5, 6, 7)


def test_the_more_frequent_continuation_wins_among_the_longest_matches():
    text = [1, 2, 3, 7, 0, 1, 2, 3, 8, 0, 1, 2, 3, 8, 0, 1, 2, 3]
    assert trusting().find(text, 1).tokens == (8,)
    text = [9, 1, 2, 3, 7, 0, 5, 1, 2, 3, 8, 0, 6, 1, 2, 3, 8, 0, 9, 1, 2, 3]
    assert LookupDrafter().find(text, 1).tokens == (7,)


@pytest.mark.parametrize("text", [[], [1], [1, 2], [1, 2, 3], [1, 2, 3, 4, 5]])
def test_nothing_is_proposed_where_nothing_repeats(text):
    assert LookupDrafter().propose(text, 8).tokens == ()


@given(st.lists(TOKENS, min_size=1, max_size=5), st.integers(0, 20))
@example([[1, 1, 1, 1], [0, 1, 0, 1, 0]], 1)
@settings(deadline=None)
def test_after_any_change_of_text_it_answers_like_a_fresh_one(texts, limit):
    """New prompts with a common prefix, shorter or edited conversations: nothing stale remains."""
    drafter = LookupDrafter()
    for text in texts:
        drafter.begin()
        drafter.find(text, 4)
        drafter.find(text, 4)
        assert drafter.find(text, limit) == LookupDrafter().find(text, limit)


def test_a_text_that_was_cut_and_went_on_differently_in_place_is_noticed():
    drafter, text = LookupDrafter(), [1, 2, 3, 4, 5, 6, 7, 8]
    drafter.find(text, 4)
    del text[3:]
    text += [9, 9, 9, 9, 9, 9, 1, 2, 3]
    assert drafter.find(text, 2) == LookupDrafter().find(text, 2)


def test_trust_follows_what_became_of_guesses():
    drafter = LookupDrafter()
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]
    before = drafter.trust.rate(3, 1.0)
    for _ in range(40):
        drafter.find(text, 4)
        drafter.find([*text, 99], 4)
    assert drafter.trust.rate(3, 1.0) < before / 3
    assert not drafter.find(text, 4).tokens


def test_tokens_after_the_first_wrong_one_are_not_judged():
    drafter, text = LookupDrafter(), [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]
    drafter.find(text, 4)
    drafter.find([*text, 99, 5, 6], 4)
    counts = drafter.trust.counts()
    assert (sum(counts.kept), sum(counts.rejected)) == (0, 1)


def test_trust_survives_storage_and_a_very_long_conversation():
    trust = LookupAcceptance()
    for i in range(20_000):
        trust.learn(5 + i % 40, (1.0, 0.5), i % 3, 5)
    again = LookupAcceptance(trust.counts())
    for match in (3, 8, 40):
        assert again.rate(match, 0.5) == pytest.approx(trust.rate(match, 0.5))
        assert 0 < trust.rate(match, 1.0) < 1


@given(st.integers(0, 10**9), st.integers(0, 10**9))
@example(372_000, 372_000)
def test_no_number_of_emitted_tokens_makes_counts_or_chances_improper(first, second):
    trust = LookupAcceptance()
    for emitted in (first, second):
        trust.learn(5, (1.0, 0.5), 1, emitted)
    assert all(0 <= count <= 2 for part in (trust.counts().kept, trust.counts().rejected) for count in part)
    assert 0 < trust.rate(5, 1.0) < 1


@pytest.mark.parametrize("unread", [1, 3000, 400_000])
def test_a_prompt_changes_nothing_that_was_learned(unread):
    """Its tokens are new to every drafter, but the target has not written them."""
    drafting, line = drafting_of(None, CHEAP, 2), [*range(5, 25), 1]
    rule, target = make_rule("greedy", GREEDY, 1), Reciting(line * 6, start=3 * len(line))
    run(target, None, line * 3, drafting=drafting, room=6 * len(line), rule=rule, end=never)
    learned = drafting.learned
    assert sum(learned.greedy.trust.kept) > 50
    prompt = line * 9 + [30 + i % 50_000 for i in range(unread)]
    drafting.strategy_at(None, rule, sampled=False).propose(prompt, 40)
    assert drafting.learned == learned


@given(st.lists(st.lists(st.integers(0, 2), max_size=9), min_size=1, max_size=30))
@example([[1], [1, 1], [1, 1, 1]])
@example([[0, 1], [1, 0], [1, 2], [0, 2], [2, 2]])
def test_the_most_frequent_tokens_are_followed_and_of_equally_frequent_ones_the_newest(texts):
    rows = np.full((len(texts), 9), -1)
    for row, text in zip(rows, texts, strict=True):
        row[: len(text)] = text
    rows, wanted = rows[np.argsort([len(text) for text in texts], kind="stable")], []
    left = [row.tolist() for row in rows]
    for depth in range(9):
        left = [row for row in left if row[depth] >= 0]
        if not left:
            break
        ((token, times),) = Counter(row[depth] for row in left).most_common(1)
        wanted.append((token, times / len(left)))
        left = [row for row in left if row[depth] == token]
    assert list(followed(rows)) == wanted


def test_a_long_reply_is_not_looked_up_beyond_the_widest_batch(monkeypatch):
    limits, propose = [], LookupDrafter.propose
    monkeypatch.setattr(
        LookupDrafter,
        "propose",
        lambda drafter, tokens, limit, *more: limits.append(limit) or propose(drafter, tokens, limit, *more),
    )
    drafting, line = drafting_of(None, CHEAP, 2), [*range(5, 25), 1]
    target = Reciting(line * 6, start=3 * len(line))
    run(target, None, line * 3, drafting=drafting, room=400, rule=make_rule("greedy", GREEDY, 1), end=never)
    assert max(limits) == drafting._most + 1


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


@pytest.mark.parametrize("depth", [None, 3])
@pytest.mark.parametrize("rule", RULES)
def test_its_sampled_text_has_the_distribution_of_the_target(rule, depth):
    table = CostTable((1, 2, 9), (1.0, 1.1, 1.5))

    def strategy_of(draft, rule, is_end):
        prediction = PredictionDrafter([1, 0, 1, 1])
        if depth:
            return Fixed(LookupDrafter(), depth, rule, prediction, 3)
        return selection_of(prediction, rule, table)

    for world in map(World, range(2)):
        assert error(world, RULES[rule], strategy_of, 4) < EXACT


@pytest.mark.parametrize("depth", ["auto", 1, 4])
def test_a_session_drafts_from_it_and_writes_the_same_text(depth):
    options = {**letters.GREEDY, "max_tokens": 120, "depth": depth}
    plain = letters.session_of(end=False)[0].complete(
        "abc" * 9, **letters.GREEDY, max_tokens=120, speculate=False
    )
    predicted = letters.session_of(end=False)[0].complete("abc" * 9, prediction=plain.text, **options)
    useless = letters.session_of(end=False)[0].complete("abc" * 9, prediction="q" * 200, **options)
    assert plain.tokens == predicted.tokens == useless.tokens
    assert (plain.stats.predicted, predicted.stats.predicted) == (0, predicted.stats.from_prediction)
    assert (
        depth == "auto" or predicted.stats.from_prediction > 60
    )  # the clock decides whether so small a model drafts
    assert useless.stats.predicted - useless.stats.from_prediction < 60
