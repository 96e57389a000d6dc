"""What a pair teaches is kept between runs, belongs to one machine, and stops no run when it is damaged."""

import json
import shutil
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import localspec
from localspec.algorithm.loop import speculate
from localspec.algorithm.verification import make_rule
from localspec.chat.request import Request
from localspec.control.acceptance import ChanceWeights
from localspec.control.costs import CostTable
from localspec.drafters.copies import CopyCounts
from localspec.drafters.model import ModelDrafter
from localspec.events import Cycle, Notice
from localspec.files import file_of, recalled, store
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.loading.drafting import Acceptance, Drafting, LearnedState, estimated_costs
from localspec.machine.llama_build import library_files
from localspec.measure.bench import AUTO, BUILT_IN_PROMPTS, PLAIN, bench
from localspec.sampler.passes import ForwardPass
from localspec.sampler.sampling import Sampling
from tests.algorithm.exact_models import Blend, ExactModel, never

pytestmark = pytest.mark.usefixtures("home")


def test_lessons_are_stored_for_one_build_and_a_damaged_file_is_nothing_known(home, tmp_path, monkeypatch):
    def known_before_a_reply():
        with localspec.load("demo") as session:
            learned = session.pair.drafting.learned
            session.run("Count from 1 to 9, twice", depth="auto", temperature=0, max_tokens=60)
            return learned

    unlearned = known_before_a_reply()
    (stored,) = (home / "data" / "lessons").glob("*.json")
    assert known_before_a_reply() != unlearned
    with monkeypatch.context() as patch:
        for library in library_files():
            shutil.copyfile(library, tmp_path / library.name)
        patch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
        assert known_before_a_reply() == unlearned
    assert known_before_a_reply() != unlearned
    stored.write_text("{ damaged")
    assert known_before_a_reply() == unlearned
    assert stored.exists()


@pytest.mark.parametrize("late", [5, 20])
def test_a_fixed_depth_reads_a_text_whole_that_an_automatic_one_began_late(late):
    """A seed would draw another text from other drafts."""
    drafter, text = ModelDrafter(ExactModel(1, capacity=100), never), list(range(1, 41))
    drafter.observe(ForwardPass(0, text), len(text))
    drafter.restart(text, len(text) - 1 - late)
    drafter.read(text, len(text))
    strategy = Drafting([drafter], estimated_costs("cpu", {}), most=8).strategy(
        make_rule("block", Sampling(), 0), Request(Sampling(), depth=4)
    )
    strategy.observe(ForwardPass(0, text), len(text))
    for _ in strategy.sync(text):
        pass
    assert drafter.decoder.tokens == text[:-1]


def cached(session):
    return list(session.pair.target.tokens), list(session.pair.drafters[0].decoder.tokens)


def test_a_calibration_leaves_the_conversation_as_it_was_and_gives_way_to_whoever_waits():
    with localspec.load("demo") as session:
        session.run("Hello", temperature=0, max_tokens=20)
        before = cached(session)
        for patience in range(
            40
        ):  # questions until somebody waits: in the draft's part, then in the target's
            answers = iter([False] * patience + [True])
            session.calibrate(budget_seconds=60, stop=lambda answers=answers: next(answers))
            assert next(answers, None) is None
            assert before == cached(session)
        assert not session.pair.drafting.costs.measured
        session.calibrate(budget_seconds=2.0)
        assert session.pair.drafting.costs.measured
        assert before == cached(session)


@pytest.mark.parametrize(
    "options", [{}, {"depth": 3}, {"speculate": False}, {"json_schema": {"type": "integer"}}], ids=str
)
def test_a_reply_after_others_shares_no_pass_and_is_priced_so(options):
    with localspec.load("demo") as session:
        for most in (20, 1, 20):  # cycles, until the stream is closed
            replies = []
            for event in session.stream("Count to 9", temperature=0, max_tokens=30, **options):
                if isinstance(event, Cycle):
                    replies.append(event.running)
                if len(replies) == most:
                    break
            assert replies == [1] * len(replies) != []


def test_a_recurrent_target_says_why_nothing_is_drafted_from_the_text(tiny_gguf):
    def words(**options):
        with localspec.load(target=tiny_gguf(architecture="mamba"), **options) as session:
            events = list(session.stream_complete("a b a b a b", max_tokens=4))
            return [e.text for e in events if isinstance(e, Notice) and "recurrent" in e.text]

    assert len(words(draft="lookup")) == len(words()) == 1
    assert words(speculate=False) == []


def test_a_seed_reproduces_a_reply_whatever_was_learned_since():
    def seeded(seed):
        with localspec.load("demo", draft="lookup") as session:
            return session.run("Tell me a story", temperature=0.8, seed=seed, max_tokens=80).tokens

    first = [seeded(seed) for seed in range(3)]
    assert [seeded(seed) for seed in range(3)] == first


def test_a_seed_gives_one_text_with_any_draft_or_none():
    with localspec.load("demo") as session:
        for seed in range(4):
            texts = set()
            for options in ({"speculate": False}, {"depth": 4}, {"depth": "auto"}, {"rule": "coupled"}):
                session.reset()
                reply = session.run("Tell me a story", temperature=0.9, seed=seed, max_tokens=40, **options)
                texts.add(reply.tokens)
            assert len(texts) == 1


def test_a_configured_seed_can_be_left_out(monkeypatch):
    monkeypatch.setenv("LOCALSPEC_SEED", "3")
    with localspec.load("demo") as session:

        def begun(**options):
            started = next(iter(session.stream("Hello", temperature=0.8, max_tokens=8, **options)))
            return started.seed == 3, started.rule

        assert begun() == (True, "coupled")
        assert begun(rule="block") == (True, "block")
        assert begun(seed=None) == (False, "block")


def test_bench_draws_afresh_whatever_seed_is_configured(monkeypatch):
    monkeypatch.setenv("LOCALSPEC_SEED", "3")
    with localspec.load("demo") as session:
        asked, drafting = [], session.pair.drafting
        strategy = drafting.strategy
        monkeypatch.setattr(
            drafting, "strategy", lambda *given: asked.append(given[1]) or strategy(*given[:2])
        )
        bench(session, BUILT_IN_PROMPTS[:1], (PLAIN, AUTO), (0.8,), rounds=1, max_tokens=8)
    assert len(asked) == 4  # each once to warm up
    assert {request.seed for request in asked} == {None}


def test_a_batch_is_decoded_at_load(monkeypatch):
    """On a CPU; a GPU compiles kernels for each of the common widths."""
    widths = {}
    decode = Context.decode

    def watched(context, tokens, rows):
        widths.setdefault(context.model.name, []).append(len(tokens))
        return decode(context, tokens, rows)

    monkeypatch.setattr(Context, "decode", watched)
    with localspec.load("demo") as session:
        engine = session.pair
        assert widths[engine.target.model.name] == [1]
        assert tuple(widths[engine.drafters[0].decoder.model.name]) == (1, 2)
        assert engine.target.length == engine.drafters[0].decoder.length == 0


def test_what_the_draft_reads_is_distinguished_and_the_first_token_timed():
    with localspec.load("demo") as session:
        stats = session.run("Tell me a story " * 40, max_tokens=60).stats
        assert 0 < stats.draft_prefill_seconds < stats.draft_seconds
        assert stats.prefill_seconds < stats.first_token_seconds
        plain = session.run("And another one " * 20, speculate=False, max_tokens=8).stats
        assert plain.draft_prefill_seconds == 0 < plain.first_token_seconds


@pytest.mark.parametrize(
    ("gpus", "all_on_gpu", "given", "rows"),
    [(1, 0, None, 31), (1, 0, "8", 7), (1, 1, None, None), (0, 0, None, None), (1, 0, "x", 31)],
)
def test_weights_beside_a_gpu_bound_the_rows_of_a_pass(monkeypatch, gpus, all_on_gpu, given, rows):
    monkeypatch.delenv("GGML_OP_OFFLOAD_MIN_BATCH", raising=False)
    if given is not None:
        monkeypatch.setenv("GGML_OP_OFFLOAD_MIN_BATCH", given)
    found = Model.rows_in_place.fget(SimpleNamespace(gpus=("a GPU",) * gpus, all_on_gpu=all_on_gpu))
    assert found == (float("inf") if rows is None else rows)


@pytest.mark.parametrize("bound", [31, 7])
def test_no_pass_of_a_reply_is_wider_than_weights_beside_a_gpu_allow(monkeypatch, tiny_gguf, bound):
    """A GPU is faked by its bound: for drafts from the text and a prediction, at any depth, and for measured costs."""
    monkeypatch.setattr(Model, "rows_in_place", bound)
    decode, rows_of = Context.decode, []

    def counted(self, tokens, rows):
        rows_of.append(len(tokens))
        return decode(self, tokens, rows)

    monkeypatch.setattr(Context, "decode", counted)
    with localspec.load(target=tiny_gguf(), context_length=1024, threads=1, cache_gb=0) as session:
        prompt = [5, 6, 7, 8] * 20
        rows_of.clear()
        for depth in (32, "auto"):
            for prediction in (None, "a b c d e f g h " * 20):
                session.complete(prompt, depth=depth, temperature=0, max_tokens=120, prediction=prediction)
        assert max(rows_of[1:]) <= bound  # of each reply the prompt is read in chunks
        session.calibrate(budget_seconds=5.0)
        widths = session.pair.drafting.costs.table().widths
        assert max(widths) == bound


STATE = LearnedState(
    tables=(CostTable((1, 2, 8), (0.1, 0.12, 0.3), {"model": 0.01}, True, 300),),
    greedy=Acceptance(ChanceWeights((-0.5, 0.9, 0.3), (0.2, 0.1, 0.1)), CopyCounts((2.0,), (1.0,))),
)


def drafting_of(drafters=(), learned=None):
    return Drafting(drafters, estimated_costs("cpu", {}), most=32, learned=learned)


def test_everything_that_is_learned_can_be_stored(tmp_path):
    state = drafting_of([ModelDrafter(ExactModel(1), never)]).learned
    store(tmp_path / "x.json", state)
    assert recalled(tmp_path / "x.json", LearnedState) == state


def test_every_part_of_a_key_counts(tmp_path):
    assert file_of(tmp_path, "a", "b") == file_of(tmp_path, "a", "b")
    keys = (("a", "b"), ("a", "c"), ("b", "b"), ("ab",), ("a\nb",))
    assert len({file_of(tmp_path, *key) for key in keys}) == 5
    assert file_of(tmp_path, "\udcff").parent == tmp_path


def damage(text):
    stored = json.loads(text)
    yield ""
    yield text[: len(text) // 2]
    yield "[1, 2]"
    yield "\x00" * 100
    for path, value in [
        (("tables", 0, "verify_seconds"), "fast"),
        (("tables", 0, "verify_seconds"), [0.1, float("nan"), 0.3]),
        (("tables", 0, "verify_seconds"), [0.1, 10**400, 0.3]),
        (("tables", 0, "verify_seconds"), [0.0, 0.0, 0.0]),
        (("tables", 0, "verify_seconds"), [0.1, 0.12]),
        (("tables", 0, "verify_seconds"), []),
        (("tables", 0, "widths"), [1, 2, 2]),
        (("tables", 0, "widths"), [2, 3, 8]),
        (("tables", 0, "run_seconds"), {"model": -1.0}),
        (("greedy", "chances", "variances"), [0.1, -0.1, 0.1]),
        (("greedy", "copies", "kept"), [-1.0]),
        (("greedy",), None),
        (("unknown",), 1),
    ]:
        changed = json.loads(json.dumps(stored))
        inner = changed
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = value
        yield json.dumps(changed)
    stored["tables"][0] |= {"widths": [], "verify_seconds": []}
    yield json.dumps(stored)


def test_a_damaged_file_is_nothing_known_and_written_again(tmp_path):
    file = tmp_path / "new" / "folder" / "x.json"
    store(file, STATE)
    for text in damage(file.read_text()):
        file.write_text(text)
        assert recalled(file, LearnedState) is None, text
        store(file, STATE)
        assert recalled(file, LearnedState) == STATE


SECONDS = st.just(0.0) | st.floats(1e-6, 1e6)
COUNTS = st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e9)), max_size=12)


@given(
    costs=st.lists(st.tuples(st.integers(1, 9), SECONDS), min_size=1, max_size=6),
    draft_step=SECONDS,
    counts=st.fixed_dictionaries({"copies": COUNTS}),
    weights=st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(0, 1e3)), min_size=3, max_size=3),
)
@settings(max_examples=60)
def test_whatever_numbers_a_file_holds_it_is_read_or_not_but_can_be_used(
    tmp_path_factory, costs, draft_step, counts, weights
):
    file = tmp_path_factory.mktemp("lessons") / "x.json"
    store(file, STATE)
    stored = json.loads(file.read_text())
    stored["tables"][0] |= {
        "widths": [1 + sum(step for step, _ in costs[:i]) for i in range(len(costs))],
        "verify_seconds": [seconds for _, seconds in costs],
        "run_seconds": {"model": draft_step},
    }
    stored["sampled"] = {
        name: {"kept": [kept for kept, _ in pairs], "rejected": [rejected for _, rejected in pairs]}
        for name, pairs in counts.items()
    } | {"chances": {"weights": [w for w, _ in weights], "variances": [v for _, v in weights]}}
    file.write_text(json.dumps(stored))
    state = recalled(file, LearnedState)
    if state is None:
        assert not all(seconds for _, seconds in costs)
        return
    rule, target, tokens = make_rule("block", Sampling(), 1), ExactModel(1), [1, 2, 3]
    list(target.prefill(tokens[:-1]))
    drafting = drafting_of([ModelDrafter(Blend(1, 0.9), never)], state)
    strategy = drafting.strategy(rule, Request(Sampling()))
    cycles = speculate(target, strategy, tokens, rule=rule, room=20, is_end=never)
    assert sum(len(cycle.tokens) for cycle in cycles) == 20
