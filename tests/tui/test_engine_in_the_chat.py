"""The engine as the chat meets it: loading a pair, swapping it, dying, starting again."""

from contextlib import asynccontextmanager

import pytest
from driving import asked, cannot_start, running, source
from localspec.tui.state.engine import Downloads
from scripted_engine import ESSAY, Gate
from scripted_pairs import called

from localspec.engine.messages import Cancel, Died, Failure, LoadPair

pytestmark = pytest.mark.process


async def test_a_dead_engine_costs_nothing_but_a_restart(tmp_path):
    async with running(tmp_path, gate=Gate(hold_after=9)) as chat:
        await chat.begin("why?", cycles=9)
        chat.engine.die(Died("the engine process ended unexpectedly (SIGKILL)", ""))
        await chat.until(lambda: chat.notices)
        assert "SIGKILL" in chat.notices[0]
        assert "/restart" in chat.notices[0]
        message = chat.saved[0].messages[1]
        assert message.outcome == "died"
        assert message.content
        assert ESSAY.startswith(message.content)
        chat.engine.handler.gate.opened.set()
        await chat.ask("exact back")
        assert chat.engine.starts == 2
        assert source(chat.replies[-1]) == "back"


def never_stops(chat, monkeypatch):
    """As if a native call never came back."""
    send = chat.engine.send
    monkeypatch.setattr(chat.engine, "send", lambda r: None if isinstance(r, Cancel) else send(r))


async def test_restart_ends_a_reply_that_hangs_and_keeps_its_text(tmp_path, monkeypatch):
    gate = Gate(hold_after=3)
    async with running(tmp_path, gate=gate) as chat:
        never_stops(chat, monkeypatch)
        await chat.begin("why?", cycles=3)
        await chat.pilot.press("escape")
        await chat.type("/restart")
        await chat.until(lambda: chat.engine.starts == 2)
        await chat.until(lambda: chat.replies[0].has_class("-finished"))
        kept = chat.saved[0].messages[1]
        assert kept.outcome == "died"
        assert kept.content
        assert source(chat.replies[0]) == kept.content
        gate.hold_after = None
        await chat.ask("exact back")
        assert [t.content for t in asked(chat)[-1].messages] == ["why?", kept.content, "exact back"]


async def test_restart_puts_a_question_that_hangs_unread_back_into_the_prompt(tmp_path, monkeypatch):
    async with running(tmp_path, gate=Gate(hold_after=0)) as chat:
        never_stops(chat, monkeypatch)
        await chat.begin("why?", cycles=0)
        await chat.type("/restart")
        await chat.until(lambda: chat.screen.prompt.text == "why?")
        await chat.ready()
        assert chat.saved == []


async def test_restart_ends_a_comparison_that_hangs(tmp_path, monkeypatch):
    gate = Gate()
    async with running(tmp_path, gate=gate) as chat:
        await chat.ask("exact hi")
        never_stops(chat, monkeypatch)
        gate.hold_after = 0
        await chat.pilot.press("f9")
        await chat.until(lambda: chat.state.engine.comparing)
        await chat.pilot.press("escape", "escape")  # the first one waits for a verdict
        await chat.type("/restart")
        await chat.until(lambda: chat.engine.starts == 2 and not chat.state.engine.busy)
        await chat.ready()
        assert [m.content for m in chat.saved[0].messages] == ["exact hi", "hi"]


async def test_an_engine_that_cannot_start_is_a_notice_and_is_started_by_the_next_message(monkeypatch, chat):
    with monkeypatch.context() as patch:
        patch.setattr(chat.engine, "start", cannot_start)
        chat.engine.close()
        await chat.type("/restart")
        await chat.until(lambda: any("cannot fork" in notice for notice in chat.notices))
        assert not chat.state.engine.loading
        await chat.until(lambda: "not running" in str(chat.screen.query_one("#status").content))
    await chat.ask("exact back")
    assert source(chat.replies[-1]) == "back"


async def test_swapping_the_pair_starts_a_new_process(chat):
    await chat.type("/pair qwen3-8b+0.6b")
    await chat.until(lambda: chat.state.engine.ready and chat.state.engine.ready.pair == "qwen3-8b+0.6b")
    assert chat.engine.starts == 2
    await chat.ask("exact hi")
    assert chat.saved[0].pair == "qwen3-8b+0.6b"


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize(
    ("name", "why"), [("deno", "did you mean demo"), ("llama-3-8b+1b", "not on this machine")]
)
async def test_a_pair_that_cannot_be_loaded_leaves_the_loaded_one_where_it_is(
    tmp_path, monkeypatch, name, why, real
):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    if real:
        name = name.replace("llama-3-", "llama-3.1-")  # as models.toml has it
    async with running(tmp_path, **{"downloads": Downloads()} if real else {}) as chat:
        await chat.type(f"/pair {name}")
        await chat.until(lambda: chat.notices)
        assert why in chat.notices[0]
        if "machine" in why:
            await chat.until(lambda: "Download it now?" in chat.drawn)
            await chat.pilot.press("n")
        assert chat.state.engine.ready.pair == "demo"
        await chat.ask("exact hi")
        assert chat.engine.starts == 1
        await chat.type("/restart")
        await chat.until(lambda: chat.engine.starts == 2)
        await chat.ready()
        assert [load.pair.name for load in loads(chat)] == ["demo", "demo"]


def loads(chat):
    return [request for request in chat.engine.handler.asked if isinstance(request, LoadPair)]


async def test_a_pair_that_fails_while_it_loads_brings_back_the_one_before(tmp_path):
    async with running(tmp_path, load=LoadPair(called("qwen3-8b+0.6b"), options={"threads": 3})) as chat:
        await chat.type("/pair llama-3-70b+8b")
        await chat.until(lambda: chat.notices)
        assert "needs 48 GB" in chat.notices[0]
        await chat.ready()
        assert chat.state.engine.pair_name == "qwen3-8b+0.6b"
        await chat.ask("exact hi")
        assert loads(chat)[0] == loads(chat)[-1] == LoadPair(called("qwen3-8b+0.6b"), options={"threads": 3})


@asynccontextmanager
async def loading(chat, name):
    """A pair is being loaded, and so it stays for as long as that takes."""
    chat.engine.handler.pace.load_seconds = 60
    await chat.type(f"/pair {name}")
    await chat.until(lambda: chat.state.engine.loading)
    yield
    chat.engine.handler.pace.load_seconds = 0


async def test_a_question_for_a_pair_that_fails_while_it_loads_is_back_in_the_prompt(chat):
    async with loading(chat, "qwen3-8b+0.6b"):
        await chat.type("why?")
        await chat.until(lambda: chat.state.engine.busy)
    unloaded = Failure("BadSetting", "no pair is loaded", "", chat.state.engine.reply.serial)
    chat.engine._reports.extend([Failure("NotEnoughMemory", "It needs 48 GB.", ""), unloaded])
    await chat.until(lambda: chat.engine.starts == 3)
    await chat.ready()
    assert chat.notices == ["It needs 48 GB."]
    assert chat.screen.prompt.text == "why?"


async def test_an_engine_that_dies_while_it_loads_a_pair_comes_back_with_the_one_before(chat):
    async with loading(chat, "qwen3-8b+0.6b"):
        chat.engine.die(
            Died("the engine process ended unexpectedly (SIGKILL, perhaps for lack of memory)", "")
        )
        await chat.until(lambda: chat.notices)
    assert chat.state.engine.pair_name == "demo"
    await chat.ask("exact back")
    assert [load.pair.name for load in loads(chat)] == ["demo", "qwen3-8b+0.6b", "demo"]


async def test_a_first_pair_that_does_not_load_leaves_the_chat_usable(tmp_path):
    async with running(tmp_path, until_ready=False, load=LoadPair(called("llama-3-70b+8b"))) as chat:
        await chat.until(lambda: chat.app.screen_stack and chat.app.screen.query("#prompt"))
        await chat.until(lambda: chat.notices)
        assert len(chat.notices) == 1
        assert "needs 48 GB" in chat.notices[0]
        assert "draft" not in str(chat.screen.query_one("#title").content)
        await chat.type("/pair demo")
        await chat.ready()
        await chat.ask("exact hi")


async def test_a_question_asked_while_the_pair_loads_is_answered_when_it_is_ready(chat):
    await chat.type("/pair demo")
    await chat.ask("exact early")
    assert source(chat.replies[0]) == "early"


async def test_a_restart_goes_on_without_the_servers_that_are_gone(tmp_path):
    async with running(
        tmp_path, load=LoadPair(called("qwen3-8b+0.6b"), options={"rpc": "desk:50052"})
    ) as chat:
        await chat.ready()
        chat.engine.die(Died("RPC0 (desk:50052) is gone: the connection broke", "start its server again"))
        await chat.until(lambda: chat.notices)
        assert "RPC0 (desk:50052) is gone" in chat.notices[0]
        await chat.ask("exact back")
        assert [request.rpc_required for request in loads(chat)] == [True, False]
