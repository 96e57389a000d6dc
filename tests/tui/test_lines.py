"""The lines around the conversation say what is true, at every width."""

import re
from dataclasses import replace

import pytest
from driving import running
from localspec.tui.state.engine import EngineState
from localspec.tui.text import status
from localspec.tui.widgets import lines
from localspec.tui.widgets.lines import Line
from scripted_engine import ScriptedEngine, ScriptedWorkshop

from localspec.chat.conversations import Numbers, StoredMessage
from localspec.engine.messages import Died, Failure, LoadPair, Ready
from localspec.events import Cycle, Mode, Origin, Source

READY = Ready("demo", "target", "draft", 8192, 0.4)
LOOKUP = Ready("demo", "target", "", 8192, 0.4)
FAILED = Failure("NotOnDisk", "It is not here.", "")
DIED = Died("It is gone.", "")


def engine(*reports, **settings):
    made = EngineState(ScriptedEngine(ScriptedWorkshop()), LoadPair(), settings)
    for report in reports:
        made.took(report)
    return made


@pytest.mark.parametrize(
    ("state", "title"),
    [
        (engine(), "no pair"),
        (engine(FAILED), "no pair"),
        (engine(READY), "demo (a toy) · drafted by draft"),
        (engine(READY, DIED), "demo (a toy)"),
        (engine(LOOKUP), "demo (a toy) · no draft model"),
        (engine(LOOKUP, DIED), "demo (a toy)"),
        (engine(READY, speculate=False), "demo (a toy) · draft off"),
        (engine(READY, depth=0), "demo (a toy) · draft off · depth 0"),
    ],
)
def test_the_title_names_who_drafts_only_where_somebody_does(state, title):
    assert status.title(state) == title


def test_the_meter_blames_no_drafting_that_nobody_asked_for():
    """A comparison's plain side does not draft, and neither does a reply after /draft off."""
    state = engine(replace(READY, pair="pair"))
    state.compare(({"role": "user", "content": "Why?"},))
    for mode, said in ((Mode.PLAIN, "plain decoding"), (Mode.OFF, "no gain here: drafting is off")):
        state.absorb(Cycle((1,), (Origin.PLAIN,), (), 0, 0, Source.PLAIN, 1, 0.0, 0.01, 0.0, mode))
        assert lines.meter_line(state, 120).plain.startswith(said)


@pytest.mark.parametrize(
    ("gain", "pair", "said"),
    [
        (2.0, "pair", "2.0x faster   150 tok/s ━━━━━╋━━━━ plain 75.0   100% of guesses kept   2 at a time"),
        (0.5, "pair", "no gain here: 0.50x   "),
        (1.04, "pair", "1.04x faster   "),
        (0.98, "pair", "as fast as plain decoding   "),
        (1.0, "pair", "as fast as plain decoding   "),
        (0.5, "demo", "3.0 tokens a pass, toy pair   150 tok/s ━━━━━━━━━━   100% of guesses kept"),
    ],
)
def test_the_first_words_of_the_meter_are_the_gain(gain, pair, said):
    state = engine(replace(READY, pair=pair))
    state.ask(({"role": "user", "content": "Why?"},))
    guess = Cycle((1, 2, 3), (Origin.ACCEPTED,) * 3, (1, 2), 2, 2, Source.MODEL, 3, 0.0, 0.02, 0.0)
    for _ in range(40):
        state.absorb(guess)
    state.reply.final = replace(state.reply.stats, plain_seconds=gain * state.reply.stats.decode_seconds)
    assert lines.meter_line(state, 120).plain.startswith(said)


def test_the_meter_of_a_toy_speaks_of_tokens_even_where_drafting_is_off():
    state = engine(READY)
    state.ask(({"role": "user", "content": "Why?"},))
    for tokens, guess, mode in (((1, 2), (1,), Mode.DRAFTING), ((3,), (), Mode.OFF)):
        source = Source.MODEL if guess else Source.PLAIN
        origins = (Origin.ACCEPTED,) * len(guess) + (Origin.BONUS,)
        state.absorb(Cycle(tokens, origins, guess, len(guess), 1, source, 1, 0.0, 0.01, 0.0, mode))
    assert lines.meter_line(state, 120).plain.startswith("1.5 tokens a pass, toy pair")


def test_the_meter_is_empty_after_a_change_of_the_pair():
    state = engine(replace(READY, pair="pair"))
    state.ask(({"role": "user", "content": "Why?"},))
    state.absorb(Cycle((1, 2), (Origin.ACCEPTED,) * 2, (1, 2), 2, 2, Source.MODEL, 3, 0.0, 0.02, 0.0))
    state.end_reply()
    assert lines.meter_line(state, 120).plain
    state.load(LoadPair(pair="other.gguf"))
    assert not lines.meter_line(state, 120).plain


def test_a_target_alone_is_told_once_how_a_draft_is_added():
    assert (
        "no draft model: only repeated text is guessed; --draft FILE"
        in lines.welcome(engine(LOOKUP), 80).plain
    )
    assert "--draft FILE" in lines.welcome(engine(LOOKUP), 40).plain
    loading = lines.welcome(engine(), 80).plain
    assert "guesses" not in loading
    assert "--draft" not in loading


def test_a_whole_reply_without_guesses_does_not_say_yet():
    state = engine(replace(LOOKUP, pair="pair"))
    state.ask(({"role": "user", "content": "Why?"},))
    state.absorb(Cycle((1,), (Origin.PLAIN,), (), 0, 0, Source.PLAIN, 1, 0.0, 0.01, 0.0))
    assert status.gain(state, state.reply) == ("nothing guessed yet", False)
    state.reply.final = state.reply.stats
    assert status.gain(state, state.reply) == ("nothing guessed", False)


async def test_the_title_follows_a_load_that_fails(tmp_path):
    async with running(tmp_path, until_ready=False, load=LoadPair(pair="llama-3-70b+8b")) as chat:
        await chat.until(lambda: chat.app.screen_stack and chat.app.screen.query("#prompt"))
        await chat.until(lambda: chat.notices)
        assert "draft" not in str(chat.screen.query_one("#title", Line).content)


@pytest.mark.parametrize("width", [40, 60, 80, 90, 120])
async def test_help_stays_among_the_keys(tmp_path, width):
    async with running(tmp_path, size=(width, 24)) as chat:
        line = chat.screen.query_one("#keys", Line)
        text = str(line.content)
        assert text.endswith("  f1 help")
        assert len(text) <= line.content_size.width


@pytest.mark.parametrize("size", [(100, 30), (80, 24), (40, 12)])
async def test_an_empty_chat_names_both_models_and_offers_what_they_answer(tmp_path, size):
    async with running(tmp_path, size=size) as chat:
        await chat.until(lambda: "scripted-8b  writes" in chat.drawn and "scripted-1b  guesses" in chat.drawn)
        assert ("guessed and kept" in chat.drawn) == (size[0] > 40)
        assert "pair: demo (a toy) · ^o" in chat.drawn
        for text in (*lines.SUGGESTIONS, lines.SUGGESTIONS[0]):
            assert text[:22] in chat.drawn
            await chat.pilot.press("tab")
            assert chat.screen.prompt.text == text
        await chat.pilot.click("#welcome", offset=(6, 6 if size[0] == 40 else 7))
        assert chat.screen.prompt.text == lines.SUGGESTIONS[1]
        await chat.ask("exact hi")
        await chat.until(lambda: "writes" not in chat.drawn)
        await chat.pilot.press("ctrl+n")
        await chat.until(lambda: "scripted-8b  writes" in chat.drawn)


async def test_a_small_terminal_says_the_gain_in_the_status_line(tmp_path):
    async with running(tmp_path, size=(40, 12)) as chat:
        await chat.ask("exact some words that are written here")
        await chat.until(lambda: "tokens a pass, toy pair" in chat.drawn)


@pytest.mark.parametrize(("cycles", "said"), [(1, "2 of 2 guesses kept"), (9, "100% of guesses kept")])
def test_few_guesses_are_counted_and_many_told_as_a_share(cycles, said):
    state = engine(replace(READY, pair="pair"))
    state.ask(({"role": "user", "content": "Why?"},))
    for _ in range(cycles):
        state.absorb(Cycle((1, 2), (Origin.ACCEPTED,) * 2, (1, 2), 2, 2, Source.MODEL, 3, 0.0, 0.02, 0.0))
    assert said in lines.meter_line(state, 120).plain


def test_one_token_one_pass_and_one_guess_have_no_s():
    state = engine(replace(READY, pair="pair"))
    state.ask(({"role": "user", "content": "Why?"},))
    state.absorb(Cycle((1,), (Origin.ACCEPTED,), (1,), 1, 1, Source.MODEL, 2, 0.0, 0.1, 0.0))
    told = StoredMessage("assistant", "So.", numbers=Numbers.of(state.reply.stats))
    said = [status.footer(told), status.status(state, None), lines.meter_line(state, 120).plain]
    said += [line.plain for line in lines.inspector_lines(state.reply)]
    assert said[0] == "1 token · 0.1 s · 10.0 tok/s · 1 of 1 guess kept · 1.0 a pass"
    assert "1 of 1 guess kept" in said[2]
    assert not re.search(r"\b1 (tokens|passes|guesses)", "\n".join(said))
