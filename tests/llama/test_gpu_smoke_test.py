"""A GPU that half works is used without what kills it, one that does not work is refused.

The CPU stands in for the GPU. What a trial finds is planted, but for two drivers that really end their process.
"""

import sys
from signal import SIGSEGV

import pytest

from localspec import api
from localspec.cli import main
from localspec.errors import BackendFailure, NotEnoughMemory
from localspec.llama import check
from localspec.llama.check import GpuHealth, SmokeTestOutcome, ensure_gpu, take_news, try_gpu
from localspec.loading import load
from localspec.loading.memory import LoadChoices
from localspec.machine import llama_build as the_build
from localspec.machine.devices import Device
from localspec.models.names import find
from tests.llama.broken import install

pytestmark = pytest.mark.usefixtures("cache_of_its_own")

SECOND_PASS = "widths[:2] == [1, 2]"
STANDING_IN = Device("CPU", "gpu", 1 << 33, 1 << 33, False, "stands in", "CPU")
WORKS, WITHOUT = GpuHealth(("f16", "q8_0")), GpuHealth(died_of="SIGSEGV", plain=True)
DEATHS = {
    "never": lambda trial, number: False,
    "always": lambda trial, number: True,
    "of flash attention": lambda trial, number: trial.flash_attn != "off",
    "of the type of drafts": lambda trial, number: trial.flash_attn != "off" and "q8_0" in trial.kv_types,
    "once": lambda trial, number: number == 1,  # as on a card whose memory another program holds
}


@pytest.fixture(autouse=True)
def unknown(tmp_path, monkeypatch):
    """Nothing is known about the GPU, and the build works."""
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(check, "_known", check.Health())
    monkeypatch.setattr(check, "_news", [])


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """broken(decode_dies_if=SECOND_PASS): that installation is what child processes find."""
    if sys.platform == "win32":
        pytest.skip("dies by signals")
    monkeypatch.setattr(load, "devices", lambda: [STANDING_IN])
    return lambda **how: monkeypatch.setenv("PYTHONPATH", str(install(tmp_path / "site", SIGSEGV, **how)))


@pytest.fixture
def tried(monkeypatch):
    """tried(dies) plants the crashes; the flash attention of each trial is in the list that it returns."""

    def plant(dies, cause="SIGSEGV"):
        made = []

        def decode(trial):
            if "devices" not in trial.place:  # `doctor` tries the build as well
                return SmokeTestOutcome()
            made.append(trial.flash_attn)
            return SmokeTestOutcome(cause=cause if DEATHS[dies](trial, len(made)) else "")

        monkeypatch.setattr(check, "decode_in_child", decode)
        return made

    return plant


def ensure(flash_attn="auto", kv_type="f16", on_first=lambda: None):
    return ensure_gpu("CPU", "stands in", flash_attn, kv_type, on_first)


@pytest.mark.parametrize(
    ("dies", "flash_attn", "found", "trials"),
    [
        ("never", "auto", WORKS, ["auto"]),
        ("of flash attention", "auto", WITHOUT, ["auto", "off", "auto"]),
        ("of the type of drafts", "auto", WITHOUT, ["auto", "off", "auto"]),
        ("once", "auto", WORKS, ["auto", "off", "auto"]),
        ("of flash attention", "off", GpuHealth(plain=True), ["off"]),
    ],
)
def test_it_is_used_without_flash_attention_where_that_alone_kills_and_the_user_reads_so_once(
    tried, dies, flash_attn, found, trials
):
    made, words = tried(dies), []
    for _ in range(2):
        assert ensure(flash_attn, on_first=lambda: words.append("trying")) == found
    assert (made, words) == (trials, ["trying"])
    news = [f"llama.cpp crashes with flash attention on CPU ({found.died_of})"] * bool(found.died_of)
    assert [notice.partition(",")[0] for notice in take_news()] == news
    assert take_news() == []


def test_each_cache_type_is_tried_once(tried):
    made = tried("never")
    for kv_type in ("f16", "q8_0", "q4_0", "q4_0"):
        found = ensure(kv_type=kv_type)
    assert found == GpuHealth(("f16", "q8_0", "q4_0"))
    assert made == ["auto"] * 2


def test_another_driver_is_tried_anew(tried, monkeypatch):
    tried("of flash attention")
    ensure()
    monkeypatch.setattr(check, "driver", lambda: "a newer one")
    made = tried("never")
    assert ensure() == WORKS
    assert made == ["auto"]


def test_flash_attention_that_kills_is_refused_where_it_was_asked_for(tried):
    tried("of flash attention")
    with pytest.raises(BackendFailure, match=r"llama\.cpp crashes with flash attention on CPU \(SIGSEGV\)"):
        ensure("on")
    assert ensure("off").plain


def test_a_gpu_that_dies_in_every_way_is_refused_each_time_and_forgotten(tried):
    tried("never")
    ensure()
    made = tried("always")
    for _ in range(2):
        with pytest.raises(BackendFailure, match="CPU: a short test ended with SIGSEGV"):
            try_gpu("CPU", "stands in")
    tried("never")
    assert made == ["auto", "off"] * 2
    assert not ensure("off").kv_types


def test_a_trial_that_the_system_ended_says_nothing_about_flash_attention(tried):
    tried("of flash attention", cause="SIGKILL")
    with pytest.raises(NotEnoughMemory):
        ensure()
    assert not ensure("off").died_of


@pytest.mark.process
def test_only_models_on_a_gpu_that_dies_of_it_are_planned_without_flash_attention(broken):
    broken(decode_dies_if=f"flash and {SECOND_PASS}")
    plan = load.plan_pair(find("demo"), LoadChoices(devices=("CPU",)), lambda stage: None)
    assert (plan.target.flash_attn, plan.draft.flash_attn) == ("off", "off")
    assert load.check_gpus([STANDING_IN], ["GPU1"], LoadChoices(), lambda stage: None) == LoadChoices()


@pytest.mark.process
def test_doctor_says_what_it_found(tried, monkeypatch, capsys):
    tried("of flash attention")
    monkeypatch.setattr(api, "devices", lambda: [STANDING_IN])
    assert main(["doctor"]) == 0
    words = "works, but only without flash attention: with it llama.cpp crashes (SIGSEGV)"
    assert words in capsys.readouterr().out
    assert main(["doctor", "--json"]) == 0
    assert '"flash_attention_problem": "SIGSEGV"' in capsys.readouterr().out


@pytest.mark.process
def test_a_driver_that_dies_in_every_way_is_a_sentence(broken):
    broken(decode_dies_if=SECOND_PASS)
    with pytest.raises(BackendFailure, match=r"llama\.cpp does not work on CPU: .* ended with SIGSEGV"):
        api.load("demo", device="CPU")


def test_a_driver_is_known_by_its_files_and_by_what_steers_it(tmp_path, monkeypatch):
    manifest = tmp_path / "driver.json"
    monkeypatch.setattr(the_build, "_DRIVER_FILES", (f"{tmp_path}/*.json",))
    before = the_build.driver()
    assert the_build.driver() == before
    manifest.write_text("1.3.230")
    installed = the_build.driver()
    monkeypatch.setenv("GGML_VK_DISABLE_FUSION", "1")
    assert len({before, installed, the_build.driver()}) == 3
