"""What a pair teaches is kept between runs, and replies only where the user asked for it."""

import pytest

import localspec
from localspec.chat.reply import DEPTH_FIXED
from localspec.events import Cycle, Notice
from localspec.llama.context import Context
from localspec.measure.bench import AUTO, PLAIN, Limits, bench, built_in_prompts
from localspec.models import drafting as warm_up

pytestmark = pytest.mark.usefixtures("home")


def test_lessons_are_stored_and_a_damaged_file_is_nothing_known(home):
    def known_before_a_reply():
        with localspec.load("demo") as session:
            lessons = session.pair.drafting.lessons
            session.run("Count from 1 to 9, twice", depth="auto", temperature=0, max_tokens=60)
            return lessons

    unlearned = known_before_a_reply()
    (stored,) = (home / "data" / "lessons").glob("*.json")
    assert known_before_a_reply() != unlearned
    stored.write_text("{ damaged")
    assert known_before_a_reply() == unlearned
    assert stored.exists()


def test_calibration_leaves_the_conversation_as_it_was():
    with localspec.load("demo") as session:
        session.run("Hello", temperature=0, max_tokens=20)
        before = list(session.pair.target.tokens), list(session.pair.drafters[0].decoder.tokens)
        session.calibrate(budget_seconds=2.0)
        assert session.pair.drafting.costs.measured
        assert before == (list(session.pair.target.tokens), list(session.pair.drafters[0].decoder.tokens))


def test_a_calibration_gives_way_to_whoever_waits_and_leaves_no_trace():
    with localspec.load("demo") as session:
        session.run("Hello", temperature=0, max_tokens=20)
        before = list(session.pair.target.tokens), list(session.pair.drafters[0].decoder.tokens)
        for patience in range(
            40
        ):  # questions until somebody waits: in the draft's part, then in the target's
            answers = iter([False] * patience + [True])
            session.calibrate(budget_seconds=60, stop=lambda answers=answers: next(answers))
            assert next(answers, None) is None
            assert before == (
                list(session.pair.target.tokens),
                list(session.pair.drafters[0].decoder.tokens),
            )
        assert not session.pair.drafting.costs.measured


@pytest.mark.parametrize(
    "options", [{}, {"depth": 3}, {"speculate": False}, {"json_schema": {"type": "integer"}}], ids=str
)
def test_a_reply_after_others_shares_no_pass_and_is_priced_so(options):
    with localspec.load("demo") as session:
        for most in (20, 1, 20):  # cycles, until the stream is closed
            replies = []
            for event in session.stream("Count to 9", temperature=0, max_tokens=30, **options):
                if isinstance(event, Cycle):
                    replies.append(session.pair.drafting.costs.replies)
                if len(replies) == most:
                    break
            assert replies == [1] * len(replies) != []


def test_a_recurrent_target_says_why_nothing_is_drafted_from_the_text(tiny_gguf):
    def said(**options):
        with localspec.load(target=tiny_gguf(architecture="mamba"), **options) as session:
            events = list(session.stream_complete("a b a b a b", max_tokens=4))
            return [e.text for e in events if isinstance(e, Notice) and "recurrent" in e.text]

    assert len(said(draft="lookup")) == len(said()) == 1
    assert said(speculate=False) == []


def test_a_seed_repeats_a_reply_whether_the_draft_has_read_the_prompt_or_not():
    with localspec.load("demo") as session:
        texts = []
        for _ in range(2):
            texts.append(session.run("What is speculative decoding?", temperature=1.5, seed=7).text)
            session.reset()
        assert texts[0] == texts[1]


def test_a_seed_reproduces_a_reply_whatever_was_learned_since():
    def seeded(seed):
        with localspec.load("demo", draft="lookup") as session:
            return session.run("Tell me a story", temperature=0.8, seed=seed, max_tokens=80).tokens

    first = [seeded(seed) for seed in range(3)]
    assert [seeded(seed) for seed in range(3)] == first


def test_a_seed_that_fixes_the_depth_is_said_once_and_can_be_left_out(monkeypatch):
    monkeypatch.setenv("LOCALSPEC_SEED", "3")
    with localspec.load("demo") as session:

        def replied(**options):
            events = list(session.stream("Hello", depth="auto", max_tokens=8, **options))
            return events[-1].reply.seed, [e.text for e in events if getattr(e, "text", "") == DEPTH_FIXED]

        assert replied(temperature=0) == (3, [])
        assert replied(temperature=0.8, rule="coupled") == (3, [])
        assert replied(temperature=0.8, speculate=False) == (3, [])
        fresh, said = replied(temperature=0.8, seed=None)
        assert fresh != 3
        assert said == []
        assert replied(temperature=0.8) == (3, [DEPTH_FIXED])
        assert replied(temperature=0.8) == (3, [])


def test_bench_draws_afresh_whatever_seed_is_configured(monkeypatch):
    monkeypatch.setenv("LOCALSPEC_SEED", "3")
    with localspec.load("demo") as session:
        asked = []
        strategy = session.pair.drafting.strategy
        monkeypatch.setattr(
            session.pair.drafting,
            "strategy",
            lambda rule, request, predicted: asked.append(request) or strategy(rule, request),
        )
        bench(session, built_in_prompts()[:1], (PLAIN, AUTO), (0.8,), Limits(rounds=1, max_tokens=8))
    assert len(asked) == 4  # each once to warm up
    assert {request.seed for request in asked} == {None}


def test_a_seed_keeps_the_threads_and_anything_else_may_change_them():
    """Attention over a long context sums in another order with another number of threads."""
    with localspec.load("demo") as session:

        def fixed(**options):
            session.run("Hello", max_tokens=4, **options)
            return {
                context.threads.fixed for context in (session.pair.target, session.pair.drafters[0].decoder)
            }

        assert fixed(temperature=0.8, seed=1) == {True}
        assert fixed(temperature=0.8) == fixed(temperature=0) == {False}
        assert fixed(temperature=0.8, seed=1, rule="coupled") == {False}


def test_batches_of_the_common_widths_are_decoded_at_load(monkeypatch):
    widths = {}
    decode = Context.decode

    def watched(context, tokens, rows):
        widths.setdefault(context.model.name, []).append(len(tokens))
        return decode(context, tokens, rows)

    monkeypatch.setattr(Context, "decode", watched)
    monkeypatch.setattr(warm_up, "CPU_SECONDS", 60.0)
    with localspec.load("demo") as session:
        engine = session.pair
        assert tuple(widths[engine.target.model.name]) == warm_up.WIDTHS
        assert tuple(widths[engine.drafters[0].decoder.model.name]) == warm_up.DRAFT_WIDTHS
        assert engine.target.length == engine.drafters[0].decoder.length == 0


def test_what_the_draft_reads_is_told_apart_and_the_first_token_timed():
    with localspec.load("demo") as session:
        stats = session.run("Tell me a story " * 40, max_tokens=60).stats
        assert 0 < stats.draft_reading_seconds < stats.draft_seconds
        assert stats.prefill_seconds < stats.first_token_seconds
        plain = session.run("And another one " * 20, speculate=False, max_tokens=8).stats
        assert plain.draft_reading_seconds == 0 < plain.first_token_seconds
