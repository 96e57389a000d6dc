"""Drafts without a model: copies of the prediction, the conversation and the reply, that stay through changes."""

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from localspec.algorithm.verification import make_rule
from localspec.chat.request import Request
from localspec.drafters.copies import BUCKETS, CopyChances, CopyCounts, CopyDrafter, CopyKind, IndexedText
from localspec.events import Source
from tests.chat import letters
from tests.drafters.test_selection import CHEAP, GREEDY, Reciting, drafting_of, never, run

TOKENS = st.lists(st.integers(0, 3), max_size=150)


@given(st.lists(TOKENS, max_size=6))
@settings(deadline=None)
def test_the_index_knows_every_place_and_every_match(texts):
    index, tokens = IndexedText(), []
    for more in texts:
        index.extend(more)
        tokens += more
        same = [i for i in range(3, len(tokens)) if tokens[i - 3 : i] == tokens[-3:]]
        assert list(index.repeated(10**6)) == same[::-1]
        assert list(index.repeated(2)) == same[:-3:-1]
        for at in same:
            match = next((k for k in range(63) if k == at or tokens[at - 1 - k] != tokens[-1 - k]), 63)
            assert index.match(at) == match


def trusting(chance=0.9):
    """A drafter that has learned to believe what it finds."""
    cells = BUCKETS * len(CopyKind)
    return CopyDrafter(CopyChances(CopyCounts((1000 * chance,) * cells, (1000 * (1 - chance),) * cells)))


def drafted(text, limit=8, drafter=None):
    return list((drafter or trusting()).propose(text, limit).tokens)


def test_a_text_that_repeats_itself_goes_on_repeating_beyond_its_end():
    assert drafted([5, 1, 2] + [1, 2] * 40, 9) == [1, 2, 1, 2, 1, 2, 1, 2, 1]


def test_the_more_frequent_token_wins_among_the_longest_matches():
    assert drafted([1, 2, 3, 7, 0, 1, 2, 3, 8, 0, 1, 2, 3, 8, 0, 1, 2, 3], 1) == [8]
    assert drafted([9, 1, 2, 3, 7, 0, 5, 1, 2, 3, 8, 0, 6, 1, 2, 3, 8, 0, 9, 1, 2, 3], 1) == [7]


@pytest.mark.parametrize("text", [[], [1], [1, 2], [1, 2, 3], [1, 2, 3, 4, 5]])
def test_nothing_is_proposed_where_nothing_repeats(text):
    assert drafted(text) == []


@given(st.lists(TOKENS, min_size=1, max_size=5), st.integers(0, 20))
@example([[1, 1, 1, 1], [0, 1, 0, 1, 0]], 1)
@settings(deadline=None)
def test_after_any_change_of_text_it_answers_like_a_fresh_one(texts, limit):
    """New prompts with a common prefix, shorter or edited conversations: nothing stale remains."""
    drafter = CopyDrafter()
    for text in texts:
        drafter.begin()
        drafter.propose(text, 4)
        drafter.propose(text, 4)
        assert drafter.propose(text, limit) == CopyDrafter().propose(text, limit)


def test_a_text_that_was_cut_and_went_on_differently_in_place_is_noticed():
    drafter, text = trusting(), [1, 2, 3, 4, 5, 6, 7, 8]
    drafted(text, drafter=drafter)
    del text[3:]
    text += [9, 9, 9, 9, 9, 9, 1, 2, 3]
    assert drafted(text, 2, drafter) == [9, 9]


def test_chances_follow_what_became_of_copies_that_nobody_used():
    chances, text = CopyChances(), [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]
    before = chances.of(CopyKind.FAR, 3)
    for _ in range(60):
        drafter = CopyDrafter(chances)
        drafter.propose(text, 0)
        drafter.propose([*text, 99], 0)
    assert chances.of(CopyKind.FAR, 3) < before / 2


def test_chances_grow_along_a_draft():
    found = CopyDrafter().propose([*range(40), *range(3)], 20).confidences
    assert found[0] < found[1] < found[3]


@given(st.lists(st.tuples(st.sampled_from(CopyKind), st.integers(0, 99), st.booleans()), max_size=400))
def test_counts_survive_storage_and_chances_stay_proper(lessons):
    chances = CopyChances()
    for kind, match, kept in lessons:
        chances.learn(kind, match, 7, kept=kept)
    again = CopyChances(chances.counts())
    for kind in CopyKind:
        for match in (0, 3, 8, 40):
            assert again.of(kind, match) == pytest.approx(chances.of(kind, match))
            assert 0 < chances.of(kind, match, 7) < 1


@pytest.mark.parametrize("damaged", [(-1.0,), (float("nan"),), (float("inf"),)])
def test_damaged_counts_are_refused(damaged):
    with pytest.raises(ValueError, match="each count must be"):
        CopyCounts(damaged, (0.0,))


@pytest.mark.parametrize("unread", [1, 3000, 400_000])
def test_a_prompt_changes_nothing_that_was_learned(unread):
    """Its tokens are new to every drafter, but the target has not written them."""
    drafting, line = drafting_of(None, CHEAP, 2), [*range(5, 25), 1]
    rule, target = make_rule("greedy", GREEDY, 1), Reciting(line * 6, start=3 * len(line))
    run(target, None, line * 3, drafting=drafting, room=6 * len(line), rule=rule, end=never)
    learned = drafting.learned
    assert sum(learned.greedy.copies.kept) > 20
    prompt = line * 9 + [30 + i % 50_000 for i in range(unread)]
    drafting.strategy(rule, Request(GREEDY)).propose(prompt, 40)
    assert drafting.learned == learned


def test_a_long_reply_is_not_copied_beyond_the_widest_batch(monkeypatch):
    limits, propose = [], CopyDrafter.propose
    monkeypatch.setattr(
        CopyDrafter,
        "propose",
        lambda drafter, tokens, limit, *more: limits.append(limit) or propose(drafter, tokens, limit, *more),
    )
    drafting, line = drafting_of(None, CHEAP, 2), [*range(5, 25), 1]
    target = Reciting(line * 6, start=3 * len(line))
    run(target, None, line * 3, drafting=drafting, room=400, rule=make_rule("greedy", GREEDY, 1), end=never)
    assert max(limits) == drafting._most


def copied(text, reply, limit=8, drafter=None):
    """Return what is drafted behind the beginning of a reply to a prompt with this text."""
    drafter, prompt = drafter or trusting(), [*text, 7, 8]
    for end in range(len(reply)):
        drafter.propose([*prompt, *reply[:end]], limit)
    return drafted([*prompt, *reply], limit, drafter)


LINE = [*range(100, 130)]
NAMED = [1, 2, 3, 50, 4, 5, 6, 7, 50, 8, 9, 10, 50, 51, 11, 12, 50, 13]


def test_behind_a_new_token_it_goes_on_at_the_expected_place():
    assert copied(LINE, [*LINE[:10], 900], 3) == [111, 112, 113]


def test_behind_inserted_or_removed_tokens_one_equal_token_is_enough():
    assert copied(LINE, [*LINE[:10], 900, 901, 902, 110], 3) == [111, 112, 113]
    assert copied(LINE, [*LINE[:10], 900, 113], 2, CopyDrafter()) == [114, 115]


def test_a_replacement_is_drafted_in_the_next_places():
    assert copied(NAMED, [1, 2, 3, 60, 4, 5, 6], 6) == [7, 60, 8, 9, 10, 60]


@pytest.mark.parametrize("written", [0, 1, 2, 3])
def test_a_longer_replacement_is_finished_where_the_reply_has_begun_it(written):
    reply = [1, 2, 3, 60, 61, 62, 4, 5, 6, 7, *[60, 61, 62][:written]]
    assert copied(NAMED, reply, 5) == [60, 61, 62, 8, 9, 10, 60, 61][written : written + 5]


def test_an_insertion_is_drafted_behind_the_same_token():
    text = [20, 21, 50, 22, 23, 24, 25, 50, 26, 27]
    assert copied(text, [20, 21, 50, 90, 91, 22, 23, 24], 6) == [25, 50, 90, 91, 26, 27]


def test_a_source_that_was_kept_once_is_replaced_no_more():
    assert copied(NAMED, [1, 2, 3, 60, 4, 5, 6, 7, 50, 8], 5) == [9, 10, 50, 51, 11]


def test_an_added_text_is_copied_and_is_indexed_once_for_all_replies():
    drafter, prompt = trusting(), [7, 8, 9]
    for turn in range(3):
        drafter.begin()
        drafter.add([LINE])
        assert drafted(prompt, 4, drafter) == []
        at = 5 * turn
        prompt += LINE[at : at + 3]
        assert drafted(prompt, 4, drafter) == LINE[at + 3 : at + 7]
        prompt += [turn]
    assert drafter._text.tokens.count(LINE[-1]) == 1


def test_texts_of_earlier_replies_do_not_pile_up():
    drafter = CopyDrafter()
    for turn in range(40):
        drafter.begin()
        drafter.add([], range(100 * turn, 100 * turn + 90))
        drafter.propose([7, 8, 9], 4)
    assert len(drafter._text.tokens) < 1000


def test_copies_of_the_prediction_and_of_the_conversation_have_two_names():
    drafter = trusting()
    drafter.add([], LINE)
    assert drafter.propose([*NAMED, 90], 4) == drafter.propose([*NAMED, 90], 4)
    assert drafter.propose([*NAMED, 90], 4).source is Source.PREDICTION
    found = drafter.propose([*NAMED, 90, *NAMED[:4]], 4)
    assert (found.tokens, found.source) == (tuple(NAMED[4:8]), Source.LOOKUP)


CHANCE = random.Random(5)
FILE = [CHANCE.randrange(CHANCE.choice((10, 300))) for _ in range(400)]  # some tokens occur often
NEW = list(range(1000, 1012))


def test_what_stands_in_the_prompt_too_counts_as_the_predictions():
    drafter, text = trusting(), [*LINE, 7]
    drafter.add([], LINE)
    drafter.propose(text, 4)
    found = drafter.propose([*text, *range(900, 990), *LINE[4:8]], 4)
    assert (found.tokens, found.source) == (tuple(LINE[8:12]), Source.PREDICTION)


def predicting(predicted):
    drafter = CopyDrafter()
    drafter.add([], predicted)
    return drafter


def kept_tokens(predicted, answer, most=8):
    """For each token of the answer whether it was drafted from the prediction, and how many were not kept."""
    drafter, text, kept, rejected = predicting(predicted), [7, 7], [], 0
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
    assert rejected <= 16  # a draft at the change, and one with the same change in the other block


def test_a_part_that_moved_is_followed_to_its_new_place():
    kept, _ = kept_tokens(FILE, [*FILE[200:], *FILE[:200]])
    assert sum(kept) > 0.8 * len(FILE)


@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_no_prediction_breaks_it(predicted, answer):
    kept, _ = kept_tokens(predicted, answer)
    assert len(kept) == len(answer)


def test_text_that_is_taken_back_is_no_longer_followed():
    drafter = predicting(FILE)
    drafter.propose([7], 4)
    drafter.propose([7, *FILE[:50]], 4)
    assert drafter.propose([7, *FILE[:20]], 4).tokens == tuple(FILE[20:24])


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
