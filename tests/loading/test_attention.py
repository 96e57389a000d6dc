"""On a CPU a load measures nothing: `bench --attention` and idle engines do, and later loads have the stored choice."""

import os
import time
from dataclasses import replace

import numpy as np
import pytest

import localspec
from localspec import options
from localspec.caches.store import packed
from localspec.cli import main
from localspec.engine import requests
from localspec.engine.messages import Generate, LoadPair
from localspec.errors import BackendFailure
from localspec.gguf.facts import DraftKind
from localspec.gguf.header import header_at
from localspec.llama import measuring as timing
from localspec.llama.load import Load
from localspec.loading import attention
from localspec.loading.attention import Attention, attention_of, has_choice, measures_attention, turn_seconds
from localspec.loading.load import learned_state_file
from localspec.loading.memory import LoadChoices
from localspec.loading.plan import Plan, plan_for
from localspec.machine.devices import Device
from localspec.models.names import find
from localspec.stopping import WorkStopped, current_stop

pytestmark = pytest.mark.usefixtures("home")

LENGTHS, WIDTHS = (24, 3072), (1, 2, 5, 128)
FLASH = {(length, width): 0.01 for length in LENGTHS for width in WIDTHS}
FASTER = {key: seconds / 2 for key, seconds in FLASH.items()}


def measure(target, threads=None):
    return attention_of(target, header_at(target), threads, on_stage=print)


@pytest.fixture(autouse=True)
def small_models_count(monkeypatch):
    monkeypatch.setattr(attention, "SMALL_BYTES", 0)


@pytest.fixture
def measurements(monkeypatch):
    """The passes that a measurement finds, and the files and threads that were measured."""
    found = {"on": FLASH, "off": FASTER}
    measured = []
    monkeypatch.setattr(timing, "pass_seconds", lambda *given: measured.append(given) or found)
    return found, measured


def test_a_turn_has_new_tokens_and_a_reply_with_and_without_drafts():
    passes = {(24, 1): 1.0, (24, 2): 1.6, (24, 5): 2.31, (24, 128): 64.0}
    assert turn_seconds(passes, 24) == pytest.approx(200 * 0.5 + 200 * 1.0)
    both = passes | {(3072, width): 2 * seconds for (_, width), seconds in passes.items()}
    measured = Attention.of_passes(both, passes | both)
    assert (measured.short_flash, measured.flash, measured.plain) == pytest.approx((300, 600, 600))


@pytest.mark.parametrize(
    ("flash", "plain", "short_plain", "chosen"),
    [
        (2.0, 1.0, 1.0, "off"),
        (1.2, 1.0, 1.03, "off"),
        (1.2, 1.0, 1.04, "auto"),
        (1.19, 1.0, 1.0, "auto"),
        (1.0, 2.0, 1.0, "auto"),
    ],
)
def test_plain_attention_is_chosen_if_much_faster_behind_long_texts_and_no_slower_behind_short_ones(
    flash, plain, short_plain, chosen
):
    assert Attention(flash, plain, 1.0, short_plain).flash_attn == chosen


def test_no_load_measures_and_each_has_the_choice_that_bench_stored(tiny_gguf, measurements, capsys):
    target, draft = tiny_gguf(layers=3), tiny_gguf(layers=1)

    def chosen(**options):
        with localspec.load(target=target, draft=draft, threads=3):
            pass
        planned = plan_for(find(target=target, draft=draft), LoadChoices(**options))
        return planned.target.flash_attn, planned.draft.flash_attn

    assert (chosen(threads=3), measurements[1]) == (("auto", "auto"), [])
    for _ in range(2):
        assert main(["bench", "--attention", "--target", str(target), "--threads", "3"]) == 0
        assert "use plain attention" in capsys.readouterr().out
    assert measurements[1] == [(target, 3)]
    assert (chosen(threads=3), chosen(threads=2)) == (("off", "off"), ("auto", "auto"))


def test_the_first_of_two_processes_decides(tiny_gguf, measurements, monkeypatch):
    found, _ = measurements
    target = tiny_gguf()

    def beaten(*given):
        monkeypatch.setattr(timing, "pass_seconds", lambda *given: found)
        assert measure(target).flash_attn == "off"
        return {"on": FASTER, "off": FLASH}

    monkeypatch.setattr(timing, "pass_seconds", beaten)
    assert measure(target).flash_attn == "off"


def test_a_failed_measurement_is_an_error_and_no_choice(tiny_gguf, monkeypatch, capsys):
    def fails(*given):
        raise BackendFailure("no copy", hint="")

    monkeypatch.setattr(timing, "pass_seconds", fails)
    assert main(["bench", "--attention", "--target", str(tiny_gguf())]) == 1
    assert "attention could not be measured" in capsys.readouterr().err
    assert plan_for(find(target=tiny_gguf()), LoadChoices()).target.flash_attn == "auto"


LOAD = Load(512, devices=())


@pytest.mark.parametrize(
    ("load", "kind", "measured"),
    [
        (LOAD, DraftKind.LOOKUP, True),
        (LOAD, DraftKind.MTP, True),
        (replace(LOAD, devices=("CUDA0",)), DraftKind.LOOKUP, False),
        (replace(LOAD, devices=("CUDA0",), gpu_layers=0), DraftKind.LOOKUP, False),
        (replace(LOAD, kv_type="q8_0"), DraftKind.LOOKUP, False),
        (replace(LOAD, kv_type="bf16"), DraftKind.LOOKUP, False),
        (replace(LOAD, flash_attn="on"), DraftKind.LOOKUP, False),
        (replace(LOAD, flash_attn="off"), DraftKind.LOOKUP, False),
        (LOAD, DraftKind.ASSISTANT, False),
    ],
)
def test_only_a_cache_of_f16_on_the_cpu_without_the_users_word_is_measured(load, kind, measured):
    assert measures_attention(load, kind) is measured


def test_a_plan_counts_the_memory_that_attention_needs_and_keeps_flash_attention_without_it(
    shipped, tiny_gguf, measurements, monkeypatch
):
    def planned(free, **options):
        monkeypatch.setattr("localspec.machine.devices.available_bytes", lambda: free)
        return plan_for(pair, LoadChoices(**options), [Device("CPU", "cpu", free, free)])

    pair = find(target=tiny_gguf(heads=16, embedding=256))
    flash = planned(1 << 40)
    measure(pair.target.here)
    plain = planned(1 << 40)
    assert (flash.target.flash_attn, plain.target.flash_attn) == ("auto", "off")
    assert plain.needs[0].compute > flash.needs[0].compute
    free = 200_000_000 + flash.needs[0].total
    kept = planned(free)
    assert kept.target == flash.target
    assert any("more memory than is free" in line for line in kept.lines)
    assert planned(free, ignore_memory=True).target.flash_attn == "off"


@pytest.fixture
def idle(tiny_gguf, monkeypatch):
    """An engine process's requests, with a target that has replied once."""
    monkeypatch.setattr(requests, "on_battery", lambda: False)
    handler = requests.PairRequests()
    handler.perform(LoadPair(find(target=tiny_gguf()), {"read_ahead": False}), print, bool)
    handler.rest(bool)  # nothing is measured before the first reply
    handler.perform(Generate(1, continued="a", options={"max_tokens": 1}), print, bool)
    yield handler
    handler.close()


def test_an_idle_engine_measures_once_for_later_loads_and_stores_nothing_that_these_could_not_use(
    measurements, idle, tiny_gguf
):
    target = idle._session.pair.target
    assert (measurements[1], target.prompt_cache.disk is None) == ([], False)
    for _ in range(2):
        idle.rest(bool)
        assert [given[0] for given in measurements[1]] == [target.model]
    assert target.prompt_cache.disk is None
    assert plan_for(find(target=tiny_gguf()), LoadChoices()).target.flash_attn == "off"


def test_an_idle_engine_measures_nothing_while_states_of_the_model_are_stored(measurements, idle):
    disk = idle._session.pair.target.prompt_cache.disk
    assert disk._store.write(packed([1, 2]), replace(disk._facts, parts=(1,)), [np.zeros(1, np.uint8)])
    idle.rest(bool)
    assert measurements[1] == []


def test_an_idle_engine_measures_nothing_without_memory_for_it(measurements, idle, monkeypatch):
    monkeypatch.setattr(attention, "available_bytes", lambda: attention.SPARE_BYTES)
    idle.rest(bool)
    assert measurements[1] == []


def test_a_failed_try_is_repeated_after_an_hour_and_one_that_a_request_stopped_in_the_next_idle_time(
    idle, monkeypatch, home
):
    tries = []

    def fails(*given):
        tries.append(given)
        if len(tries) == 1:
            while not current_stop().asked:
                pass
            raise WorkStopped
        raise BackendFailure("other programs use the processor", hint="")

    monkeypatch.setattr(timing, "pass_seconds", fails)
    for _ in range(3):
        idle.rest(lambda: len(tries) == 1)
    assert len(tries) == 2
    (tried,) = (options.data_dir() / "attention").glob("*.tried")
    os.utime(tried, (then := time.time() - attention.RETRY_SECONDS, then))
    idle.rest(bool)
    assert len(tries) == 3


def test_learned_costs_belong_to_one_attention(tiny_gguf):
    pair = find(target=tiny_gguf())
    files = {
        learned_state_file(pair, Plan(replace(LOAD, flash_attn=flash), None, (), ()), 1)
        for flash in ("auto", "on", "off")
    }
    assert len(files) == 2


def test_info_has_the_choice_with_both_figures(tiny_gguf, measurements, capsys):
    target = tiny_gguf(layers=3)

    def reported():
        assert main(["info", str(target)]) == 0
        return next(line for line in capsys.readouterr().out.splitlines() if line.startswith("attention"))

    assert "`localspec bench --attention` measures" in reported()
    measure(target)
    assert reported().startswith(
        "attention    plain attention: a turn of 200 new tokens and a reply of 200 takes"
    )
    long, short = (
        "1.4 s with flash and 0.7 s without behind a long text",
        "1.4 s with flash and 0.7 s without",
    )
    assert reported().endswith(f"{long}, {short} behind a short one")


def test_both_are_timed_on_the_models_own_layers_without_a_trace_in_a_loaded_pair(tiny_gguf):
    with localspec.load(target=tiny_gguf(), flash_attn="on") as session:

        def reply():
            return session.run("a b c", temperature=0, max_tokens=20).text, list(session.pair.target.tokens)

        first = reply()
        session.reset()
        seconds = timing.pass_seconds(tiny_gguf(), 1)
        assert reply() == first
    assert seconds.keys() == {"on", "off"}
    for passes in seconds.values():
        assert passes.keys() == FLASH.keys()
        assert min(passes.values()) > 0


@pytest.mark.process
def test_nothing_is_chosen_while_other_programs_use_the_processor(tiny_gguf, monkeypatch):
    monkeypatch.setattr(timing, "process_time", lambda: 0.0)
    with pytest.raises(BackendFailure, match="other programs"):
        timing.pass_seconds(tiny_gguf(), 2)
    assert measure(tiny_gguf(), threads=2) is None
    assert timing.pass_seconds(tiny_gguf(), 1)  # one thread waits for no other


@pytest.mark.parametrize("architecture", ["mamba", "lfm2", "gemma3", "qwen35"])
def test_models_with_windows_and_other_layers_have_a_choice_if_they_have_attention(tiny_gguf, architecture):
    target = tiny_gguf(architecture=architecture)
    assert has_choice(header_at(target)) == (architecture != "mamba")
    assert (measure(target, threads=1) is None) == (architecture == "mamba")
