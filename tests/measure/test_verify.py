"""A verification of real pairs: what it says of them, and of a pair whose verifier is wrong."""

import dataclasses
import itertools

import pytest

from localspec import api, demo
from localspec.algorithm.pass_order import PassSeconds
from localspec.errors import BadSetting
from localspec.measure import verify as verify_module
from localspec.measure.bench import VERIFY_PROMPTS, Category
from localspec.measure.verify import (
    BranchPoint,
    GreedyCase,
    Phase,
    SampledResult,
    Verification,
    as_json,
    encoded_prompt,
    greedy_cases,
    missing,
    problems,
    report,
    scored,
    verdict,
    verify,
    written,
)
from tests.measure import faults


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALSPEC_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module")
def session(home):
    with api.load("demo", threads=1) as loaded:
        yield loaded


@pytest.fixture
def few_texts(monkeypatch):
    monkeypatch.setattr(verify_module, "ROUNDS", 2)


def never():
    """No time has batch."""
    return 0.0


@pytest.mark.process
def test_the_demo_pair_is_verified_part_by_part(session, few_texts):
    phases = []
    found = verify(
        session, prompts=VERIFY_PROMPTS[:4], on_step=lambda phase, *_: phases.append(phase), seed=4
    )
    assert problems(found) == []
    assert [*dict.fromkeys(phases)] == list(Phase)
    assert {case.category for case in found.cases} == {"code", "chat", "prose", "json"}
    assert {case.depth for case in found.cases} == {None, 4}
    assert sum(case.drafted for case in found.cases) > 50
    assert found.sampled.texts == 8
    assert found.sampled.tokens > 200
    assert abs(found.sampled.excess) < 6 * found.sampled.excess_error
    text = report(found)
    for word in ("Temperature 0:", "Temperature 0.8: 8 replies", "nats", "Rounding"):
        assert word in text
    assert as_json(found)["problems"] == []


def test_too_few_sampled_tokens_are_named():
    found = verification(case(), sampled=SampledResult(1, 3))
    assert any("Too few" in line for line in missing(found))
    assert "not everything was tested" in verdict(found)
    assert as_json(found)["verdict"] == "incomplete"


@pytest.mark.parametrize(
    ("near", "headline"),
    [
        (0, "NO DIFFERENCE: all 6 texts at temperature 0 are equal, token for token."),
        (
            1,
            "NO DIFFERENCE beyond rounding: 5 of 6 texts at temperature 0 are equal, and 1 differs from a near-tie on.",
        ),
        (
            4,
            "NO DIFFERENCE beyond rounding: 2 of 6 texts at temperature 0 are equal, and 4 differ from a near-tie on.",
        ),
    ],
)
def test_the_headline_counts_the_texts_that_part_by_rounding(near, headline):
    cases = [case(0.001)] * near + [case()] * (6 - near)
    found = verification(*cases, sampled=SampledResult(9, 400, 0.0, 1.0, 1.0))
    assert verdict(found).splitlines()[0] == headline


@pytest.fixture
def noted(monkeypatch):
    """The replies of a verification."""
    replies = []

    def note(*arguments, **options):
        found = written(*arguments, **options)
        replies.append(found[0])
        return found

    monkeypatch.setattr(verify_module, "written", note)
    return replies


def test_every_greedy_text_reads_its_whole_prompt(session, few_texts, noted):
    """As the target does alone: llama.cpp rounds otherwise where a prompt of 64 tokens is read in other parts."""
    found = verify(session, prompts=VERIFY_PROMPTS[:3], seed=4)
    assert {reply.stats.reused_tokens for reply in noted[: len(found.cases)]} == {0}


@pytest.mark.nightly
@pytest.mark.parametrize("fault", [faults.leaky_coins, faults.leaky_comparison])
def test_a_leaky_verifier_is_found_on_the_demo_pair(session, few_texts, fault):
    with fault(0.5):
        found = verify(session, prompts=VERIFY_PROMPTS[:8], seed=4)
    assert problems(found)
    assert verdict(found).startswith("DIFFERENT")


@pytest.fixture(scope="module")
def two_slots(home):
    with api.load("demo", threads=1, parallel=2) as loaded:
        yield loaded


@pytest.fixture
def sharing(monkeypatch):
    """Replies share each pass: with so small a model it pays seldom."""
    monkeypatch.setattr(PassSeconds, "pays", lambda *_: True)


@pytest.mark.process
def test_texts_that_share_passes_are_verified(two_slots, few_texts, sharing, noted):
    found = verify(two_slots, prompts=VERIFY_PROMPTS[:5])
    assert problems(found) == []
    assert found.sampled.texts == len(noted) - len(found.cases) == 10
    assert sum(reply.stats.replies_at_once for reply in noted[len(found.cases) :]) > 15
    assert "They were written 2 at a time." in verdict(found)


@pytest.mark.nightly
def test_rows_of_another_reply_are_found_where_texts_share_passes(two_slots, session, few_texts, sharing):
    with faults.exchanged_rows():
        assert problems(verify(session, prompts=VERIFY_PROMPTS[:4])) == []
        assert verdict(verify(two_slots, prompts=VERIFY_PROMPTS[:4])).startswith("DIFFERENT")


def test_greedy_tokens_that_are_not_the_targets_choice_are_all_found(session):
    tokens = encoded_prompt(session.pair, VERIFY_PROMPTS[9].text)
    with faults.leaky_comparison(1.0):
        cases, difference = greedy_cases(session, VERIFY_PROMPTS[9], tokens, never, first=True)
    assert len(cases[0].parts) > 1
    assert not cases[0].explained(difference)


def test_a_wrong_token_behind_a_near_tie_is_found(session, monkeypatch):
    """The text after a branch point is compared as well."""
    prompt, reply = VERIFY_PROMPTS[0], None
    tokens = encoded_prompt(session.pair, prompt.text)
    honest, _ = written(session, tokens, 0.0, lambda: False)
    spoilt = (*honest.tokens[:-1], honest.tokens[0])
    reply = dataclasses.replace(honest, tokens=spoilt)
    monkeypatch.setattr(verify_module, "written", lambda *_, **__: (reply, {1}))
    (case, _), difference = greedy_cases(session, prompt, tokens, never, first=True)
    assert [part.index for part in case.parts] == [len(spoilt) - 1]
    assert not case.explained(difference)


def test_stopping_keeps_what_was_found(session, few_texts):
    seen = []
    found = verify(
        session,
        prompts=VERIFY_PROMPTS[:4],
        on_step=lambda phase, *_: seen.append(phase),
        stopped=lambda: Phase.SAMPLED in seen,
    )
    assert found.stopped
    assert len(found.cases) == 8
    assert not found.sampled.texts


def test_a_text_that_the_end_of_the_time_cut_is_no_case(session):
    tokens, shares = (
        encoded_prompt(session.pair, VERIFY_PROMPTS[0].text),
        itertools.chain([0.0], itertools.repeat(1.0)),
    )
    assert greedy_cases(session, VERIFY_PROMPTS[0], tokens, lambda: next(shares), first=True) == ([], 0.0)


def test_a_target_that_takes_nothing_back_is_refused(tiny_gguf):
    with (
        api.load(target=tiny_gguf(architecture="mamba"), threads=1) as alone,
        pytest.raises(BadSetting, match="nothing can be drafted"),
    ):
        verify(alone)


@pytest.mark.nightly
def test_a_target_alone_is_verified_with_what_lookup_drafts(home, few_texts):
    with api.load(target=demo.target_path(), threads=1) as alone:
        found = verify(alone, prompts=VERIFY_PROMPTS[:4], seed=4)
        with faults.leaky_comparison(0.5):
            wrong = verify(alone, prompts=VERIFY_PROMPTS[:4], seed=4)
    assert not problems(found)
    assert sum(case.drafted for case in found.cases) > 5
    assert problems(wrong)


def case(*gaps, drafted=10):
    parts = tuple(BranchPoint(index, "'a'", "'b'", gap, 0.4) for index, gap in enumerate(gaps))
    return GreedyCase("a", Category.CODE, 4, 20, drafted, 5, parts)


def verification(*cases, difference=0.1, sampled=None):
    return Verification(cases, difference, sampled or SampledResult(), 0.8, 1, 1.0, stopped=False)


@pytest.mark.parametrize(
    ("gaps", "explained"), [((), True), ((0.2,), True), ((0.21,), False), ((0.1, 0.3), False)]
)
def test_a_branch_point_is_explained_by_twice_the_width_difference(gaps, explained):
    found = verification(case(*gaps), case())
    assert (not problems(found)) is explained
    if gaps:
        assert f"{max(gaps):.2g} apart; rounding explains up to 0.2." in report(found)
    if not explained:
        assert "1 of 2 texts differ" in problems(found)[0]


def test_the_figures_of_sampled_texts_say_what_is_right_and_texts_without_a_draft_show_nothing():
    assert "Nothing was drafted in the texts at temperature 0." in missing(verification(case(drafted=0)))
    words = report(verification(sampled=SampledResult(96, 4000, surplus=-4.0, variance=640.0, largest=5.0)))
    assert "0.8: 96 replies of 4,000 tokens, read again by the target without a draft." in words
    assert "0.001 nats more likely than its own; without a fault this is at most 0.019." in words


@pytest.mark.parametrize(("surplus", "wrong"), [(200.0, True), (40.0, False)])
def test_replies_less_likely_than_expected_are_a_difference(surplus, wrong):
    sampled = SampledResult(10, 400, surplus=surplus, variance=400.0, largest=5.0)
    assert bool(problems(verification(sampled=sampled))) is wrong


@pytest.mark.process
def test_texts_of_another_temperature_do_not_pass(session):
    right = wrong = SampledResult()
    for number, prompt in enumerate(VERIFY_PROMPTS):
        asked = encoded_prompt(session.pair, prompt.text)
        reply, _ = written(session, asked, 1.6, lambda: False, number)
        right += scored(session.pair, asked, reply.tokens, 1.6)
        wrong += scored(session.pair, asked, reply.tokens, 0.8)
    assert right.excess_p > 1e-3
    assert wrong.excess_p < 1e-6
    assert wrong.excess > 0.1


def test_a_verification_has_one_number_of_threads_on_a_busy_machine(tiny_gguf, few_texts):
    used = []
    with api.load(target=tiny_gguf(), threads=2) as loaded:
        threads = loaded.pair.target.threads
        threads.contention = loaded.pair.threads

        def stopped():
            used.append(threads.now)
            threads.contention.limit = 1

        found = verify(loaded, prompts=VERIFY_PROMPTS[:1], stopped=stopped)
    assert found.cases
    assert len(used) > 20
    assert set(used) == {2}
