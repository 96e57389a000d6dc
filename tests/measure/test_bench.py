"""A bench compares like with like: the same prompts in changing order, no prefill, nothing half done."""

from collections import Counter, defaultdict
from dataclasses import replace

import pytest

from localspec.measure.bench import (
    AUTO,
    BUILT_IN_PROMPTS,
    PLAIN,
    Arm,
    BenchPrompt,
    Category,
    bench,
    blocks,
    in_turn,
)
from localspec.measure.summary import LEAST_TOKENS, summarise
from tests.measure.scripted import Clock, ScriptedSession

ARMS = (PLAIN, AUTO, Arm(2))
PROMPTS = tuple(
    BenchPrompt(f"{c}{i}", c, f"{c} {i}") for c in (Category.CODE, Category.CHAT) for i in range(4)
)


def first_blocks(count, arms=ARMS, temperatures=(0.0, 0.8), prompts=PROMPTS):
    found = blocks(prompts, temperatures, arms)
    return [next(found) for _ in range(count)]


def cost(arm, prompt):
    return {"plain": 0.1, "auto": 0.05, "2": 0.2}[arm] * (3 if prompt.startswith("chat") else 1)


def benched(session, clock, **limits):
    return bench(session, PROMPTS, ARMS, (0.0, 0.8), **limits, clock=clock)


def test_every_category_has_prompts_and_every_name_is_distinguished():
    prompts = BUILT_IN_PROMPTS
    assert set(Counter(p.category for p in prompts).values()) <= {4, 5, 6}
    assert {p.category for p in prompts} == set(Category)
    assert len({p.name for p in prompts}) == len(prompts)
    assert all(len(p.text.split()) > 300 for p in prompts if p.category is Category.LONG)
    assert [p.category for p in in_turn(prompts)[: len(Category)]] == list(Category)


def test_a_tool_call_writes_an_edit_and_may_be_nothing_else():
    edits = {p.name: p.text for p in BUILT_IN_PROMPTS if p.category is Category.EDIT}
    for prompt in BUILT_IN_PROMPTS:
        is_call = prompt.category is Category.CALL
        assert prompt.options.get("tool_choice") == ("write_file" if is_call else None)
        assert not is_call or prompt.text.startswith(edits[prompt.name.removesuffix(", as a call")].strip())


@pytest.mark.parametrize("arms", [ARMS, ARMS[:2]])
def test_no_arm_goes_first_more_often_within_any_category_and_temperature(arms):
    """Else the first run of each prompt, which pays for reading it, would be the same arm's."""
    rounds = 2 * len(arms)
    first = defaultdict(Counter)
    for block in first_blocks(rounds * len(PROMPTS) * 2, arms):
        assert sorted(a.name for a in block.arms) == sorted(a.name for a in arms)
        first[block.prompt.category, block.temperature][block.arms[0].name] += 1
        first[block.prompt.name, block.temperature][block.arms[0].name] += 1
    for key, counts in first.items():
        assert len(set(counts.values())) == 1, (key, counts)


def test_the_order_also_changes_within_the_first_round():
    """A long round may be the only one that the time allows."""
    first = defaultdict(Counter)
    for block in first_blocks(len(PROMPTS) * 2, ARMS[:2]):
        first[block.prompt.category, block.temperature][block.arms[0].name] += 1
    assert all(counts == {"plain": 2, "auto": 2} for counts in first.values())


def test_every_reply_starts_a_conversation_of_its_own_with_the_same_options():
    clock = Clock()
    session = ScriptedSession(clock, cost)
    benched(session, clock, rounds=2, max_tokens=32)
    assert session.resets == len(session.asked)
    by_block = defaultdict(list)
    for arm, prompt, options in session.asked[len(ARMS) :]:
        shared = {k: v for k, v in options.items() if k not in ("depth", "speculate")}
        by_block[prompt, options["temperature"]].append((arm, shared))
    assert len(by_block) == len(PROMPTS) * 2
    assert all(options["seed"] is None for _, _, options in session.asked), "a seed would change the rule"
    for replies in by_block.values():
        assert sorted(arm for arm, _ in replies) == ["2", "2", "auto", "auto", "plain", "plain"]
        assert all(shared == replies[0][1] for _, shared in replies)


def test_speed_counts_from_the_end_of_the_prompt_to_the_end_of_the_text():
    clock = Clock()
    outcome = benched(ScriptedSession(clock, cost), clock, rounds=1)
    code = [m for m in outcome.measurements if m.category is Category.CODE]
    found = {(m.arm, round(m.tokens_per_second, 6)) for m in code}
    assert found == {("plain", 10), ("auto", 20), ("depth 2", 5)}
    assert {m.prefill_seconds for m in outcome.measurements} == {7.0}


def test_the_summary_pairs_by_prompt_and_weighs_categories_alike():
    clock = Clock()

    def half_on_chat(arm, prompt):
        return 0.1 if arm == "plain" else 0.05 if prompt.startswith("code") else 0.2

    rows = summarise(benched(ScriptedSession(clock, half_on_chat), clock, rounds=1).measurements).rows
    found = {(r.category, r.temperature): r.speedup.middle for r in rows if r.arm == "auto"}
    assert found[Category.CODE, 0.0] == pytest.approx(2.0)
    assert found[Category.CHAT, 0.8] == pytest.approx(0.5)
    assert found[None, 0.0] == pytest.approx(1.0)
    at_0 = [(r.category, r.arm) for r in rows if r.temperature == 0]
    assert at_0 == [
        (kind, arm) for kind in (Category.CODE, Category.CHAT, None) for arm in ("auto", "depth 2")
    ]


def test_time_that_is_up_ends_the_bench_after_a_whole_block():
    clock = Clock()
    outcome = benched(ScriptedSession(clock, cost), clock, seconds=1.0)
    assert len(outcome.measurements) == len(ARMS)
    assert not outcome.stopped


def test_stopping_keeps_whole_blocks_only():
    clock = Clock()
    session = ScriptedSession(clock, cost)
    stop_at = len(ARMS) + 2 * len(ARMS) + 1  # warm-up, two blocks, one reply of the third

    def stopped():
        return len(session.asked) >= stop_at

    outcome = bench(session, PROMPTS, ARMS, (0.0,), rounds=1, clock=clock, stopped=stopped)
    assert outcome.stopped
    assert Counter(m.arm for m in outcome.measurements) == {"plain": 2, "auto": 2, "depth 2": 2}


def test_prompts_that_do_not_fit_are_named_and_left_out():
    clock = Clock()
    long = BenchPrompt("long one", Category.LONG, "x" * 500)
    session = ScriptedSession(clock, cost, room=400)
    outcome = bench(session, [*PROMPTS, long], ARMS, (0.0, 0.8), rounds=2, clock=clock)
    assert outcome.too_long == ("long one",)
    assert len(outcome.measurements) == len(PROMPTS) * 2 * 2 * len(ARMS)
    nothing = bench(session, [long], ARMS, (0.0,), seconds=9.0, clock=clock)
    assert nothing.measurements == ()


def test_replies_too_short_to_time_are_counted_not_averaged():
    clock = Clock()
    session = ScriptedSession(clock, cost, tokens=LEAST_TOKENS - 1)
    summary = summarise(benched(session, clock, rounds=1).measurements)
    assert summary.rows == ()
    assert summary.too_short == len(PROMPTS) * 2 * 2


@pytest.mark.parametrize(
    ("seconds", "drafted", "a_pass", "speedup"),
    [(0.05, 0, 1, 1.0), (0.05, 1, 1, 1.0), (0.05, 40, 1.5, 1.5), (0.05, 40, 4, 2.0), (0.2, 0, 1, 1.0)],
)
def test_no_gain_or_loss_is_claimed_that_drafting_cannot_have_caused(seconds, drafted, a_pass, speedup):
    """Here a token of drafting takes these seconds, whatever it drafted, and 0.1 without."""
    clock = Clock()
    session = ScriptedSession(clock, lambda arm, _: 0.1 if arm == "plain" else seconds, tokens=60)
    session.drafted, session.a_pass = drafted, a_pass
    outcome = bench(session, PROMPTS, (PLAIN, AUTO), (0.0,), rounds=1, clock=clock)
    for row in summarise(outcome.measurements).rows:
        found = row.speedup
        assert found.middle == pytest.approx(speedup)
        assert max(found.low, found.high) == pytest.approx(speedup)


def test_the_time_of_deciding_on_drafts_shows_where_nothing_is_drafted():
    clock = Clock()
    session = ScriptedSession(clock, lambda _arm, _prompt: 0.1, drafted=0)
    measured = [
        replace(m, decode_seconds=1.1 * m.decode_seconds) if m.arm == "auto" else m  # passes take as long
        for m in benched(session, clock, rounds=1).measurements
    ]
    rows = [row for row in summarise(measured).rows if row.arm == "auto"]
    assert [row.speedup.middle for row in rows] == pytest.approx([1 / 1.1] * len(rows))
