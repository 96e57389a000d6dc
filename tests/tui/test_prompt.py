"""The prompt: sending, commands and their completion, earlier prompts, long pastes."""

import time

import pytest
from driving import asked, running
from localspec.tui.screen import ChatScreen
from localspec.tui.widgets.prompt import Completion
from textual.events import Paste

from localspec.engine.messages import Typed


@pytest.mark.parametrize("wrong", ["/tmp", "/temperature"])
async def test_an_unknown_command_is_named_with_those_near_it_and_stays_in_the_prompt(wrong, chat):
    await chat.pilot.press(*wrong, "enter")
    await chat.until(lambda: chat.remarks)
    assert chat.remarks == [
        f"There is no command {wrong}. Nearest: /temp. A space before the slash sends it as text."
    ]
    assert chat.screen.prompt.text == wrong


@pytest.mark.parametrize("wrong", ["/tmp", "/temp hot"])
async def test_a_refused_command_is_corrected_or_replaced_by_the_next_key_and_never_lost(wrong, chat):
    await chat.type(wrong)
    await chat.until(lambda: chat.remarks)
    assert chat.screen.prompt.text == wrong
    await chat.pilot.press("end", "x")
    assert chat.screen.prompt.text == f"{wrong}x"
    await chat.type(wrong)
    await chat.until(lambda: len(chat.remarks) == 2)
    await chat.pilot.press(*"/depth 3")
    assert chat.screen.prompt.text == "/depth 3"
    undone = []
    while wrong not in undone and len(undone) < 12:  # a slow machine cuts the typing into more steps
        await chat.pilot.press("ctrl+z")
        undone.append(chat.screen.prompt.text)
    assert undone[-1] == wrong


async def test_an_enter_that_overtakes_the_list_sends_the_whole_text(chat):
    await chat.pilot.press(*"/pair")
    await chat.until(lambda: chat.screen.completion.is_open)
    chat.screen.prompt.replace_text("/pair nonsense")
    await chat.screen.prompt.complete_by_key("enter")
    await chat.until(lambda: any("nonsense" in notice for notice in chat.notices))
    assert chat.screen.prompt.text == "/pair nonsense"


async def test_a_message_that_only_looks_like_a_command_is_sent(chat):
    await chat.ask("/etc/hosts is what?")
    assert asked(chat)[0].messages[0].content == "/etc/hosts is what?"


@pytest.mark.parametrize("text", [" /tmp is full, why?", " /help", "\t/quit now"])
async def test_a_space_before_the_slash_sends_a_command_as_text(text, chat):
    await chat.ask(text)
    assert asked(chat)[0].messages[0].content == text
    await chat.pilot.press("up")
    assert chat.screen.prompt.text == text


@pytest.mark.parametrize(
    ("typed", "sent"),
    [
        ("    def f():\n        pass", "    def f():\n        pass"),
        ("\n \t\n\n    x = 1\n    y = 2\n  \n", "    x = 1\n    y = 2"),
        ("why?  ", "why?"),
    ],
)
async def test_indentation_is_sent_and_blank_lines_around_a_message_are_not(typed, sent, chat):
    await chat.ask(typed)
    assert asked(chat)[0].messages[0].content == sent
    assert chat.saved[0].messages[0].content == sent


async def test_slash_completion_offers_fills_in_and_runs(chat):
    await chat.pilot.press("/", "s", "e")
    completion = chat.screen.query_one(Completion)
    await chat.until(lambda: completion.has_class("-open"))
    assert completion.chosen == "seed"
    await chat.pilot.press("tab")
    assert chat.screen.prompt.text == "/seed "
    await chat.pilot.press("5", "enter")
    await chat.until(lambda: chat.state.engine.settings.get("seed") == 5)
    await chat.pilot.press("/", "h", "e", "enter")
    await chat.until(lambda: not isinstance(chat.app.screen, ChatScreen))


@pytest.mark.parametrize("size", [(40, 12), (80, 24)])
async def test_what_a_command_does_is_read_whole_beside_its_name(tmp_path, size):
    async with running(tmp_path, size=size) as chat:
        await chat.pilot.press("/", *"retr")
        await chat.until(lambda: "/retry" in chat.drawn)
        lines = chat.drawn.splitlines()
        (first,) = (n for n, line in enumerate(lines) if "/retry " in line)
        at = lines[first].index("Generate")
        column = "".join(line[at:-5] for line in lines[first : first + 3])
        assert "Generate another reply; this one is kept  ^r" in " ".join(column.split()).replace(" ^", "  ^")


async def test_up_and_down_walk_through_earlier_prompts(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("exact one")
        await chat.ask("exact two")
        await chat.pilot.press(*"dr", "up", "up")
        assert chat.screen.prompt.text == "exact one"
        await chat.pilot.press("down", "down")
        assert chat.screen.prompt.text == "dr"
    async with running(tmp_path) as chat:
        await chat.pilot.press("up")
        assert chat.screen.prompt.text == "exact two"


async def test_a_line_break_does_not_send(chat):
    await chat.pilot.press("a", "ctrl+j", "b", "shift+enter", "c")
    assert chat.screen.prompt.text == "a\nb\nc"
    assert not asked(chat)


async def test_a_paste_of_many_lines_can_be_undone(tmp_path):
    async with running(tmp_path, size=(40, 12)) as chat:
        prompt = chat.screen.prompt
        for count in (12, 40):
            chat.app.post_message(Paste("\n".join(f"line {line}" for line in range(count))))
            await chat.until(lambda count=count: prompt.document.line_count == count)
            await chat.until(lambda: prompt.show_vertical_scrollbar)
            await chat.pilot.press("ctrl+z")
            await chat.until(lambda: not prompt.text)
            await chat.settled()
        await chat.pilot.press(*"two", "left", "ctrl+z", "ctrl+y", "left", "ctrl+y")
        assert (prompt.text, prompt.cursor_location) == ("two", (0, 2))


@pytest.mark.parametrize("size", [(80, 24), (200, 60), (40, 12)])
async def test_the_prompt_is_in_reach_on_every_size(tmp_path, size):
    async with running(tmp_path, size=size) as chat:
        await chat.ask("why?")
        await chat.pilot.resize_terminal(80, 24)
        await chat.pilot.resize_terminal(*size)
        await chat.until(lambda: chat.screen.prompt.region.bottom <= size[1])  # a busy machine is late
        region = chat.screen.prompt.region
        assert region.height >= (3 if size[1] > 15 else 1)


async def test_what_is_typed_is_sent_for_reading_ahead_word_by_word_and_no_command_or_file_is(chat):
    await chat.ask("exact first")
    before = len(chat.engine.handler.asked)

    def noted():
        return [each for each in chat.engine.handler.asked[before:] if isinstance(each, Typed)]

    def texts():
        return [each.messages[-1].content if each.messages else "" for each in noted()]

    await chat.pilot.press(*"and wh")
    await chat.until(lambda: texts() == ["and "])
    assert [message.content for message in noted()[0].messages] == ["exact first", "first", "and "]
    await chat.pilot.press(*"at no", "backspace")
    await chat.until(lambda: texts() == ["and ", "and what "])
    chat.screen.prompt.replace_text("")
    await chat.until(lambda: texts()[2:] == [""])
    for text in ("/help me", "read @notes.txt and more"):
        chat.screen.prompt.replace_text(text)
        await chat.pilot.pause()
    assert len(texts()) == 3


PASTED = {
    "lines": "All work and no play.\n" * 45_000,
    "carriage returns": "All work and no play.\r\n" * 45_000,
    "base64 in lines": ("QUJD" * 19 + "\n") * 13_000,
    "names of images": "a.png.png\r" * 100_000,
    "CJK": ("漢字かな" * 20 + "\n") * 12_000,
}


@pytest.mark.parametrize("text", PASTED.values(), ids=list(PASTED))
def test_a_megabyte_of_any_text_is_looked_through_once(text):
    """A key must not wait: no search begins again at each place of a long text."""
    from localspec.tui.state.mentions import pasted, typed_mention
    from localspec.tui.widgets.prompt import _without_blank_lines

    for whole in (text, text.replace("\n", "").replace("\r", "")):
        began = time.thread_time()
        assert pasted(whole) is None
        assert typed_mention(whole) is None
        assert _without_blank_lines(whole) == whole
        assert time.thread_time() - began < 2  # seconds of the processor; a quadratic search takes minutes


ONE_LINE = {
    "one word": "x" * 10**6,
    "emoji": "👩‍👩‍👧‍👦 🙂" * 10**5,
    "tabs": "\t" * 10**6 + "x",
    "no text but line ends": "\n" * 10**6,
}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(text, marks=() if name == "emoji" else pytest.mark.nightly, id=name)
        for name, text in (PASTED | ONE_LINE).items()
    ],
)
async def test_the_first_key_after_a_megabyte_finds_no_long_line_and_all_of_it_is_sent(chat, text):
    """Textual wraps and draws the whole line of the cursor at each key: 1 s for a line of 1 MB."""
    prompt = chat.screen.prompt
    await chat.pilot.press("a")
    chat.app.post_message(Paste(text))
    chat.app.post_message(Paste("b" * 9_000))
    chat.app.post_message(Paste("c" * 9_000))
    await chat.until(lambda: prompt.whole.count("c") >= 9_000)
    await chat.pilot.press("Q")
    assert max(map(len, prompt.document.lines)) < 10_100
    assert prompt.document.line_count < 50_100
    assert prompt.whole.splitlines() == f"a{text}{'b' * 9_000}{'c' * 9_000}Q".splitlines()
    assert not prompt.certain
    await chat.pilot.press("enter")
    await chat.until(lambda: asked(chat))
    assert asked(chat)[0].messages[0].content.endswith("cQ")
    assert not prompt.text
    await chat.pilot.press("ctrl+z")
    assert prompt.whole.count("c") >= 9_000


async def test_what_only_looks_like_the_name_of_a_pasted_text_is_sent_as_it_is(chat):
    await chat.pilot.press(*"[pasted 1: 7 characters]", "enter")
    await chat.until(lambda: asked(chat))
    assert asked(chat)[0].messages[0].content == "[pasted 1: 7 characters]"


WIDTHS = [*range(20, 0, -1), 80]


NARROW = [
    (typed, key)
    for typed in ("", "/", "typed words")
    for key in ("", "f1", "ctrl+o", "f3", "ctrl+r", "f9", "ctrl+s")
]


@pytest.mark.parametrize(
    ("typed", "key"),
    [
        pytest.param(*both, marks=() if both in (("", ""), ("/", "")) else pytest.mark.nightly)
        for both in NARROW
    ],
)
async def test_no_width_ends_the_chat_or_loses_what_is_typed(tmp_path, typed, key):
    async with running(tmp_path, size=(80, 24)) as chat:
        await chat.ask("why?")
        await chat.pilot.press(*typed)
        await chat.pilot.press(*key.split())
        for width in WIDTHS:
            await chat.pilot.resize_terminal(width, 24)
            await chat.settled()
        assert chat.app.screen_stack[0].prompt.text == typed
