"""A verification of real pairs: what it says of them, and of a pair whose verifier is wrong."""

import dataclasses
import math

import pytest

from localspec import api, demo
from localspec.errors import BadSetting
from localspec.measure.divergence import Divergence
from localspec.measure.prompts import BenchPrompt, Category
from localspec.measure.verify import law
from localspec.measure.verify import quality as verify_quality
from localspec.measure.verify import verify as verify_module
from localspec.measure.verify.greedy import GreedyCase, GreedyResult, greedy_cases
from localspec.measure.verify.prompts import VERIFY_PROMPTS
from localspec.measure.verify.quality import QualityResult, quality, sampled_pair, scored
from localspec.measure.verify.report import as_json, missing, problems, report, verdict
from localspec.measure.verify.verify import Phase, Verification, encoded_prompt, plain_chain, verify
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
def few_replays(monkeypatch):
    for name, value in (("FEWEST", 1200), ("MOST", 1200)):
        monkeypatch.setattr(law, name, value)
    monkeypatch.setattr(verify_module, "ROUNDS", 1)


def never():
    return False


def test_the_demo_pair_is_verified_part_by_part(session, few_replays):
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
    assert found.law.verifications >= found.law.texts >= 1200
    assert found.quality.texts == 4
    assert found.quality.low < found.quality.difference < found.quality.high
    assert abs(found.quality.excess) < 6 * found.quality.excess_error
    text = report(found)
    for word in ("greedy", "Sampling", "Likelihood", "D ="):
        assert word in text
    assert as_json(found)["problems"] == []


def test_too_few_replays_are_said(session, few_replays):
    found = verify(session, prompts=VERIFY_PROMPTS[:1], seed=4)
    assert any("too few" in line for line in missing(found))
    assert "not everything was tested" in verdict(found)
    assert as_json(found)["verdict"] == "incomplete"


def test_only_a_given_seed_keeps_the_number_of_threads(session, few_replays):
    threads, kept = session.engine.target.threads, {}
    for seed in (None, 4):

        def note(step, seed=seed):
            if step.phase is Phase.COLLECTING:
                kept[seed] = threads.fixed

        verify(session, prompts=VERIFY_PROMPTS[:1], seed=seed, on_step=note)
    assert kept == {None: False, 4: True}
    assert session.engine.drafting.seeds_keep_threads


@pytest.mark.parametrize("fault", [faults.leaky_coins, faults.leaky_comparison])
def test_a_leaky_verifier_is_found_on_the_demo_pair(session, few_replays, fault):
    with fault(0.3):
        found = verify(session, prompts=VERIFY_PROMPTS[:2], seed=4)
    assert problems(found)
    assert verdict(found).startswith("DIFFERENT")


def test_greedy_tokens_that_are_not_the_likeliest_are_counted(session):
    tokens = encoded_prompt(session.engine, VERIFY_PROMPTS[9].text)
    with faults.leaky_comparison(1.0):
        cases, _ = greedy_cases(session.engine, VERIFY_PROMPTS[9], tokens, never)
    assert cases[0].not_likeliest > 0
    assert not cases[0].explained(math.inf)


def test_stopping_keeps_what_was_found(session, few_replays):
    seen = []
    found = verify(
        session,
        prompts=VERIFY_PROMPTS[:4],
        on_step=seen.append,
        stopped=lambda: any(step.phase is Phase.SAMPLED for step in seen),
    )
    assert found.stopped
    assert len(found.greedy.cases) == 8
    assert found.law is None
    assert "Every greedy" not in verdict(found)


def test_a_pair_without_a_draft_and_temperature_0_are_refused(home, session):
    with pytest.raises(BadSetting, match="temperature"):
        verify(session, temperature=0.0)
    with api.load(target=demo.target_path(), threads=1) as alone, pytest.raises(BadSetting, match="draft"):
        verify(alone)


def case(gap, index=3):
    where = None if gap is None else Divergence(index, 5, 6, gap)
    return GreedyCase(BenchPrompt("a", Category.CODE, "b"), 4, 20, 10, 5, 0, where)


def test_a_divergence_is_explained_by_twice_the_width_difference():
    assert case(None).explained(0.0)
    assert case(0.2).explained(0.1)
    assert not case(0.21).explained(0.1)
    assert GreedyResult((case(None), case(0.2), case(0.3)), 0.1).unexplained == (case(0.3),)


def verification(**parts):
    base = Verification(GreedyResult(), QualityResult(), None, 0, Sampling(), 1, 1.0, stopped=False)
    return dataclasses.replace(base, **parts)


def test_a_difference_beyond_numerics_is_named_with_its_numbers():
    found = verification(greedy=GreedyResult((case(0.3), case(None)), 0.1))
    assert "1 of 2 greedy texts part" in problems(found)[0]
    assert "0.3000" in report(found)
    assert "0.2000" in report(found)


def test_near_ties_alone_are_no_difference():
    assert problems(verification(greedy=GreedyResult((case(0.2),), 0.1))) == []


def test_replies_less_likely_than_the_law_expects_are_a_difference():
    assert problems(verification(quality=QualityResult(texts=4, excess=0.5, excess_p=1e-9)))
    assert not problems(verification(quality=QualityResult(texts=4, excess=0.5, excess_p=1e-3)))


def test_texts_of_another_temperature_do_not_pass_for_the_law(session):
    whole = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    hot, law_of_record = (Sampling(temperature=t, **whole) for t in (1.6, 0.8))
    pairs = []
    for number, prompt in enumerate(VERIFY_PROMPTS):
        reply = session.run(prompt.text, temperature=1.6, seed=number, max_tokens=48, **whole)
        tokens = session.engine.target.tokens[: reply.stats.prompt_tokens]
        score = {
            sampling: scored(session.engine, list(tokens), reply.tokens, sampling, 0.0)
            for sampling in (hot, law_of_record)
        }
        pairs.append((score[hot], score[law_of_record]))
        session.reset()
    right, wrong = quality([(hot, hot) for hot, _ in pairs]), quality(pairs)
    assert right.excess_p > 1e-3
    assert wrong.excess_p < 1e-6
    assert wrong.excess > 0.1


def test_a_token_at_the_edge_of_what_is_kept_is_allowed_for(session):
    sampling = plain_chain(Sampling(), 0.8)
    first, second = sampled_pair(session, VERIFY_PROMPTS[0].text, sampling, (1, 2), 0.0)
    assert first.impossible == second.impossible == 0
    assert len(first.surprisals) <= verify_quality.NEW_TOKENS
    assert (first.variances >= 0).all()


def test_on_a_slow_pair_texts_are_short_but_compared(session):
    tokens = encoded_prompt(session.engine, VERIFY_PROMPTS[0].text)
    cases, _ = greedy_cases(session.engine, VERIFY_PROMPTS[0], tokens, never, slow=lambda: True)
    assert [case.tokens for case in cases] == [1, 1]
    assert all(case.divergence is None for case in cases)
