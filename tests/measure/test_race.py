"""One prompt both ways: the race and its picture, what is measured in which order, and the verdict."""

import io
import re
import threading
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from localspec import api
from localspec.display import counted
from localspec.engine.requests import report_comparison
from localspec.errors import LocalspecError
from localspec.events import (
    LEAST_JUDGED,
    Cycle,
    Finished,
    FinishReason,
    Kind,
    Mode,
    Origin,
    Piece,
    Reply,
    Source,
    Started,
    Stats,
)
from localspec.loading.pair_info import measured_speedups
from localspec.measure.compare import (
    AS_FAR_BACK,
    NEAR,
    Comparison,
    Divergence,
    SideEvent,
    compare_events,
    compare_on,
    first_difference,
    likeliest,
    row_after,
    top_two_gap,
    verdicts,
    width_gap,
)
from localspec.measure.race import (
    CONTENDED,
    NOW_BRANCHED,
    STOPPED,
    UNFAIR,
    Race,
    RaceSide,
    clock,
    headline,
    picture,
)
from tests.measure.faults import leaky_comparison

GUESSED = Stats(cycles=16, emitted=40, drafted=30, accepted=24, draft_seconds=0.6, verify_seconds=0.4)


def race_side(*texts):
    found = RaceSide()
    for text in texts:
        found = found.after(
            Cycle((1, 2), (Origin.ACCEPTED, Origin.BONUS), (1,), 1, 1, Source.MODEL, 2, 0.1, 0.3, 0.1)
        )
        found = found.after(Piece(text, Kind.ANSWER, Origin.ACCEPTED, Source.MODEL))
    return found


def test_a_clock_counts_passes_and_goes_back():
    whole = race_side("one ", "two ", "three ")
    assert (whole.seconds, whole.tokens, whole.cycles, whole.drafted) == (1.5, 6, 3, 3)
    before = whole.until(1.0)
    assert [text for text, _ in before.written] == ["one ", "two "]
    assert (before.tokens, before.cycles) == (4, 2)
    assert whole.until(1.5) is whole


def test_a_side_of_a_stopped_race_is_cut_to_the_text_of_the_other_and_counts_its_tokens_exactly():
    whole = RaceSide()
    for number in range(6):  # passes get slower as the text grows
        whole = whole.after(replace(plain_cycle(), verify_seconds=1.0 + number))
        whole = whole.after(Piece(f"{number} ", Kind.ANSWER, Origin.PLAIN, Source.PLAIN))
    cut = whole.begun(2)
    assert ([text for text, _ in cut.written], cut.seconds) == (["0 ", "1 "], 3.0)
    assert (cut.tokens, cut.cycles) == (2, 2)
    assert whole.begun(6) is whole


@pytest.mark.parametrize(
    ("speedup", "words"),
    [
        (2.34, "2.3 times as fast, the same text: 1.0 s instead of 2.0 s, 24 of 30 draft tokens accepted."),
        (1.01, "As fast as plain decoding, the same text: "),
        (0.5, "Slower, 0.50 times as fast, the same text: "),
        (0.0, "Too few tokens to compare the speed, the same text: 24 of 30 draft tokens accepted."),
    ],
)
def test_the_headline_says_the_gain_first_then_the_text(speedup, words):
    assert headline(speedup, True, (2.0, 1.0), GUESSED).startswith(words)
    assert headline(2.0, False, (1.0, 1.0), GUESSED).startswith(
        "2.0 times as fast, but the texts differ: 40.0 instead of 20.0 tokens/s, 24 of 30"
    )
    short = replace(GUESSED, emitted=31)
    assert headline(2.0, True, (2.0, 1.0), short).startswith("Too few tokens to compare the speed, the same")
    assert "differ" not in headline(2.0, False, (2.0, 1.0), GUESSED, sampled=True)


@pytest.mark.parametrize("speedup", [0.7, 1.2])
@pytest.mark.parametrize(
    ("drafted", "words"),
    [
        (0, "Nothing was drafted, the same text."),
        (1, "Almost nothing was drafted, the same text: 0 of 1 draft token accepted."),
    ],
)
def test_where_hardly_anything_was_guessed_a_difference_is_noise(speedup, drafted, words):
    found = headline(speedup, True, (1.2, 1.0), Stats(cycles=40, emitted=40, drafted=drafted))
    assert found == f"{words} A difference in time is noise."


def test_no_gain_is_claimed_that_the_guesses_cannot_have_brought():
    """Two tokens a pass save at most half of the passes."""
    drafting = Stats(cycles=20, emitted=40, drafted=40, accepted=20)
    assert headline(2.05, True, (2.05, 1.0), drafting).startswith("2.0 times as fast")
    unfair = headline(2.2, True, (2.2, 1.0), drafting)
    assert unfair == f"Not measured, the same text: 20 of 40 draft tokens accepted. {UNFAIR}"


def test_no_ratio_is_claimed_that_the_plain_steps_of_the_drafting_side_contradict():
    """The machine was slower during one side: the plain steps of the other side show it."""
    stats = Stats(cycles=30, emitted=60, drafted=40, accepted=30, draft_seconds=1.0, verify_seconds=5.0)
    steady, slower = replace(stats, plain_seconds=6.6), replace(stats, plain_seconds=5.4)
    assert headline(1.15, True, (6.9, 6.0), steady).startswith("1.1 times as fast")
    assert headline(1.15, True, (6.9, 6.0), slower).startswith("Not measured")


def test_no_loss_is_claimed_that_the_guesses_cannot_have_caused():
    counts = {"cycles": 316, "emitted": 338, "drafted": 24, "accepted": 22}
    few = Stats(**counts, verify_seconds=10.0, wide_cycles=12, wide_seconds=0.6)
    unfair = headline(0.78, True, (7.8, 10.0), few)
    assert unfair == f"Not measured, the same text: 22 of 24 draft tokens accepted. {UNFAIR}"
    costly = replace(few, verify_seconds=7.0, draft_seconds=3.0)  # the draft read and guessed for long
    assert headline(0.78, True, (7.8, 10.0), costly).startswith("Slower, 0.78 times as fast")
    wrong = replace(
        few, cycles=320, drafted=1000, accepted=18, wide_cycles=320, wide_seconds=10.0
    )  # brought little
    assert headline(0.5, True, (5.0, 10.0), wrong).startswith("Slower, 0.50 times as fast")
    assert "Not measured" in headline(0.9, True, (9.0, 10.0), GUESSED, contended=True)
    words = headline(1.5, True, (15.0, 10.0), GUESSED, contended=True)
    assert words.startswith("1.5 times as fast")
    assert words.endswith(CONTENDED)


def test_the_clock_of_the_demo_pair_counts_passes_alone():
    is_demo = RaceSide(is_demo=True)
    for cycle in (1, 2):
        is_demo = is_demo.after(plain_cycle())
        assert clock(is_demo) == f"{counted(cycle, 'token')} · {counted(cycle, 'pass', 'passes')}"
    assert is_demo.until(is_demo.seconds / 2).cycles == 1
    assert clock(RaceSide().after(plain_cycle())) == "0.50 s · 1 token · 1 pass"


def plain_cycle():
    return Cycle((1,), (Origin.PLAIN,), (), 0, 0, Source.PLAIN, 1, 0.0, 0.5, 0.0)


def test_texts_part_at_the_first_other_word_as_soon_as_it_is_written():
    ended = Finished(Reply("", "", (), 1, FinishReason.STOP, Stats()))
    same = race_side("a ", "the ", "cat")
    assert Race(same, race_side("a ", "the ")).branch_point is None  # the other one is still writing
    assert Race(same.after(ended), race_side("a ", "the ", "cat")).branch_point is None
    for other in (
        race_side("a ", "they "),
        race_side("a ", "the").after(ended),
        race_side("a ").after(ended),
    ):
        assert Race(same, other).branch_point == Race(other, same).branch_point == 1
    sampled = same.after(Started("t", "d", 1, 0, 0, 1, "block", 64))
    assert Race(sampled, race_side("b")).branch_point is None
    console = Console(file=io.StringIO(), width=80, color_system="truecolor", force_terminal=True)
    race = Race(same, race_side("a ", "they "))
    console.print(picture(race.race_sides, "prompt", "about", "", race.branch_point, (80, 24)))
    drawn = console.file.getvalue()
    assert "41mthe " in drawn
    assert "41mthey " in drawn
    assert NOW_BRANCHED in drawn


def test_a_race_on_80_by_24_shows_the_newest_16_rows_of_text_and_cuts_no_word():
    console = Console(file=io.StringIO(), width=80, height=24)
    long = race_side(*(f"number {number} of many rows of text\n" for number in range(40)))
    race = Race(long, race_side("other"))
    console.print(picture(race.race_sides, "a prompt " * 30, "about", "", race.branch_point, (80, 24)))
    rows = console.file.getvalue().splitlines()
    shown = [row for row in rows if re.search(r"number \d+ of many rows of text ", row)]
    assert len(rows) <= 24
    assert len(shown) >= 15  # the last row is the empty one after the last newline
    assert "number 39" in shown[-1]


def test_no_text_of_a_model_steers_the_terminal_that_shows_the_race():
    race = Race(race_side("\x1b[2J\x1b]52;c;eA==\x07"), race_side("[bold]x"))
    console = Console(file=io.StringIO(), width=80)
    console.print(picture(race.race_sides, "\x1b[31m[b]", "about", "headline"))
    assert "\x1b" not in console.file.getvalue()
    assert "[bold]x" in console.file.getvalue()


PROMPT = "Write a short story about a fox."


def verdict_on(comparison):
    return " ".join(verdicts(comparison, str))


def measured(found, plain, drafted, **kind):
    """The comparison with these statistics, of a pair that is not the demo, on an idle machine."""
    sides = {"plain": replace(found.plain, stats=plain), "speculative": replace(found.plain, stats=drafted)}
    return replace(found, **sides, **{"is_demo": False, "contended": False} | kind)


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
    assert found.plain.stats.drafted == 0
    assert found.speculative.stats.drafted > 15  # so small a model always drafts here, whatever its times say
    assert found.speedup == 0  # of so small a model
    assert 0 < replace(found, is_demo=False).speedup <= found.speculative.stats.mean_accepted_length
    assert "same text" in verdict_on(found)


def test_both_sides_read_the_whole_prompt(session):
    events = list(compare_events(session, PROMPT, temperature=0.0, max_tokens=5))
    started = [e for e in events if isinstance(e, SideEvent) and isinstance(e.event, Started)]
    assert [e.speculative for e in started] == [False, True]
    assert all(e.event.reused_tokens == 0 for e in started)
    assert isinstance(events[-1], Comparison)
    plain = [e.event for e in events[:-1] if not e.speculative and isinstance(e.event, Cycle)]
    assert {cycle.mode for cycle in plain} == {Mode.PLAIN}
    assert session.messages == ()


def test_both_sides_have_one_seed_and_the_coupled_rule_one_text(session):
    found = compare_on(session, PROMPT, temperature=0.9, rule="coupled", max_tokens=30)
    assert found.plain.seed == found.speculative.seed
    assert found.identical


def test_a_race_without_a_seed_keeps_the_rule_of_replies_without_one(session):
    events = list(compare_events(session, PROMPT, temperature=0.9, depth="auto", max_tokens=8))
    assert events[-1].rule == "block"


@pytest.mark.parametrize(
    ("seconds", "kind", "remembered"),
    [(1.3, {}, {"demo": 3.077}), (9.0, {}, {}), (1.3, {"is_demo": True}, {}), (1.3, {"contended": True}, {})],
    ids=["fair", "stopped by Ctrl-Z", "is_demo", "contended"],
)
def test_the_picker_remembers_a_speed_that_guesses_can_have_caused(
    session, tmp_path, monkeypatch, seconds, kind, remembered
):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    plain = Stats(cycles=40, emitted=40, verify_seconds=4.0)
    drafting = replace(plain, cycles=10, drafted=40, accepted=30, verify_seconds=seconds)
    found = compare_on(session, PROMPT, max_tokens=6)
    assert found.is_demo
    found = measured(found, plain, drafting, **kind)
    report_comparison(session, found, lambda _report: None)
    assert measured_speedups() == remembered


def test_another_program_on_the_processor_is_reported(session):
    session.pair.threads.limit = 1
    try:
        found = compare_on(session, PROMPT, temperature=0.0, max_tokens=6)
    finally:
        session.pair.threads.limit = None
    assert found.contended
    slower = Stats(cycles=20, emitted=60, drafted=40, accepted=40, verify_seconds=2.0)
    found = measured(found, Stats(cycles=60, emitted=60, verify_seconds=1.0), slower, contended=True)
    words = verdict_on(found)
    assert re.match(r"Not measured, the same text: \d+ of \d+ draft tokens accepted\. " + CONTENDED, words)
    assert CONTENDED not in verdict_on(replace(found, contended=False))
    assert verdict_on(replace(found, is_demo=True)).startswith("The same text in")  # counts passes


def test_without_a_draft_model_few_guesses_have_a_remedy(session):
    found = compare_on(session, PROMPT, max_tokens=6)
    counts = {"cycles": 316, "emitted": 338, "drafted": 24, "accepted": 22}
    few = Stats(**counts, verify_seconds=10.0, wide_cycles=12, wide_seconds=0.6)
    plain = Stats(cycles=338, emitted=338, verify_seconds=7.8)
    found = measured(found, plain, few)
    words = verdict_on(found)
    assert words.startswith("Not measured, the same text: 22 of 24 draft tokens accepted.")
    assert "Without a draft model, text is drafted only where it repeats itself" in words
    assert found.speedup == pytest.approx(0.94 * 338 / 326)  # as far as 12 wide passes can have caused it
    drafted = replace(few, draft_seconds=3.0, verify_seconds=7.0)
    assert "Without a draft" not in verdict_on(measured(found, plain, drafted))


def test_where_sampled_texts_part_is_reported_without_alarm(session):
    options = {"rule": "block", "temperature": 1.5, "top_p": 1.0, "max_tokens": 20}
    tries = (compare_on(session, PROMPT, seed=seed, **options) for seed in range(20))
    found = next(each for each in tries if not each.identical)
    where = found.divergence
    assert found.plain.tokens[: where.index] == found.speculative.tokens[: where.index]
    assert where.plain != where.speculative
    assert "random samples" in verdict_on(found)


def test_cancelling_the_second_side_keeps_both(session):
    steps = compare_events(session, PROMPT, temperature=0.0, max_tokens=40)
    for step in steps:
        if isinstance(step, SideEvent) and step.speculative and isinstance(step.event, Cycle):
            session.cancel()
        last = step
    assert isinstance(last, Comparison)
    assert last.cancelled
    assert last.speculative.finish_reason is FinishReason.CANCELLED
    assert verdict_on(last) == STOPPED


@pytest.mark.parametrize("side", [False, True], ids=["plain", "drafting"])
def test_a_race_that_is_stopped_is_judged_on_the_tokens_that_both_sides_have(session, side):
    race, counts, stop = Race(), [0, 0], threading.Event()
    for step in compare_events(session, PROMPT, cancelled=stop.is_set, temperature=0.0, max_tokens=400):
        if isinstance(step, Comparison):
            continue
        if isinstance(step.event, Cycle):
            counts[step.speculative] += len(step.event.tokens)
            if counts[side] >= 40:
                stop.set()
        name = "drafting" if step.speculative else "plain"
        race = replace(race, **{name: getattr(race, name).after(step.event)})
    assert isinstance(step, Comparison)
    assert step.cancelled
    assert step.identical
    count = len(step.speculative.tokens)
    assert LEAST_JUDGED <= count < counts[not side] or count == counts[1] == LEAST_JUDGED
    assert step.plain.stats.emitted == len(step.plain.tokens) == count
    assert step.plain.stats.decode_seconds > 0
    assert race.branch_point is None, "one text begins as the other"
    verdict = verdict_on(step)
    assert verdict.startswith("The same text in ")
    assert f"Stopped early: this compares the first {count} tokens." in verdict


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


@pytest.mark.parametrize(
    ("plain", "speculative", "index"),
    [([1, 2, 3], [1, 2, 3], None), ([1, 2, 3], [1, 9, 3], 1), ([1, 2], [1, 2, 3], 2), ([], [4], 0)],
)
def test_the_first_difference(plain, speculative, index):
    assert first_difference(plain, speculative) == index


@pytest.mark.parametrize(
    ("gap", "words"),
    [
        (0.01, "Token 3 was a near-tie, 41% and 41%: rounding decides here."),
        (0.05, "Token 3 was no near-tie, 41% and 39%: `localspec verify`"),
    ],
)
def test_a_near_tie_is_called_one_and_anything_else_is_not(session, gap, words):
    found = compare_on(session, PROMPT, temperature=0.0, max_tokens=6)
    where = Divergence(2, 7, 8, gap, 0.41)
    assert words in verdict_on(replace(found, divergence=where, width_difference=0.02))


def test_a_real_divergence_is_measured_against_the_batch_widths(tiny_gguf):
    """With a verifier that keeps what it should not, texts part where the target is sure."""
    wide = {"layers": 2, "embedding": 64}
    target, draft = (tiny_gguf(weights="Q8_0", noise=noise, **wide) for noise in (0.0, 0.5))
    with api.load(target=target, draft=draft, threads=1) as pair, leaky_comparison(1.0):
        found = compare_on(pair, "abc", temperature=0.0, depth=3, max_tokens=20)
    assert not found.identical
    assert found.divergence.top_two_gap > 2 * found.width_difference
    assert "no near-tie" in verdict_on(found)


def test_the_chances_of_two_words_are_those_of_the_row():
    row = np.random.default_rng(4).normal(0, 2, 50).astype(np.float32) + 80
    first, second = np.sort(np.exp(row.astype(float)) / np.exp(row.astype(float)).sum())[:-3:-1]
    words = Divergence(0, 1, 2, top_two_gap(row), likeliest(row)).chances
    assert words == f"{first:.0%} and {second:.0%}"


def test_greedy_texts_have_one_number_of_threads_and_are_measured_at_their_own_widths(tiny_gguf, monkeypatch):
    """On a busy machine the number changes between replies, and the last bits of a row with it."""
    used, measured = set(), []

    def measure(_pair, _tokens, widths, back=AS_FAR_BACK):
        measured.append((back, set(widths)))
        return 0.0

    monkeypatch.setattr("localspec.measure.compare.width_difference_on", measure)
    target, draft = (tiny_gguf(weights="Q8_0", noise=noise) for noise in (0.0, 0.5))
    with api.load(target=target, draft=draft, threads=2) as pair, leaky_comparison(1.0):
        threads = pair.pair.target.threads
        threads.contention = pair.pair.threads
        for step in compare_events(pair, "abc", depth=12, max_tokens=30):  # noqa: B007
            used.add(threads.now)
            threads.contention.limit = 1
    assert not step.identical
    assert used == {2}
    assert [back for back, _ in measured] == [
        NEAR,
        AS_FAR_BACK,
    ]  # the second because the first explains nothing
    assert all({1, 13} <= widths for _, widths in measured)


def test_a_row_that_was_looked_up_holds_up_no_other_slot():
    """Passes of other slots wait until the rows of a pass are released."""
    with api.load("demo", threads=1, parallel=2) as loaded:
        one, other = (slot.target for slot in loaded.pair.slots.all)
        for look in (row_after, width_gap):
            look(one, [1, 2, 3, 4])
            done = threading.Event()
            decode = threading.Thread(
                target=lambda done=done: (other.decode([5], 1), done.set()), daemon=True
            )
            decode.start()
            assert done.wait(300)
            other.rollback(0)
