"""Heads of every kind on tiny GGUFs: they change no text, and know what a head that read the text anew would know."""

import random
from pathlib import Path

import numpy as np
import pytest

import localspec
from localspec.algorithm.loop import speculate
from localspec.caches.store import finish
from localspec.chat.request import Request
from localspec.demo import target_path
from localspec.loading.drafting import Drafting, estimated_costs
from localspec.sampler.passes import NO_TEXT, Candidates, ForwardPass
from localspec.sampler.sampling import Sampling
from tests.drafters.heads import GREEDY, KINDS, never, opened, plain_texts
from tools.heads import mimo2

CASES = 100


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture(scope="module")
def files(kind, tmp_path_factory):
    return kind.files(tmp_path_factory.mktemp("heads"))


def cases(vocabulary):
    """Texts that begin like one of those before, or like none, and how many tokens are to follow."""
    chance, text, found = random.Random(5), [], []
    for _ in range(CASES):
        text = text[: chance.choice([0, len(text) // 2, len(text)])][:300]
        text += [chance.randrange(vocabulary) for _ in range(chance.choice([1, 3, 20, 150]))]
        found.append((tuple(text), chance.randint(1, 14)))
    return tuple(found)


@pytest.mark.process
def test_greedy_texts_are_plain_ones_through_cancels_and_new_beginnings(kind, files):
    chance, drafted, accepted = random.Random(5), 0, 0
    asked = cases(kind.walk.vocab_size)
    with opened(kind, files) as pair:
        for (prompt, room), plain in zip(asked, plain_texts(kind.walk, asked), strict=True):
            text = list(prompt)
            pair.begin(text)
            while (left := room - len(text) + len(prompt)) > 0:
                depth, patience = chance.choice([0, 1, 3, 5]), chance.randint(1, 6)
                for cycle in pair.cycles(text, depth, left):
                    drafted, accepted = drafted + cycle.drafted, accepted + cycle.accepted
                    if not (patience := patience - 1):
                        break  # cancelled
            assert text == list(plain)
    assert 0.1 < accepted / drafted < 0.95


class Watching:
    """The greedy rule, which keeps the rows that were drafted from."""

    def __init__(self):
        self.rows = []
        self.verify = GREEDY.verify

    def draw(self, row, history, start):
        self.rows.append(np.array(row.logits if isinstance(row, Candidates) else row))
        return GREEDY.draw(row, history, start)


def guesses(pair, text):
    """The rows that the drafter draws from after this text, and forgets again."""
    watching = Watching()
    pair.drafter.propose(text, 4, watching)
    return np.stack(watching.rows)


def difference(one, other):
    known = np.isfinite(one) & np.isfinite(other)
    return float(np.abs(one[known] - other[known]).max())


def test_after_many_cycles_it_guesses_as_if_it_had_read_the_text_at_once(kind, files):
    """From the same hidden rows, which depend on the widths of passes a little; not from those of a token before."""
    chance = random.Random(1)
    with opened(kind, files) as pair, opened(kind, files) as fresh:
        shown = show_hidden_rows(pair.drafter)
        text = [chance.randrange(pair.target.model.vocab.size) for _ in range(40)]
        pair.begin(text)
        for depth in (4, 1, 5, 3, 2, 5, 4, 3, 1, 5, 4, 5):
            next(pair.cycles(text, depth, 10))
        for _ in fresh.target.prefill(text[:-1]):
            pass
        mine, found = guesses(pair, text), []
        for shift in (0, 1):
            hidden = np.stack([shown[max(i - shift, 0)] for i in range(len(text) - 1)])
            fresh.drafter.observe(NO_TEXT, 0)
            fresh.drafter.observe(ForwardPass(0, text[:-1], hidden=hidden), len(text) - 1)
            found.append(difference(mine, guesses(fresh, text)))
    assert found[0] < (1e-4 if kind.keeps else 5e-3)
    assert found[1] > 1


def show_hidden_rows(drafter):
    """Those of every position of the text, as the drafter is shown them."""
    observe, shown = drafter.observe, {}

    def observed(batch, kept):
        if batch.hidden is not None:
            shown.update(enumerate(np.array(batch.hidden[:kept]), start=batch.start))
        observe(batch, kept)

    drafter.observe = observed
    return shown


def test_a_cache_that_is_full_begins_anew_and_texts_stay(kind, files, monkeypatch):
    prompt = [7, 8, 9] * 20
    (plain,), text = plain_texts(kind.walk, ((tuple(prompt), 120),)), list(prompt)
    with opened(kind, files) as pair:
        monkeypatch.setattr(pair.drafter.head, "capacity", 100)
        pair.begin(prompt)
        accepted = [cycle.accepted for cycle in pair.cycles(text, 3, 120)]
        assert text == list(plain)
        assert sum(accepted[len(accepted) // 2 :]) > 0


def test_a_reply_without_drafting_is_read_along(kind, files):
    chance = random.Random(2)
    with opened(kind, files) as pair:
        text = [chance.randrange(pair.target.model.vocab.size) for _ in range(40)]
        strategy = Drafting([pair.drafter], estimated_costs("cpu", {}), most=4).strategy(
            GREEDY, Request(Sampling(temperature=0.0), depth=0)
        )
        for batch in pair.target.prefill(text[:-1]):
            strategy.observe(batch, len(batch.tokens))
        list(speculate(pair.target, strategy, text, rule=GREEDY, room=60, is_end=never))
        assert strategy.busy_seconds == pair.drafter.busy_seconds
        assert pair.drafter.propose(text, 4, GREEDY).tokens
        assert pair.drafter._known.first == 0


def test_a_text_that_comes_back_is_not_read_again(kind, files):
    chance = random.Random(3)
    with opened(kind, files) as pair:
        text = [chance.randrange(pair.target.model.vocab.size) for _ in range(300)]
        pair.begin(text)
        for _ in pair.cycles(text, 3, 20):
            pass
        before = guesses(pair, text)
        for words in ([5, 6, 7], text):
            pair.target.recall(words)
            pair.begin(words)
        assert pair.target.length == len(text) - 1
        assert pair.drafter._known.first == 0
        assert difference(before, guesses(pair, text)) < (1e-4 if kind.keeps else 5e-3)


DATA = Path(__file__).parent / "data"
QUESTIONS = ("What is speculative decoding?", "Why is the sky blue?", "What is 12 + 7?")


@pytest.fixture(scope="module", params=["eagle3", "mtp"])
def session(request, tmp_path_factory):
    files = {"target": target_path(), "draft": DATA / f"demo-{request.param}.gguf"}
    if request.param == "mtp":
        files["target"] = mimo2.write_target(tmp_path_factory.mktemp("mimo2") / "target.gguf", target_path())
    with localspec.load(**files, context_length=512) as session:
        yield session


def replies(session, depth):
    found = []
    for question in QUESTIONS:
        session.reset()
        found.append(session.run(question, depth=depth, temperature=0.0, max_tokens=48))
    return found


def test_a_trained_head_is_often_right_and_changes_no_text(session):
    plain, drafted = replies(session, 0), replies(session, 3)
    assert [reply.text for reply in drafted] == [reply.text for reply in plain]
    emitted = sum(reply.stats.emitted for reply in drafted)
    passes = sum(reply.stats.cycles for reply in drafted)
    assert emitted / passes > 1.8


def test_a_head_comes_back_from_the_disk_with_its_text(home, cache_of_its_own, quick_disk):
    """Without its rows of the text it would be right less often."""
    files = {"target": target_path(), "draft": DATA / "demo-eagle3.gguf"}
    question = "A small model guesses the next tokens. " * 80 + QUESTIONS[0]
    found = []
    for _ in range(2):
        with localspec.load(**files, context_length=2048, threads=1, cache="all") as session:
            found.append(session.run(question, depth=3, temperature=0.0, max_tokens=48))
        finish()
    first, again = found
    assert again.stats.restored_tokens > 512
    assert again.text == first.text
    assert again.stats.cycles == first.stats.cycles
