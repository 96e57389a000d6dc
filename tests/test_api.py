"""The Python interface as a script uses it."""

import argparse
import asyncio
import pydoc
import re
import shutil
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor

import pytest

import localspec
from localspec import api, demo
from localspec.cli.options import add_pair_options, load_options
from localspec.errors import BadSetting
from localspec.events import FinishReason, Stats
from localspec.loading import load as loading
from localspec.loading.memory import LoadChoices
from localspec.options import LOAD, REPLY, SETTINGS


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    yield
    localspec.unload()


def test_run_keeps_the_pair_loaded_until_unload():
    first = localspec.run("Hello", temperature=0, max_tokens=20)
    session = localspec.api._loaded[1]
    again = localspec.run("Hello", temperature=0, max_tokens=20)
    assert first.tokens == again.tokens
    assert localspec.api._loaded[1] is session
    localspec.unload()
    assert localspec.api._loaded is None


def test_every_run_begins_a_new_conversation():
    localspec.run("My name is Ada.", temperature=0, max_tokens=10)
    fresh = localspec.run("Hello", temperature=0, max_tokens=20)
    localspec.unload()
    assert localspec.run("Hello", temperature=0, max_tokens=20).tokens == fresh.tokens


def test_every_option_of_loading_is_a_setting_and_a_flag_and_reaches_the_chats_engine():
    options = set(api.LoadOptions.__annotations__) - {"parallel"}  # an argument, and a flag of serve alone
    assert options <= {*SETTINGS.values()}
    parser = argparse.ArgumentParser()
    add_pair_options(parser)
    flags = "--context 512 --gpu-layers 2 --threads 3 --kv-type q8_0 --device A,B --split 3,1 --cpu-moe 4"
    more = "--draft-device C --flash-attn off --no-mmap --lora one.gguf --lora two.gguf:0.5"
    more += " --rpc localhost:1 --ignore-memory --no-read-ahead --mmproj FILE"
    given = load_options(parser.parse_args(f"{flags} {more}".split()))
    assert given["mmap"] is False
    assert given["lora"] == "one.gguf,two.gguf:0.5"
    assert options - {"cache", "cache_gb"} == given.keys()


def test_every_option_of_loading_is_a_choice_for_a_load():
    read_apart = {"device", "lora", "mmproj"}  # the names of devices, and fields of the pair
    assert api.LoadOptions.__annotations__.keys() - read_apart <= {*LoadChoices.__slots__}


def test_what_is_asked_for_reaches_the_models(monkeypatch, tmp_path):
    asked, adapter = {}, tmp_path / "a.gguf"
    adapter.touch()
    monkeypatch.setattr(loading, "plan_pair", lambda *_: None)
    monkeypatch.setattr(
        loading, "load_pair", lambda pair, _, choices, *__: asked.update(pair=pair, choices=choices)
    )
    monkeypatch.setattr(api, "Session", lambda *_: None)
    monkeypatch.setenv("LOCALSPEC_CPU_MOE", "4")
    api.load(
        "demo",
        device="CUDA1, CUDA0",
        split="3,1",
        flash_attn="off",
        mmap=False,
        lora=f"{adapter}:0.5",
        draft_device="CPU",
    )
    choices = asked["choices"]
    assert (choices.devices, choices.split, choices.cpu_moe) == (("CUDA1", "CUDA0"), (3.0, 1.0), 4)
    assert (choices.flash_attn, choices.draft_device, choices.mmap) == ("off", "CPU", False)
    assert asked["pair"].lora == ((adapter, 0.5),)


def test_devices_have_the_memory_that_the_plan_counts_on(monkeypatch):
    monkeypatch.setattr("localspec.machine.devices.available_bytes", lambda: 5_000_000_000)
    cpu = next(device for device in api.devices() if device.kind == "cpu")
    assert cpu.free_bytes == 5_000_000_000
    assert cpu.total_bytes >= cpu.free_bytes


async def test_asyncio_loads_and_replies_in_a_thread():
    options = {"pair": "demo", "max_tokens": 6, "temperature": 0}
    reply = await localspec.arun("Hello", **options)
    assert reply.tokens == localspec.run("Hello", **options).tokens
    stream = localspec.astream("Hello", pair="demo", temperature=0)
    async for event in stream:
        if isinstance(event, localspec.Piece):
            break
    await stream.aclose()
    with pytest.raises(BadSetting, match="temprature"):
        await localspec.arun("Hello", temprature=1)
    assert (await localspec.arun("Hello", **options)).tokens == reply.tokens


async def test_replies_that_wait_for_their_turn_hold_no_thread_of_asyncio_and_are_given_up_at_once():
    with api._taken:
        waiting = [asyncio.create_task(localspec.arun("Hello", pair="demo")) for _ in range(40)]
        await asyncio.sleep(0)
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "free"), 300) == "free"
        for task in waiting:
            task.cancel()
        _, pending = await asyncio.wait(waiting, timeout=300)
    assert not pending


async def test_a_waiting_reply_that_is_cancelled_leaves_the_running_one_alone():
    options = {"pair": "demo", "temperature": 0, "max_tokens": 200}
    running = localspec.astream("Tell me a story.", **options)
    before = [await anext(running)]
    waiting = asyncio.create_task(localspec.arun("Hello", **options))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    events = [*before, *[event async for event in running]]
    assert events[-1].reply.finish_reason is not FinishReason.CANCELLED


def test_streams_and_replies_of_several_threads_take_turns_whatever_pair_they_ask_for():
    begun = threading.Event()

    def streamed():
        events = []
        for event in localspec.stream("Tell me a story.", pair="demo", max_tokens=100):
            begun.set()
            events.append(event)
        return events[-1]

    def asked(options):
        begun.wait()
        return localspec.run("Hello", **options, max_tokens=2)

    with ThreadPoolExecutor(3) as pool:
        story = pool.submit(streamed)
        others = pool.map(asked, [{"pair": "demo"}, {"target": demo.target_path()}])
        assert [len(reply.tokens) for reply in others] == [2, 2]
        assert isinstance(story.result(), localspec.Finished)


def test_a_stream_whose_pair_is_let_go_raises():
    events = localspec.stream("Hello", pair="demo")
    next(events)
    localspec.unload()
    with pytest.raises(localspec.LocalspecError, match="closed while it replied"):
        list(events)


async def test_a_reply_that_is_given_up_while_its_pair_loads_ends_the_load(monkeypatch):
    begun = threading.Event()

    def loaded(found, planned, choices, on_stage):
        begun.set()
        while True:  # a load that never ends by itself
            on_stage("loading")

    monkeypatch.setattr(loading, "load_pair", loaded)
    waiting = asyncio.create_task(localspec.arun("Hello", pair="demo"))
    await asyncio.to_thread(begun.wait)
    waiting.cancel()
    _, pending = await asyncio.wait([waiting], timeout=300)
    assert not pending


def test_a_refused_stream_leaves_the_running_reply_alone():
    running = localspec.stream("Hello", pair="demo", max_tokens=4)
    next(running)
    with pytest.raises(BadSetting, match="not read to its end"):
        next(localspec.stream("Bye", pair="demo"))
    list(running)
    assert api._loaded[1].messages[0].content == "Hello"


def test_a_reply_prints_as_its_text_and_shows_itself_in_a_line():
    reply = localspec.run("Hello", temperature=0, max_tokens=30)
    assert str(reply) == f"{reply}" == reply.text
    for value in (reply, reply.stats):
        assert len(repr(value)) < 200
    assert "30 tokens" in repr(reply)
    with localspec.load("demo") as session:
        assert repr(session) == "Session(target='localspec demo target', draft='localspec demo draft')"
    assert reply.target == "localspec demo target"
    assert repr(reply).endswith(", target='localspec demo target')")


@pytest.mark.parametrize(("count", "shown"), [(31, False), (32, True)])
def test_statistics_show_no_speed_up_of_a_reply_that_is_too_short_to_judge(count, shown):
    stats = Stats(cycles=16, emitted=count, drafted=30, accepted=20, verify_seconds=1.0, plain_seconds=1.5)
    assert ("1.50x plain" in repr(stats)) is (stats.speedup is not None) is shown


def test_a_comparison_shows_its_result_first():
    found = localspec.compare("Hello", max_tokens=8, temperature=0)
    assert (found.rule, found.identical, found.plain.stats.drafted) == ("greedy", True, 0)
    shown = repr(found)
    assert shown.startswith("Comparison(")
    assert "the demo pair, the same text" in shown
    assert len(shown) < 500


def test_the_demo_pair_has_no_speed_up_and_a_copy_of_its_files_has_one(tmp_path):
    found = []
    for target in (demo.target_path(), shutil.copy(demo.target_path(), tmp_path)):
        with localspec.load(target=target) as session:
            found.append(session.run("Hello", max_tokens=4, speculate=False).stats.plain_seconds)
    assert found[0] == 0
    assert found[1] > 0


def test_a_traceback_ends_with_the_hint():
    with pytest.raises(BadSetting) as raised:
        localspec.run("Hello", temprature=0)
    assert "".join(traceback.format_exception(raised.value)).splitlines()[-2:] == [
        "localspec.errors.BadSetting: there is no option called temprature",
        "hint: did you mean temperature?",
    ]


@pytest.mark.parametrize(("function", "options"), [(localspec.load, LOAD), (localspec.run, REPLY)])
def test_help_lists_every_option_with_its_meaning(function, options):
    shown = pydoc.plain(pydoc.render_doc(function))
    for name, option in options.items():
        assert f"{name}: {option.help}" in shown


@pytest.mark.parametrize("name", ["run", "load", "stream", "arun", "astream", "compare", "Session"])
def test_help_shows_no_objects_in_place_of_names(name):
    shown = pydoc.plain(pydoc.render_doc(getattr(localspec, name)))
    assert not re.findall("<class|<lambda|<function| at 0x", shown)


def test_help_begins_with_the_names_to_call():
    described = pydoc.plain(pydoc.render_doc(localspec)).partition("PACKAGE CONTENTS")[0]
    functions = [name for name in localspec.__all__ if name[0].islower() and name != "unload"]
    assert [name for name in functions if name not in described] == []
