"""A reply ends where it is in a loop, or at the first line end after its time."""

import pytest

from localspec.cli.commands import run
from localspec.engine.limits import LineLimit, LoopLimit
from localspec.engine.messages import Generate, LoadPair
from localspec.engine.requests import PairRequests
from localspec.events import Cycle, Finished, FinishReason, Kind, Origin, Piece, Reply, Source, Stats
from localspec.models.registry import named


def piece(text):
    return Piece(text, Kind.ANSWER, Origin.PLAIN, Source.PLAIN)


def cycle(text):
    tokens, origins = tuple(map(ord, text)), (Origin.PLAIN,) * len(text)
    times = {"draft_seconds": 0.0, "verify_seconds": 0.0, "other_seconds": 0.0}
    return Cycle(tokens, origins, (), 0, 0, Source.PLAIN, 1, **times)


def cut():
    return Finished(Reply("", "", (), 0, FinishReason.CANCELLED, Stats()))


def letters_until_the_limit(text):
    """Feed a text, a letter a token and three tokens a cycle; return the number of letters until the limit."""
    limit = LoopLimit(lambda tokens: "".join(map(chr, tokens)))
    for start in range(0, len(text), 3):
        part = text[start : start + 3]
        limit.seen(cycle(part))
        for letter in part:
            limit.seen(piece(letter))
        if limit.reached:
            assert limit.seen(cut()).reply.finish_reason is FinishReason.REPETITION
            return start + len(part)
    assert limit.seen(cut()).reply.finish_reason is FinishReason.CANCELLED
    return None


@pytest.mark.parametrize(
    ("text", "repeated"),
    [
        ("Well.\n" + "I am a model.\n" * 8, True),
        ("Yes\n" * 8, True),
        ("a b c d e f" * 8, True),
        ("one line\nand another\n\n" * 8, True),
        ("Well.\n" + "I am a model.\n" * 7 + "I am not.\n", False),
        ("ha" * 8, False),
        ("ha" * 24, True),
        ("x" * 65 * 8, True),
        ("".join(map(chr, range(97, 162))) * 9, False),
        ("\U0001f466" * 50, True),
        ("----\n" * 20, False),
        ("\u2500" * 80, False),
        ("0 0 " * 40, False),
        ("1." * 255, False),
        ("1." * 256, True),
        ("```\n" + "print(a)\n" * 20, False),
        ("```\nprint(a)\n```\n" + "print(a)\n" * 8, True),
        ("| a | b |\n" * 20, False),
    ],
    ids=lambda given: repr(given)[:20],
)
def test_a_loop_ends_and_other_text_goes_on(text, repeated):
    found = letters_until_the_limit(text)
    assert (found is not None) == repeated
    assert found is None or found <= len(text) + 2


@pytest.mark.parametrize(
    ("seconds", "ends", "reason"), [(1.0, True, FinishReason.LENGTH), (1e9, False, FinishReason.CANCELLED)]
)
def test_a_reply_ends_at_the_first_line_end_after_its_time(seconds, ends, reason):
    now = [10.0]
    limit = LineLimit(seconds, lambda: now[0])
    for moment, text in ((99.0, "a\n"), (99.9, "b\n"), (100.5, "c"), (101, "d\n")):
        assert not limit.reached
        now[0] = moment
        limit.seen(piece(text))
    assert limit.reached == ends
    assert limit.seen(cut()).reply.finish_reason is reason


@pytest.mark.parametrize("stops", [True, False])
def test_a_model_in_a_loop_is_ended_only_on_request(stops):
    handler, reports = PairRequests(), []
    handler.perform(LoadPair(named("demo")), lambda _: None, lambda: False)
    try:
        bias = {"logit_bias": {handler._session.pair.vocabulary.tokenize("a", parse_special=False)[-1]: 1e4}}
        asked = Generate(1, continued="a", options={**bias, "max_tokens": 100}, stops_loops=stops)
        handler.perform(asked, reports.append, lambda: False)
    finally:
        handler.close()
    reply, texts = reports[-1].reply, [getattr(report, "text", "") for report in reports]
    assert reply.finish_reason is (FinishReason.REPETITION if stops else FinishReason.LENGTH)
    assert any("stop_loops = false" in text for text in texts) == stops
    assert len(reply.tokens) < 60 if stops else len(reply.tokens) == 100


@pytest.mark.parametrize(
    ("terminal", "options", "setting", "stops"),
    [
        (True, {}, None, True),
        (False, {}, None, True),
        (True, {}, "no", False),
        (True, {"seed": 1}, None, False),
        (True, {"max_tokens": 9}, None, False),
        (True, {"json_schema": "{}"}, None, False),
    ],
)
def test_run_ends_loops_on_a_terminal_and_in_a_pipe_unless_the_user_fixes_the_text(
    monkeypatch, terminal, options, setting, stops
):
    monkeypatch.setattr(run, "on_terminal", lambda _: terminal)
    if setting:
        monkeypatch.setenv("LOCALSPEC_STOP_LOOPS", setting)
    assert run.stops_loops(options) == stops
