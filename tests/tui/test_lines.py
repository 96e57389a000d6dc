"""The lines around the conversation say what is true, at every width."""

import re
from dataclasses import replace

import pytest
from driving import running
from hypothesis import given
from hypothesis import strategies as st
from localspec.tui.state.engine import EngineState
from localspec.tui.widgets import lines
from localspec.tui.widgets.lines import Line
from scripted_engine import ScriptedEngine, ScriptedWorkshop
from scripted_pairs import called

from localspec.conversations.conversations import StoredMessage
from localspec.engine.messages import Died, Failure, LoadPair, Ready
from localspec.events import Cycle, Mode, Origin, Source
from localspec.prompt.messages import Message
from localspec.tui import status

READY = Ready("demo", "target", "draft", 8192, 0.4)
LOOKUP = Ready("demo", "target", "", 8192, 0.4)
FAILED = Failure("NotOnDisk", "It is not here.", "")
DIED = Died("It is gone.", "")


def engine(*reports, **settings):
    name = next((report.pair for report in reports if isinstance(report, Ready)), "demo")
    made = EngineState(ScriptedEngine(ScriptedWorkshop()), LoadPair(called(name)), settings)
    for report in reports:
        made.took(report)
    return made


@pytest.mark.parametrize(
    ("state", "title"),
    [
        (engine(), "no pair"),
        (engine(FAILED), "no pair"),
        (engine(READY), "demo · drafted by draft"),
        (engine(READY, DIED), "demo"),
        (engine(LOOKUP), "demo · no draft model"),
        (engine(LOOKUP, DIED), "demo"),
        (engine(READY, speculate=False), "demo · draft off"),
        (engine(READY, depth=0), "demo · draft off · depth 0"),
    ],
)
def test_the_title_names_who_drafts_only_where_somebody_does(state, title):
    assert status.title(state) == title


def test_the_meter_blames_no_drafting_that_nobody_asked_for():
    """A comparison's plain side does not draft, and neither does a reply after /draft off."""
    state = engine(replace(READY, pair="pair"))
    state.compare((Message("user", "Why?"),))
    for mode, count, replies in (
        (Mode.PLAIN, 1, "plain decoding"),
        (Mode.OFF, 1, "drafting is off"),
        (Mode.OFF, 30, "no gain here: drafting is off"),
    ):
        for _ in range(count):
            state.absorb(Cycle((1,), (Origin.PLAIN,), (), 0, 0, Source.PLAIN, 1, 0.0, 0.01, 0.0, mode))
        assert lines.meter_line(state, 120).plain.startswith(replies)


def test_no_reply_of_fewer_than_32_tokens_is_called_faster_or_slower():
    state = engine(replace(READY, pair="pair"))
    state.ask((Message("user", "Why?"),))
    guess = Cycle((1,), (Origin.FIX,), (1,), 0, 1, Source.MODEL, 2, 0.01, 0.02, 0.0)
    for count, replies in ((31, "too short to know the gain"), (1, "no gain here: 0.50x")):
        for _ in range(count):
            state.absorb(guess)
        stats = state.reply.tally.stats()
        state.reply.final = replace(stats, plain_seconds=0.5 * stats.decode_seconds)
        assert lines.meter_line(state, 120).plain.startswith(replies)
        turns = status.footer(state.reply.message("stop"))
        assert ("0.50x" in turns) is (count == 1)


@pytest.mark.parametrize(
    ("gain", "pair", "replies"),
    [
        (2.0, "pair", "2.0x faster   150 tok/s (plain 75.0)   acceptance 100%   depth 2"),
        (0.5, "pair", "no gain here: 0.50x   "),
        (1.04, "pair", "1.04x faster   "),
        (0.98, "pair", "as fast as plain decoding   "),
        (1.0, "pair", "as fast as plain decoding   "),
        (0.5, "demo", "3.0 tokens per pass, demo pair   150 tok/s   acceptance 100%"),
    ],
)
def test_the_first_words_of_the_meter_are_the_gain(gain, pair, replies):
    state = engine(replace(READY, pair=pair))
    state.ask((Message("user", "Why?"),))
    guess = Cycle((1, 2, 3), (Origin.ACCEPTED,) * 3, (1, 2), 2, 2, Source.MODEL, 3, 0.0, 0.02, 0.0)
    for _ in range(40):
        state.absorb(guess)
    state.reply.final = replace(state.reply.stats, plain_seconds=gain * state.reply.stats.decode_seconds)
    assert lines.meter_line(state, 120).plain.startswith(replies)


def test_the_meter_of_the_demo_names_tokens_even_where_drafting_is_off():
    state = engine(READY)
    state.ask((Message("user", "Why?"),))
    for tokens, guess, mode in (((1, 2), (1,), Mode.DRAFTING), ((3,), (), Mode.OFF)):
        source = Source.MODEL if guess else Source.PLAIN
        origins = (Origin.ACCEPTED,) * len(guess) + (Origin.BONUS,)
        state.absorb(Cycle(tokens, origins, guess, len(guess), 1, source, 1, 0.0, 0.01, 0.0, mode))
    assert lines.meter_line(state, 120).plain.startswith("1.5 tokens per pass, demo pair")


def test_the_meter_is_empty_after_a_change_of_the_pair():
    state = engine(replace(READY, pair="pair"))
    state.ask((Message("user", "Why?"),))
    state.absorb(Cycle((1, 2), (Origin.ACCEPTED,) * 2, (1, 2), 2, 2, Source.MODEL, 3, 0.0, 0.02, 0.0))
    state.end_reply()
    assert lines.meter_line(state, 120).plain
    state.load(LoadPair(called("other.gguf", listed=False)))
    assert not lines.meter_line(state, 120).plain


def test_a_target_alone_learns_once_how_a_draft_is_added():
    alone = lines.welcome(engine(LOOKUP), 80).plain
    assert "no draft model  drafts repeated text where it pays; --draft FILE" in alone
    assert "--draft" not in lines.welcome(engine(), 80).plain


@pytest.mark.parametrize("width", [40, 60, 80, 90, 120])
async def test_help_stays_among_the_keys(tmp_path, width):
    async with running(tmp_path, size=(width, 24)) as chat:
        line = chat.screen.query_one("#keys", Line)
        text = str(line.content)
        assert text.endswith("  f1 help")
        assert len(text) <= line.content_size.width


@pytest.mark.parametrize("size", [(100, 30), (80, 24)])
async def test_an_empty_chat_names_both_models_and_offers_what_they_answer(tmp_path, size):
    async with running(tmp_path, size=size) as chat:
        await chat.until(lambda: "scripted-8b  decides" in chat.drawn and "scripted-1b  drafts" in chat.drawn)
        assert "pair: demo · ^o" in chat.drawn
        for text in (*lines.SUGGESTIONS, lines.SUGGESTIONS[0]):
            assert text[:22] in chat.drawn
            await chat.pilot.press("tab")
            assert chat.screen.prompt.text == text
        await chat.ask("exact hi")
        await chat.until(lambda: "decides" not in chat.drawn)
        await chat.pilot.press("ctrl+n")
        await chat.until(lambda: "scripted-8b  decides" in chat.drawn)


@pytest.mark.parametrize(("cycles", "replies"), [(1, "2 of 2 draft tokens accepted"), (9, "acceptance 100%")])
def test_few_draft_tokens_are_counted_and_many_are_a_rate(cycles, replies):
    state = engine(replace(READY, pair="pair"))
    state.ask((Message("user", "Why?"),))
    for _ in range(cycles):
        state.absorb(Cycle((1, 2), (Origin.ACCEPTED,) * 2, (1, 2), 2, 2, Source.MODEL, 3, 0.0, 0.02, 0.0))
    assert replies in lines.meter_line(state, 120).plain


def test_one_token_one_pass_and_one_draft_token_have_no_s():
    state = engine(replace(READY, pair="pair"))
    state.ask((Message("user", "Why?"),))
    state.absorb(Cycle((1,), (Origin.ACCEPTED,), (1,), 1, 1, Source.MODEL, 2, 0.0, 0.1, 0.0))
    turns = StoredMessage("assistant", "So.", stats=state.reply.stats)
    replies = [status.footer(turns), status.status(state, None), lines.meter_line(state, 120).plain]
    replies += [line.plain for line in lines.inspector_lines(state.reply)]
    assert replies[0] == "1 token · 0.1 s · 10.0 tok/s · 1 of 1 draft token accepted · 1.0 tokens per pass"
    assert "1 of 1 draft token accepted" in replies[2]
    assert not re.search(r"\b1 (tokens|passes|draft tokens)", "\n".join(replies))


@given(st.floats(-1, 2), st.integers(0, 40))
def test_a_gauge_is_as_wide_as_asked(value, width):
    assert len(status.gauge(value, width)) == width


def test_a_gauge_is_thin_and_has_halves():
    assert status.gauge(0.5, 4) == "━━  "
    assert status.gauge(1 / 4, 2) == "╸ "


@given(st.lists(st.floats(0, 100), min_size=3, max_size=3), st.integers(0, 60))
def test_the_split_of_time_fills_the_width(seconds, width):
    cells = [len(bar) for bar, _style in status.time_split(seconds, width)]
    assert sum(cells) == (width if sum(seconds) > 0 else 0)
