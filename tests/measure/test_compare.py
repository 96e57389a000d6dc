"""One prompt both ways on the demo pair: what is measured, in which order, and what is said."""

import dataclasses
import math
import re
from dataclasses import replace

import pytest

import localspec
from localspec import api
from localspec.chat.reply import DEPTH_FIXED
from localspec.engine.requests import report_comparison
from localspec.errors import BadSetting, LocalspecError
from localspec.events import Cycle, Finished, FinishReason, Mode, Notice, Started, Stats
from localspec.llama.threads import Contention
from localspec.measure.compare import (
    Comparison,
    Divergence,
    Side,
    SideEvent,
    about_speed,
    compare_events,
    compare_on,
    diverged,
    first_difference,
    table,
    verdicts,
)
from localspec.measure.race import CROWDED
from localspec.models.picker import measured_speedups
from tests.measure.faults import leaky_comparison

PROMPT = "Write a short story about a fox."


def verdict_on(comparison):
    return " ".join(verdicts(comparison, str))


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALSPEC_HOME", str(tmp_path_factory.mktemp("home")))
        with api.load("demo", threads=1) as loaded:
            yield loaded


def test_greedy_sides_have_the_same_text_and_their_own_numbers(session):
    found = compare_on(session, PROMPT, temperature=0.0, max_tokens=30)
    assert found.identical
    assert found.plain.tokens == found.speculative.tokens
    assert found.plain.reply.stats.drafted == 0
    assert found.speculative.reply.stats.drafted > 15  # a toy always drafts here, whatever its times say
    assert found.plain.tokens_per_second > 0
    assert found.speedup == 0  # a toy
    assert 0 < replace(found, toy=False).speedup <= found.speculative.reply.stats.mean_accepted_length
    assert "same text" in verdict_on(found)
    assert "plain" in table(found)
    assert "drafting" in table(found)


def test_sides_take_turns_and_every_run_reads_the_prompt_anew(session):
    events = list(compare_events(session, PROMPT, n=2, temperature=0.0, max_tokens=5))
    started = [e for e in events if isinstance(e, SideEvent) and isinstance(e.event, Started)]
    assert [e.speculative for e in started] == [False, True, True, False]
    assert [e.run for e in started] == [0, 0, 1, 1]
    assert all(e.event.reused_tokens == 0 for e in started)
    assert isinstance(events[-1], Comparison)
    assert len(events[-1].plain.replies) == 2
    plain = [e.event for e in events[:-1] if not e.speculative and isinstance(e.event, Cycle)]
    assert {cycle.mode for cycle in plain} == {Mode.PLAIN}
    assert session.messages == ()


def test_both_sides_have_one_seed_and_the_coupled_rule_one_text(session):
    found = compare_on(session, PROMPT, temperature=0.9, rule="coupled", max_tokens=30)
    assert found.plain.reply.seed == found.speculative.reply.seed
    assert found.identical


def test_no_seed_of_its_own_fixes_the_depth_or_the_threads(session):
    """The speed is that of replies without a seed."""
    events = list(compare_events(session, PROMPT, temperature=0.9, depth="auto", max_tokens=8))
    assert events[-1].rule == "block"
    assert DEPTH_FIXED not in {e.event.text for e in events[:-1] if isinstance(e.event, Notice)}
    assert not session.pair.target.threads.fixed


def test_runs_of_unequal_length_are_compared_by_their_rates(session):
    found = compare_on(session, PROMPT, temperature=0.0, max_tokens=6)
    short = found.plain.reply
    names = ("emitted", "draft_seconds", "verify_seconds", "other_seconds")
    ten_times = {name: 10 * getattr(short.stats, name) for name in names}
    long = replace(short, stats=replace(short.stats, **ten_times))
    side = replace(found.plain, replies=(short, long, long))
    assert side.tokens_per_second == pytest.approx(short.stats.tokens_per_second)


def test_a_first_run_that_still_learns_makes_no_later_gain_unfair(session):
    """Half of the runs write four tokens a pass, three times as fast."""
    plain = Stats(cycles=40, emitted=40, verify_seconds=4.0)
    learning = replace(plain, drafted=4, accepted=2)
    later = replace(plain, cycles=10, drafted=40, accepted=30, verify_seconds=1.3)
    found = replace(compare_on(session, PROMPT, max_tokens=6), toy=False)

    def side(*stats):
        return Side(tuple(replace(found.plain.reply, stats=each) for each in stats))

    found = replace(found, plain=side(plain, plain, plain), speculative=side(learning, later, later))
    assert about_speed(found).startswith("3.1 times as fast, the same text: 1.3 s instead of 4.0 s, 30 of 40")
    assert found.speedup == pytest.approx(4 / 1.3)


@pytest.mark.parametrize(
    ("seconds", "kind", "remembered"),
    [(1.3, {}, {"demo": 3.077}), (9.0, {}, {}), (1.3, {"toy": True}, {}), (1.3, {"crowded": True}, {})],
    ids=["fair", "stopped by Ctrl-Z", "toy", "crowded"],
)
def test_the_picker_remembers_a_speed_that_guesses_can_have_caused(
    session, tmp_path, monkeypatch, seconds, kind, remembered
):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    plain = Stats(cycles=40, emitted=40, verify_seconds=4.0)
    drafting = replace(plain, cycles=10, drafted=40, accepted=30, verify_seconds=seconds)
    found = compare_on(session, PROMPT, max_tokens=6)
    assert found.toy
    sides = (Side((replace(found.plain.reply, stats=stats),)) for stats in (plain, drafting))
    found = replace(found, plain=next(sides), speculative=next(sides), **{"toy": False} | kind)
    report_comparison(session, found, lambda _report: None)
    assert measured_speedups() == remembered


def test_another_program_on_the_processor_is_told(session):
    threads = session.pair.target.threads
    threads.contention = Contention(2, limit=1)
    try:
        found = compare_on(session, PROMPT, temperature=0.0, max_tokens=6)
    finally:
        threads.contention = None
    assert found.crowded
    plain, slower = (
        Side((replace(found.plain.reply, stats=stats),))
        for stats in (
            Stats(cycles=6, emitted=6, verify_seconds=1.0),
            Stats(cycles=2, emitted=6, drafted=4, accepted=4, verify_seconds=2.0),
        )
    )
    found = replace(found, toy=False, plain=plain, speculative=slower)
    said = verdict_on(found)
    assert re.match(r"Not measured, the same text: \d+ of \d+ guesses kept\. " + CROWDED, said)
    assert CROWDED not in verdict_on(replace(found, crowded=False))
    assert verdict_on(replace(found, toy=True)).startswith("The same text in")  # counts passes


def test_without_a_draft_model_few_guesses_have_a_remedy(session):
    found = compare_on(session, PROMPT, max_tokens=6)
    few = Stats(cycles=316, emitted=338, drafted=24, accepted=22, verify_seconds=10.0)
    plain = replace(found.plain.reply, stats=Stats(cycles=338, emitted=338, verify_seconds=7.8))
    alone = Side((replace(plain, stats=few),))
    found = replace(found, toy=False, plain=Side((plain,)), speculative=alone)
    said = verdict_on(found)
    assert said.startswith("Not measured, the same text: 22 of 24 guesses kept.")
    assert "--draft FILE" in said
    assert found.speedup == pytest.approx(338 / 340)  # as far as 24 guesses can have caused it
    drafted = replace(few, draft_seconds=3.0, verify_seconds=7.0)
    assert "--draft" not in verdict_on(replace(found, speculative=Side((replace(plain, stats=drafted),))))


def test_a_printed_comparison_is_its_headline(session):
    found = compare_on(session, PROMPT, max_tokens=6)
    assert str(found) == about_speed(found)
    assert len(str(found).splitlines()) == 1


def test_where_sampled_texts_part_is_told_without_alarm(session):
    seeds = range(20)
    found = next(
        c
        for seed in seeds
        if not (
            c := compare_on(session, PROMPT, temperature=1.5, top_p=1.0, seed=seed, max_tokens=20)
        ).identical
    )
    where = found.divergence
    assert found.plain.tokens[: where.index] == found.speculative.tokens[: where.index]
    assert (where.plain, where.speculative) != (None, None)
    assert where.plain != where.speculative
    assert "two draws" in verdict_on(found)


def test_cancelling_the_second_side_keeps_both(session):
    steps = compare_events(session, PROMPT, temperature=0.0, max_tokens=40)
    for step in steps:
        if isinstance(step, SideEvent) and step.speculative and isinstance(step.event, Cycle):
            session.cancel()
        last = step
    assert isinstance(last, Comparison)
    assert last.cancelled
    assert last.speculative.reply.finish_reason is FinishReason.CANCELLED
    assert "Stopped early" in verdict_on(last)


def test_cancelling_the_first_side_ends_it_all(session):
    seen = []
    for step in compare_events(session, PROMPT, temperature=0.0, max_tokens=40):
        seen.append(step)
        if isinstance(step, SideEvent) and isinstance(step.event, Cycle):
            session.cancel()
    assert isinstance(seen[-1].event, Finished)
    assert not any(step.speculative for step in seen)


def test_an_unfinished_comparison_is_an_error_of_the_plain_call(session, monkeypatch):
    monkeypatch.setattr("localspec.measure.compare.compare_events", lambda *_, **__: iter(()))
    with pytest.raises(LocalspecError, match="stopped"):
        compare_on(session, PROMPT)


@pytest.mark.parametrize("runs", [0, -1])
def test_less_than_one_run_is_refused(session, runs):
    with pytest.raises(BadSetting, match="runs"):
        compare_on(session, PROMPT, n=runs)


def test_a_depth_of_0_still_drafts_on_the_speculative_side(session):
    found = compare_on(session, PROMPT, temperature=0.0, depth=0, max_tokens=8)
    assert found.identical


def test_localspec_compare_loads_a_pair_by_name(session):
    found = localspec.compare("Hello", pair="demo", temperature=0.0, max_tokens=6)
    assert found.identical
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.rule = "other"


@pytest.mark.parametrize(
    ("plain", "speculative", "index"),
    [([1, 2, 3], [1, 2, 3], None), ([1, 2, 3], [1, 9, 3], 1), ([1, 2], [1, 2, 3], 2), ([], [4], 0)],
)
def test_the_first_difference(plain, speculative, index):
    assert first_difference(plain, speculative) == index


def test_a_text_that_ended_has_no_token_where_the_other_goes_on():
    assert diverged([1, 2], [1, 2, 3], 0.5) == Divergence(2, None, 3, 0.5)
    assert diverged([1, 2], [1, 2], 0.5) is None


def parted(session, gap, width_difference):
    found = compare_on(session, PROMPT, temperature=0.0, max_tokens=6)
    where = Divergence(2, 7, 8, gap)
    return replace(found, divergence=where, width_difference=width_difference)


def test_a_near_tie_is_called_one_and_anything_else_is_not(session):
    assert "a near-tie" in verdict_on(parted(session, 0.01, 0.02))
    assert "no near-tie explains it" in verdict_on(parted(session, 0.05, 0.02))


def test_a_real_divergence_is_measured_against_the_batch_widths(tiny_gguf):
    """With a verifier that keeps what it should not, texts part where the target is sure."""
    wide = {"layers": 2, "embedding": 64}
    target, draft = (tiny_gguf(weights="Q8_0", noise=noise, **wide) for noise in (0.0, 0.5))
    with api.load(target=target, draft=draft, threads=1) as pair, leaky_comparison(1.0):
        found = compare_on(pair, "abc", temperature=0.0, depth=3, max_tokens=20)
    assert not found.identical
    assert found.divergence.top_two_gap > 2 * found.width_difference
    assert "no near-tie" in verdict_on(found)


def test_greedy_texts_have_one_number_of_threads_and_are_measured_at_their_own_widths(tiny_gguf, monkeypatch):
    """On a busy machine the number changes between passes, and the last bits of a row with it."""
    used, measured = set(), []

    def measure(_pair, _tokens, widths):
        measured.append(set(widths))
        return 0.0

    monkeypatch.setattr("localspec.measure.compare.width_difference_on", measure)
    target, draft = (tiny_gguf(weights="Q8_0", noise=noise) for noise in (0.0, 0.5))
    with api.load(target=target, draft=draft, threads=2) as pair, leaky_comparison(1.0):
        threads = pair.pair.target.threads
        threads.contention = Contention(2, limit=1, _deaf_until=math.inf)
        for step in compare_events(pair, "abc", depth=12, max_tokens=30):
            if isinstance(step, SideEvent) and isinstance(step.event, Cycle):
                used.add(threads.now)
    assert not step.identical
    assert used == {2}
    (widths,) = measured
    assert {1, 13} <= widths


def test_the_temperature_is_0_unless_another_is_given(session):
    assert compare_on(session, PROMPT, max_tokens=6).rule == "greedy"
    assert compare_on(session, PROMPT, max_tokens=6, temperature=0.9).rule == "block"
