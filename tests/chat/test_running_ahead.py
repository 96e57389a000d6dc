"""Where a device computes, the next cycles run while the reader has the last one, and nothing else changes."""

import random
from collections import deque
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

import localspec
from localspec.algorithm.ahead import ahead
from localspec.chat.session import Session
from localspec.events import Finished, Piece, Scores
from localspec.llama.shared import SharedContext
from localspec.sampler.passes import LateRows
from localspec.structure.constraint import Constrained
from tests.exact_engine import ExactContext, ExactDraftContext
from tests.structure.characters import Characters, engine_of, session_of

SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "yy", 12]}, "b": {"type": "boolean"}}}


class LateRowsOf:
    """An exact model on a device: the rows of a pass come when they are first read, and are lost at the next pass."""

    passes, late = 0, False

    def decode(self, tokens, rows):
        found = super().decode(tokens, rows)
        self.passes = number = self.passes + 1

        def read():
            assert number == self.passes, "the next pass has overwritten these rows"
            return found.rows

        return found._replace(rows=LateRows(rows, read)) if rows and self.late else found


class LateContext(LateRowsOf, ExactContext):
    """A target on a device."""


class LateDraftContext(LateRowsOf, ExactDraftContext):
    """A draft on a device."""


def ahead_of(session):
    return Session(replace(session.pair, runs_ahead=True))


def late_session(seed):
    draft = LateDraftContext(seed, 0.8, capacity=2000, vocabulary=Characters.size)
    target = LateContext(seed, capacity=2000, vocabulary=Characters.size)
    return ahead_of(
        Session(engine_of(Characters(), "{% for m in messages %}{{ m.content }}|{% endfor %}", target, draft))
    )


def request(chance):
    options = {"max_tokens": chance.choice((1, 7, 60)), "depth": chance.choice((0, 1, 4, 8))}
    options |= chance.choice(({"temperature": 0}, {"seed": chance.randrange(9)}))
    if chance.random() < 0.5:
        options["stop"] = chance.choice((["a", "b", "c"], "d", "0"))
    options |= chance.choice(({}, {}, {"json_schema": SCHEMA}, {"regex": "[a-f]{3,40}"}, {"logprobs": 2}))
    return options


def seen(session, number, options, left):
    """Everything of a reply that a reader sees but its times; `left`: the event at which the reader leaves."""
    kept = []
    for count, event in enumerate(stream := session.stream(f"question {number}", **options)):
        if isinstance(event, Piece | Scores):
            kept.append(event)
        if isinstance(event, Finished):
            kept.append(replace(event.reply, stats=None, seed=0))
        if count == left:
            stream.close()
    return kept


def slow_readers(items, most, away):
    """Make the next `most` items before the reader has this one, as if every reader were slow."""
    coming = deque(islice(items, most))
    while coming:
        coming += islice(items, 1)
        yield coming.popleft()


@pytest.mark.parametrize("way", [ahead, slow_readers])
@pytest.mark.parametrize("seed", range(2))
def test_replies_that_run_ahead_are_the_same_also_when_their_readers_leave(seed, way, monkeypatch):
    monkeypatch.setattr("localspec.chat.reply.ahead", way)
    chance, plain, late = random.Random(seed), session_of(seed), late_session(seed)
    for number in range(40):
        options, left = request(chance), chance.choice((None, None, 3, 6, 11))
        assert seen(late, number, options, left) == seen(plain, number, options, left), options
        assert late.messages == plain.messages


def test_masks_are_made_before_the_first_row_is_read(monkeypatch):
    session, order, mask = late_session(1), [], Constrained.mask
    read = LateRows.__getitem__
    monkeypatch.setattr(Constrained, "mask", lambda *given: order.append("mask") or mask(*given))
    monkeypatch.setattr(LateRows, "__getitem__", lambda *given: order.append("row") or read(*given))
    session.run("a question", json_schema=SCHEMA, temperature=0, depth=0, max_tokens=9)
    assert order[:3] == ["mask", "row", "mask"], "the mask waits for the row, which then uses it"


def test_llama_cpp_gives_the_same_text_if_nobody_waits_for_its_passes(monkeypatch):
    def text(session, **options):
        return session.complete("Once upon a time", temperature=0, max_tokens=40, **options)

    with localspec.load("demo", context_length=512) as session:
        wanted = text(session, depth=4)
    monkeypatch.setattr(SharedContext, "computes_late", True)
    with localspec.load("demo", context_length=512) as session:
        late = ahead_of(session)
        for options in ({"depth": 4}, {"depth": 0}, {"depth": 4}):
            found = text(late, **options)
            assert found.text == wanted.text
            assert found.stats.verify_seconds > 0
        target = session.pair.target
        assert not isinstance(target.decode([5], 1).rows, LateRows), "whoever times a pass waits for it"
        target.rollback(target.length - 1)
        target.late = True
        row = np.array(target.decode([5], 1).rows[0])
        target.rollback(target.length - 1)
        target.decode([5], 1)  # nobody reads this row
        busy = target.busy_seconds
        target.rollback(target.length - 1)
        assert np.array_equal(target.decode([5], 1).rows[0], row)
        assert target.busy_seconds > busy, "both passes are timed"
        target.decode([5], 1)  # the pair is closed beside a pass
