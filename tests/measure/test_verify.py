"""A verification of real pairs: what it says of them, and of a pair whose verifier is wrong."""

import dataclasses
import math
import re

import pytest

from localspec import api, demo
from localspec.algorithm.batcher import Batcher
from localspec.chat.session import last_reply
from localspec.errors import BadSetting
from localspec.llama.threads import Contention
from localspec.measure import verify as verify_module
from localspec.measure.bench import VERIFY_PROMPTS, BenchPrompt, Category
from localspec.measure.compare import Divergence
from localspec.measure.likelihood import ALARM, NEARLY_SURE, SampledResult, scored
from localspec.measure.verified import as_json, missing, problems, report, verdict
from localspec.measure.verify import (
    GreedyCase,
    GreedyResult,
    Phase,
    Verification,
    encoded_prompt,
    greedy_cases,
    greedy_text,
    plain_chain,
    sampled_text,
    verify,
)
from localspec.sampler.sampling import Sampling
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


def test_the_demo_pair_is_verified_part_by_part(session, few_texts):
    steps = []
    found = verify(session, prompts=VERIFY_PROMPTS[:4], on_step=steps.append, seed=4)
    assert problems(found) == []
    assert [phase for phase in Phase if any(step.phase is phase for step in steps)] == list(Phase)
    assert {case.prompt.category for case in found.greedy.cases} == {
        Category.CODE,
        Category.CHAT,
        Category.PROSE,
        Category.JSON,
    }
    assert {case.depth for case in found.greedy.cases} == {None, 4}
    assert sum(case.drafted for case in found.greedy.cases) > 50
    assert found.sampled.texts == 8
    assert found.sampled.tokens > 200
    assert abs(found.sampled.excess) < 6 * found.sampled.excess_error
    text = report(found)
    for word in ("Temperature 0:", "Temperature 0.8: 8 replies", "nats", "Rounding"):
        assert word in text
    assert as_json(found)["problems"] == []


def test_rows_without_a_guess_are_left_out(session):
    prompt = VERIFY_PROMPTS[0]
    drafted, idle = (
        GreedyCase(prompt, depth, 48, guesses, 0, 0, None) for depth, guesses in ((4, 20), (None, 0))
    )

    def depths(*cases):
        return re.findall(r"^code +(\w+)", report(verification(greedy=GreedyResult(cases))), re.M)

    assert depths(drafted, idle) == ["4"]
    assert "auto is not shown" in report(verification(greedy=GreedyResult((drafted, idle))))
    wrong = dataclasses.replace(idle, not_likeliest=1)
    assert depths(drafted, wrong) == ["4", "auto"]
    assert "auto is not shown" not in report(verification(greedy=GreedyResult((drafted,))))
    assert "Rounding changes no word's score here." in report(verification(greedy=GreedyResult((drafted,))))


def test_too_few_sampled_tokens_are_named(session, monkeypatch):
    monkeypatch.setattr(verify_module, "ROUNDS", 1)
    found = verify(session, prompts=VERIFY_PROMPTS[2:3], seed=4)
    found = dataclasses.replace(found, sampled=dataclasses.replace(found.sampled, tokens=3))
    assert any("Too few" in line for line in missing(found))
    assert "not everything was tested" in verdict(found)
    assert as_json(found)["verdict"] == "incomplete"


def test_only_a_given_seed_keeps_the_number_of_threads(session, few_texts):
    threads, kept = session.pair.target.threads, {}
    for seed in (None, 4):

        def note(step, seed=seed):
            if step.phase is Phase.SAMPLED and step.done:
                kept[seed] = threads.fixed

        verify(session, prompts=VERIFY_PROMPTS[:1], seed=seed, on_step=note)
    assert kept == {None: False, 4: True}
    assert session.pair.drafting.seeds_keep_threads


@pytest.mark.parametrize("fault", [faults.leaky_coins, faults.leaky_comparison])
def test_a_leaky_verifier_is_found_on_the_demo_pair(session, few_texts, fault):
    with fault(0.5):
        found = verify(session, prompts=VERIFY_PROMPTS[:8], seed=4)
    assert problems(found)
    assert verdict(found).startswith("DIFFERENT")


@pytest.fixture(scope="module")
def two_lanes(home):
    with api.load("demo", threads=1, parallel=2) as loaded:
        yield loaded


@pytest.fixture
def patient(monkeypatch):
    """A pass waits for every reply that runs: of a toy no pass is worth a wait, so chance would decide."""

    def seconds(batcher, began):
        alone = any(part.alone for part in batcher._waiting.values())
        return 0.0 if alone or len(batcher._waiting) >= batcher.replies else 1.0

    monkeypatch.setattr(Batcher, "_worth_waiting", seconds)


def test_texts_that_share_passes_are_verified(two_lanes, few_texts, patient, monkeypatch):
    replies = []

    def noted(events):
        replies.append(last_reply(events))
        return replies[-1]

    monkeypatch.setattr(verify_module, "last_reply", noted)
    found = verify(two_lanes, prompts=VERIFY_PROMPTS[:5])
    assert problems(found) == []
    assert found.sampled.texts == len(replies) == 10
    assert sum(reply.stats.replies_at_once for reply in replies) > 15
    assert "They were written 2 at a time." in verdict(found)


def test_rows_of_another_reply_are_found_where_texts_share_passes(two_lanes, session, few_texts, patient):
    with faults.exchanged_rows():
        assert problems(verify(session, prompts=VERIFY_PROMPTS[:4])) == []
        assert verdict(verify(two_lanes, prompts=VERIFY_PROMPTS[:4])).startswith("DIFFERENT")


def test_greedy_tokens_that_are_not_the_likeliest_are_counted(session):
    tokens = encoded_prompt(session.pair, VERIFY_PROMPTS[9].text)
    with faults.leaky_comparison(1.0):
        cases, _ = greedy_cases(session.pair, VERIFY_PROMPTS[9], tokens, never)
    assert cases[0].not_likeliest > 0
    assert not cases[0].explained(math.inf)


def test_stopping_keeps_what_was_found(session, few_texts):
    seen = []
    found = verify(
        session,
        prompts=VERIFY_PROMPTS[:4],
        on_step=seen.append,
        stopped=lambda: any(step.phase is Phase.SAMPLED for step in seen),
    )
    assert found.stopped
    assert len(found.greedy.cases) == 8
    assert not found.sampled.texts
    assert "Every greedy" not in verdict(found)


def test_temperature_0_and_a_target_that_takes_nothing_back_are_refused(session, tiny_gguf):
    with pytest.raises(BadSetting, match="temperature"):
        verify(session, temperature=0.0)
    with (
        api.load(target=tiny_gguf(architecture="mamba"), threads=1) as alone,
        pytest.raises(BadSetting, match="nothing can be drafted"),
    ):
        verify(alone)


def test_a_target_alone_is_verified_with_what_lookup_drafts(home, few_texts):
    with api.load(target=demo.target_path(), threads=1) as alone:
        found = verify(alone, prompts=VERIFY_PROMPTS[:4], seed=4)
        with faults.leaky_comparison(0.5):
            wrong = verify(alone, prompts=VERIFY_PROMPTS[:4], seed=4)
    assert not problems(found)
    assert sum(case.drafted for case in found.greedy.cases) > 5
    assert problems(wrong)


def test_texts_without_a_draft_show_nothing():
    undrafted = GreedyCase(BenchPrompt("a", Category.CODE, "b"), 4, 20, 0, 0, 0, None)
    found = verification(greedy=GreedyResult((undrafted,), 0.1))
    assert "Nothing was drafted in the texts at temperature 0." in missing(found)


def case(gap, index=3):
    where = None if gap is None else Divergence(index, 5, 6, gap)
    return GreedyCase(BenchPrompt("a", Category.CODE, "b"), 4, 20, 10, 5, 0, where)


def test_a_divergence_is_explained_by_twice_the_width_difference():
    assert case(None).explained(0.0)
    assert case(0.2).explained(0.1)
    assert not case(0.21).explained(0.1)


def verification(**parts):
    base = Verification(GreedyResult(), SampledResult(), Sampling(), 1, 1.0, stopped=False)
    return dataclasses.replace(base, **parts)


def test_a_difference_beyond_numerics_is_named_with_its_numbers():
    found = verification(greedy=GreedyResult((case(0.3), case(None)), 0.1))
    assert "1 of 2 texts differ" in problems(found)[0]
    assert "0.3000" in report(found)
    assert "0.2000" in report(found)


def test_the_figures_of_sampled_texts_say_what_is_right():
    said = report(verification(sampled=SampledResult(96, 4000, surplus=-4.0, variance=640.0, largest=5.0)))
    assert "0.8: 96 replies of 4,000 tokens, read again by the target without a draft." in said
    assert "-0.001  Without a fault it is near 0, by chance between -0.019 and 0.019." in said
    assert "0       The sampling settings forbid them: 0 is right." in said


def test_near_ties_alone_are_no_difference():
    assert problems(verification(greedy=GreedyResult((case(0.2),), 0.1))) == []


def test_replies_less_likely_than_expected_are_a_difference():
    assert problems(verification(sampled=SampledResult(10, 400, surplus=200.0, variance=400.0, largest=5.0)))
    assert not problems(
        verification(sampled=SampledResult(10, 400, surplus=40.0, variance=400.0, largest=5.0))
    )
    assert problems(verification(sampled=SampledResult(1, 4, impossible=1)))


def test_the_smallest_excess_raises_the_alarm():
    found = SampledResult(10, 400, surplus=0.0, variance=400.0, largest=5.0)
    noise = NEARLY_SURE * found.excess_error
    just = dataclasses.replace(found, surplus=400 * (found.smallest_excess - noise))
    assert just.excess_p == pytest.approx(ALARM)


def test_texts_of_another_temperature_do_not_pass(session):
    whole = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    hot, cold = (Sampling(temperature=t, **whole) for t in (1.6, 0.8))
    right = wrong = SampledResult()
    for number, prompt in enumerate(VERIFY_PROMPTS):
        asked = encoded_prompt(session.pair, prompt.text)
        reply = sampled_text(session, asked, hot, number)
        right += scored(session.pair, asked, reply, hot, 0.0)
        wrong += scored(session.pair, asked, reply, cold, 0.0)
    assert right.excess_p > 1e-3
    assert wrong.excess_p < 1e-6
    assert wrong.excess > 0.1


def test_no_token_of_a_reply_is_outside_of_its_chain(session):
    sampling = plain_chain(Sampling(), 0.8)
    asked = encoded_prompt(session.pair, VERIFY_PROMPTS[0].text)
    found = scored(session.pair, asked, sampled_text(session, asked, sampling, 2), sampling, 0.0)
    assert found.impossible == 0
    assert 0 < found.tokens <= verify_module.NEW_TOKENS
    assert found.variance > 0


def test_greedy_texts_have_one_number_of_threads_on_a_busy_machine(tiny_gguf):
    with api.load(target=tiny_gguf(), threads=2) as loaded:
        threads = loaded.pair.target.threads
        threads.contention = Contention(2, limit=1, _deaf_until=math.inf)
        text = greedy_text(loaded.pair, [*range(5, 15)] * 2, 4, 8, lambda: threads.now != 2)
    assert len(text.tokens) == 8
    assert max(text.widths) > 1


def test_on_a_slow_pair_texts_are_short_but_compared(session):
    tokens = encoded_prompt(session.pair, VERIFY_PROMPTS[0].text)
    cases, _ = greedy_cases(session.pair, VERIFY_PROMPTS[0], tokens, never, text_ends=0.0)
    assert [case.tokens for case in cases] == [1, 1]
    assert all(case.divergence is None for case in cases)
