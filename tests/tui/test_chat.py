"""The chat as a person meets it: asking, stopping, retrying, and what stays when something breaks."""

import asyncio

import pytest
from driving import running
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.compare import CompareScreen
from localspec.tui.widgets import transcript
from localspec.tui.widgets.completion import Completion
from localspec.tui.widgets.inspector import Inspector
from localspec.tui.widgets.live_tail import LiveTail
from localspec.tui.widgets.prompt import Prompt
from localspec.tui.widgets.reply_view import Footer
from localspec.tui.widgets.segment import Segment
from localspec.tui.widgets.transcript import Earlier, UserMessage
from scripted_engine import ESSAY, THOUGHT, Gate
from textual.widgets import Static

from localspec.engine.messages import Ask, Died, Load, ReplySettings


def source(reply):
    return "".join(document.source for document in reply.query(Segment))


def footer(reply):
    return "".join(str(footer.content) for footer in reply.query(Footer))


def asked(chat):
    return [request for request in chat.engine.workshop.asked if isinstance(request, Ask)]


async def test_a_reply_is_shown_saved_and_counted(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("why?")
        assert source(chat.replies[0]) == ESSAY
        assert "accepted" in footer(chat.replies[0])
        assert [m.content for m in chat.saved[0].messages] == ["why?", ESSAY]
        assert chat.saved[0].pair == "demo"


async def test_streamed_markdown_looks_like_markdown_that_came_at_once(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("tokens 900")
        streamed = [(type(block), block._content.plain) for block in chat.replies[0].query("MarkdownBlock")]
        await chat.screen.transcript.open(chat.screen.dialogue.messages)
        await chat.until(lambda: len(chat.replies[0].query("MarkdownBlock")) == len(streamed))
        at_once = [(type(block), block._content.plain) for block in chat.replies[0].query("MarkdownBlock")]
        assert streamed == at_once


async def test_the_conversation_so_far_goes_with_every_question(tmp_path):
    async with running(tmp_path, system="be brief") as chat:
        await chat.ask("exact one")
        await chat.ask("exact two")
        turns = asked(chat)[-1].turns
        assert [(t.role, t.content) for t in turns] == [
            ("system", "be brief"),
            ("user", "exact one"),
            ("assistant", "one"),
            ("user", "exact two"),
        ]


async def test_escape_stops_a_reply_and_keeps_its_text(tmp_path):
    async with running(tmp_path, gate=Gate(hold_after=9)) as chat:
        await chat.type("why?")
        await chat.until(lambda: chat.app.conductor.turn and chat.app.conductor.turn.tally.cycles == 9)
        await chat.pilot.press("escape")
        await chat.until(lambda: not chat.app.conductor.busy)
        await chat.until(lambda: footer(chat.replies[0]).startswith("stopped"))
        kept = chat.saved[0].messages[1]
        assert kept.outcome == "cancelled"
        assert kept.content
        assert ESSAY.startswith(kept.content)
        assert source(chat.replies[0]) == kept.content


async def test_a_stopped_reply_is_context_for_the_next_question(tmp_path):
    gate = Gate(hold_after=5)
    async with running(tmp_path, gate=gate) as chat:
        await chat.type("why?")
        await chat.until(lambda: chat.app.conductor.turn and chat.app.conductor.turn.tally.cycles == 5)
        await chat.pilot.press("escape")
        await chat.until(lambda: not chat.app.conductor.busy)
        gate.opened.set()
        await chat.ask("exact more")
        assert asked(chat)[-1].turns[1].content == chat.saved[0].messages[1].content


async def test_a_reply_stopped_before_its_first_word_puts_the_question_back(tmp_path):
    async with running(tmp_path, gate=Gate(hold_after=0)) as chat:
        await chat.type("why?")
        await chat.until(lambda: chat.app.conductor.turn and chat.app.conductor.turn.prefill)
        await chat.pilot.press("escape")
        await chat.until(lambda: chat.screen.prompt.text == "why?")
        assert not chat.replies
        assert chat.saved[0].messages == ()


async def test_retry_replaces_the_last_reply(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("exact yes")
        await chat.pilot.press("ctrl+r")
        await chat.until(lambda: len(asked(chat)) == 2 and not chat.app.conductor.busy)
        await chat.until(lambda: len(chat.screen.dialogue.messages) == 2)
        assert [m.content for m in chat.saved[0].messages] == ["exact yes", "yes"]
        assert len(chat.replies) == 1


async def test_editing_replaces_the_last_question_only_when_it_is_sent(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("exact yes")
        await chat.pilot.press("f8")
        assert chat.screen.prompt.text == "exact yes"
        await chat.pilot.press("escape")
        assert chat.screen.prompt.text == ""
        assert len(chat.saved[0].messages) == 2
        await chat.pilot.press("f8")
        await chat.type("exact no")
        await chat.until(lambda: [m.content for m in chat.saved[0].messages] == ["exact no", "no"])


async def test_a_second_question_waits_for_the_first(tmp_path):
    async with running(tmp_path, gate=Gate(hold_after=3)) as chat:
        await chat.type("why?")
        await chat.type("and how?")
        await chat.until(lambda: chat.notices)
        assert chat.screen.prompt.text == "and how?"
        assert len(asked(chat)) == 1


async def test_an_error_of_the_engine_is_a_sentence_with_its_hint(tmp_path):
    async with running(tmp_path) as chat:
        await chat.type("fail please")
        await chat.until(lambda: chat.screen.prompt.text == "fail please")
        assert "does not fit" in chat.remarks[0]
        assert "/new" in chat.remarks[0]
        await chat.type("exact fine")
        await chat.until(lambda: chat.replies and chat.replies[-1].has_class("-finished"))


async def test_a_dead_engine_costs_nothing_but_a_restart(tmp_path):
    async with running(tmp_path, gate=Gate(hold_after=9)) as chat:
        await chat.type("why?")
        await chat.until(lambda: chat.app.conductor.turn and chat.app.conductor.turn.tally.cycles == 9)
        chat.engine.die(Died("the engine process ended unexpectedly (SIGKILL)", ""))
        await chat.until(lambda: chat.remarks)
        assert "SIGKILL" in chat.remarks[0]
        assert "/restart" in chat.remarks[0]
        message = chat.saved[0].messages[1]
        assert message.outcome == "died"
        assert message.content
        assert ESSAY.startswith(message.content)
        chat.engine.workshop.gate.opened.set()
        await chat.ask("exact back")
        assert chat.engine.starts == 2
        assert source(chat.replies[-1]) == "back"


async def test_swapping_the_pair_starts_a_new_process(tmp_path):
    async with running(tmp_path) as chat:
        await chat.type("/pair qwen3-8b+0.6b")
        await chat.until(
            lambda: chat.app.conductor.ready and chat.app.conductor.ready.pair == "qwen3-8b+0.6b"
        )
        assert chat.engine.starts == 2
        await chat.ask("exact hi")
        assert chat.saved[0].pair == "qwen3-8b+0.6b"


async def test_a_pair_that_does_not_load_leaves_the_chat_usable(tmp_path):
    async with running(tmp_path) as chat:
        await chat.type("/pair llama-3-70b+8b")
        await chat.until(lambda: chat.remarks)
        assert "needs 48 GB" in chat.remarks[0]
        await chat.type("/pair demo")
        await chat.ready()
        await chat.ask("exact hi")


async def test_a_question_asked_while_the_pair_loads_is_answered_when_it_is_ready(tmp_path):
    async with running(tmp_path) as chat:
        await chat.type("/pair demo")
        await chat.ask("exact early")
        assert source(chat.replies[0]) == "early"


async def test_reasoning_is_counted_and_folds(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("think first")
        head = chat.replies[0].query_one(".head", Static)
        assert str(head.content) == f"▸ thought for {chat.saved[0].messages[1].reasoning_tokens} tokens"
        await chat.pilot.press("ctrl+t")
        await chat.pilot.pause()
        assert THOUGHT.strip() in str(chat.replies[0].query_one(".thought", Static).content)
        assert chat.saved[0].messages[1].reasoning == THOUGHT


async def test_the_live_tail_marks_fixes_without_colour_alone(tmp_path):
    async with running(tmp_path, gate=Gate(hold_after=30)) as chat:
        await chat.type("exact " + "word " * 400)
        await chat.until(lambda: chat.app.conductor.turn and chat.app.conductor.turn.tally.cycles == 30)
        await chat.until(lambda: chat.replies[0].query_one(LiveTail).content.spans)
        styles = {str(span.style) for span in chat.replies[0].query_one(LiveTail).content.spans}
        assert any("underline" in style for style in styles)
        assert any("italic" in style for style in styles)
        await chat.type("/tokens off")
        chat.engine.workshop.gate.opened.set()
        await chat.until(lambda: not chat.app.conductor.busy)


async def test_settings_reach_the_engine(tmp_path):
    async with running(tmp_path, settings=ReplySettings(temperature=0.7)) as chat:
        for command in ("/seed 11", "/depth 3", "/draft off", "/top-k 40", "/max-tokens 99"):
            await chat.type(command)
        await chat.ask("exact hi")
        wanted = ReplySettings(temperature=0.7, seed=11, depth=3, speculate=False, top_k=40, max_tokens=99)
        assert asked(chat)[0].settings == wanted


@pytest.mark.parametrize(
    "command", ["/temp hot", "/top-p 2", "/seed -1", "/depth many", "/draft maybe", "/nonsense"]
)
async def test_a_bad_argument_is_refused_with_a_sentence(tmp_path, command):
    async with running(tmp_path) as chat:
        before = chat.app.conductor.settings
        await chat.type(command)
        await chat.until(lambda: chat.notices)
        assert chat.app.conductor.settings == before


async def test_an_unknown_command_is_named_with_those_near_it_and_stays_in_the_prompt(tmp_path):
    async with running(tmp_path) as chat:
        await chat.pilot.press(*"/tmp", "enter")
        await chat.until(lambda: chat.notices)
        assert chat.notices == ["There is no command /tmp. Near it: /temp."]
        assert chat.screen.prompt.text == "/tmp"


async def test_a_list_that_typing_has_just_closed_completes_nothing(tmp_path):
    async with running(tmp_path) as chat:
        await chat.pilot.press("/", "f")
        chat.screen.prompt.replace_text("/foo")
        await chat.until(lambda: not chat.screen.prompt.completing)
        chat.screen.prompt.post_message(Prompt.Completing("enter"))
        await chat.until(lambda: chat.notices)
        assert "/foo" in chat.notices[0]
        assert chat.screen.prompt.text == "/foo"


async def test_a_message_that_only_looks_like_a_command_is_sent(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("/etc/hosts is what?")
        assert asked(chat)[0].turns[0].content == "/etc/hosts is what?"


async def test_slash_completion_offers_fills_in_and_runs(tmp_path):
    async with running(tmp_path) as chat:
        await chat.pilot.press("/", "s", "e")
        completion = chat.screen.query_one(Completion)
        await chat.until(lambda: completion.has_class("-open"))
        assert completion.chosen == "seed"
        await chat.pilot.press("tab")
        assert chat.screen.prompt.text == "/seed "
        await chat.pilot.press("5", "enter")
        await chat.until(lambda: chat.app.conductor.settings.seed == 5)
        await chat.pilot.press("/", "h", "e", "enter")
        await chat.until(lambda: not isinstance(chat.app.screen, ChatScreen))


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


async def test_a_line_break_does_not_send(tmp_path):
    async with running(tmp_path) as chat:
        await chat.pilot.press("a", "ctrl+j", "b", "shift+enter", "c")
        assert chat.screen.prompt.text == "a\nb\nc"
        assert not asked(chat)


async def test_a_paste_of_100_kb_arrives_whole(tmp_path):
    text = ("All work and no play.\n" * 5000)[:100_000]
    async with running(tmp_path) as chat:
        from textual.events import Paste

        chat.app.post_message(Paste(text))
        await chat.until(lambda: len(chat.screen.prompt.text) == len(text))
        await chat.pilot.press("enter")
        await chat.until(lambda: asked(chat))
        assert asked(chat)[0].turns[0].content == text.strip()


async def test_quitting_in_the_middle_of_a_reply_is_quick_and_keeps_the_question(tmp_path):
    async with running(tmp_path, gate=Gate(hold_after=2)) as chat:
        await chat.type("why?")
        await chat.until(lambda: chat.app.conductor.turn and chat.app.conductor.turn.tally.cycles == 2)
        await chat.pilot.press("ctrl+q")
        await chat.until(lambda: not chat.app.is_running and not chat.engine.alive, seconds=1.0)
    assert chat.saved[0].messages[0].content == "why?"


async def test_a_conversation_is_resumed_with_its_last_messages(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("exact one")
    resumed = chat.saved[0]
    async with running(tmp_path, resumed=resumed) as chat:
        assert source(chat.replies[0]) == "one"
        await chat.ask("exact two")
        assert len(chat.saved) == 1
        assert len(chat.saved[0].messages) == 4


async def test_an_unanswered_question_of_a_resumed_conversation_can_be_retried(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("exact one")
        await chat.screen.cut(1)
    async with running(tmp_path, resumed=chat.saved[0]) as chat:
        assert "no reply" in chat.remarks[0]
        await chat.pilot.press("ctrl+r")
        await chat.until(lambda: len(chat.screen.dialogue.messages) == 2)
        assert chat.saved[0].messages[1].content == "one"


async def test_an_old_conversation_is_shown_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(transcript, "MOST", 8)
    monkeypatch.setattr(transcript, "FEWEST", 4)
    async with running(tmp_path) as chat:
        for n in range(8):
            await chat.ask(f"exact {n}")
            assert len(chat.screen.transcript.children) <= 9
        assert chat.screen.query(Earlier)
        before = [str(message.content) for message in chat.screen.query(UserMessage)]
        chat.screen.transcript.scroll_home(animate=False)
        await chat.until(lambda: len(chat.screen.query(UserMessage)) > len(before))
        shown = [str(message.content) for message in chat.screen.query(UserMessage)]
        assert shown == [f"exact {n}" for n in range(8)][-len(shown) :]


async def test_when_the_disk_is_full_the_reply_says_that_it_is_not_saved(tmp_path, monkeypatch):
    async with running(tmp_path) as chat:

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("localspec.conversations._write_lines", full)
        await chat.ask("exact hi")
        assert "NOT SAVED" in footer(chat.replies[0])
        assert "No space left" in chat.remarks[0]


async def test_compare_shows_both_speeds_and_the_first_difference(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("differ please")
        await chat.pilot.press("f9")
        await chat.until(lambda: isinstance(chat.app.screen, CompareScreen))
        verdict = str(chat.app.screen.query_one(".detail", Static).content)
        assert "2.00x as fast" in verdict
        assert "Token 58: ' weights' with drafting" in verdict
        assert "0.031" in verdict
        assert chat.app.conductor.plain_speed
        assert len(chat.saved[0].messages) == 2


async def test_the_inspector_shows_positions_lengths_cycles_and_the_last_proposal(tmp_path):
    async with running(tmp_path, size=(120, 60)) as chat:
        await chat.ask("why?")
        await chat.pilot.press("f3")
        inspector = chat.screen.query_one(Inspector)
        await chat.until(
            lambda: inspector.display and "Acceptance by position" in str(inspector._chart.content)
        )
        text = str(inspector._chart.content)
        assert "Last proposal" in text
        assert "✓" in text or "✗" in text
        assert "mean" in text


async def test_a_notice_of_the_engine_is_shown(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("why off")
        assert any("Drafting is off" in remark for remark in chat.remarks)


async def test_the_first_pair_is_loaded_with_what_was_asked_for(tmp_path):
    async with running(tmp_path, load=Load(pair="qwen3-8b+0.6b", threads=3)) as chat:
        assert chat.engine.workshop.asked[0] == Load(pair="qwen3-8b+0.6b", threads=3)
        await chat.type("/restart")
        await chat.until(lambda: chat.engine.starts == 2)
        await chat.ready()
        assert chat.engine.workshop.asked[-1] == Load(pair="qwen3-8b+0.6b", threads=3)


async def test_the_choice_of_theme_and_token_style_is_remembered(tmp_path):
    async with running(tmp_path) as chat:
        await chat.type("/theme nord")
        await chat.type("/tokens strong")
        await chat.until(lambda: '"strong"' in (tmp_path / "chat.json").read_text("utf-8"))
        await asyncio.sleep(0)
    async with running(tmp_path) as chat:
        assert chat.app.theme == "nord"
        assert chat.app.preferences.tokens == "strong"


@pytest.mark.parametrize("size", [(80, 24), (200, 60), (40, 12)])
async def test_the_prompt_is_in_reach_on_every_size(tmp_path, size):
    async with running(tmp_path, size=size) as chat:
        await chat.ask("why?")
        await chat.pilot.resize_terminal(80, 24)
        await chat.pilot.resize_terminal(*size)
        region = chat.screen.prompt.region
        assert region.bottom <= size[1]
        assert region.height >= 3
