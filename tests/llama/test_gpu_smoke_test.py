"""A GPU that half works is used without what kills it, one that does not work is refused: by processes that really die.

The CPU stands in for the GPU, and the installation dies where a driver would.
"""

import sys
from functools import partial
from signal import SIGKILL, SIGSEGV

import pytest

from localspec import api
from localspec.cli import main
from localspec.errors import BackendFailure, NotEnoughMemory
from localspec.llama import check
from localspec.llama.check import GpuHealth, ensure_gpu, take_news, try_gpu
from localspec.loading import load
from localspec.loading.memory import MemoryOptions
from localspec.machine import llama_build as the_build
from localspec.machine.devices import Device
from localspec.models.names import find
from tests.llama.broken import install

pytestmark = [
    pytest.mark.usefixtures("cache_of_its_own"),
    pytest.mark.skipif(sys.platform == "win32", reason="dies by signals"),
]

SECOND_PASS = "widths[:2] == [1, 2]"
WITH_FLASH_ATTENTION = f"flash and {SECOND_PASS}"
STANDING_IN = Device("CPU", "gpu", 1 << 33, 1 << 33, False, "stands in", "CPU")


@pytest.fixture(autouse=True)
def healthy(tmp_path, monkeypatch):
    """Nothing is known about the GPU; the build works, also on a machine whose own one does not."""
    folder = str(install(tmp_path / "healthy", SIGSEGV))
    monkeypatch.setenv("PYTHONPATH", folder)
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(check, "_known", check.Health())
    monkeypatch.setattr(check, "_news", [])
    return folder


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """broken(SIGSEGV, decode_dies_if=SECOND_PASS): that installation is what child processes find."""

    def make(signal, **how):
        folder = install(tmp_path / "site", signal, **how)
        monkeypatch.setenv("PYTHONPATH", str(folder))

    return make


@pytest.fixture
def tried(monkeypatch):
    """The flash attention of each trial that was made."""
    made, real = [], check.decode_in_child
    monkeypatch.setattr(check, "decode_in_child", lambda trial: made.append(trial.flash_attn) or real(trial))
    return made


def ensure(flash_attn="auto", kv_type="f16"):
    return ensure_gpu("CPU", "stands in", flash_attn, kv_type, lambda: None)


@pytest.mark.process
def test_a_gpu_that_works_is_tried_once_for_each_cache_type(tried):
    words = []
    ensure_gpu("CPU", "stands in", "auto", "f16", lambda: words.append("trying"))
    ensure_gpu("CPU", "stands in", "auto", "q8_0", lambda: words.append("trying"))
    assert (words, tried) == (["trying"], ["auto"])
    assert ensure(kv_type="q4_0") == GpuHealth(("f16", "q8_0", "q4_0"))
    assert take_news() == []


def test_where_flash_attention_alone_kills_it_it_is_off_there_and_the_user_reads_so_once(broken, tried):
    broken(SIGSEGV, decode_dies_if=WITH_FLASH_ATTENTION)
    assert ensure() == ensure(kv_type="q4_0") == GpuHealth(died_of="SIGSEGV", plain=True)
    assert tried == ["auto", "off", "auto"]
    (notice,) = take_news()
    assert notice.startswith("llama.cpp crashes with flash attention on CPU (SIGSEGV)")
    assert take_news() == []


def test_it_dies_of_flash_attention_with_another_cache_type_alone(broken):
    """That of drafts."""
    broken(SIGSEGV, decode_dies_if=f"kv_type == module.GGML_TYPE_Q8_0 and {WITH_FLASH_ATTENTION}")
    assert ensure().died_of == "SIGSEGV"


def test_another_driver_is_tried_anew(healthy, broken, tried, monkeypatch):
    broken(SIGSEGV, decode_dies_if=WITH_FLASH_ATTENTION)
    ensure()
    monkeypatch.setattr(check, "driver", lambda: "a newer one")
    monkeypatch.setenv("PYTHONPATH", healthy)
    assert ensure() == GpuHealth(("f16", "q8_0"))
    assert tried == ["auto", "off", "auto", "auto"]


def test_one_death_on_a_busy_machine_is_not_blamed_on_flash_attention(broken, tried, tmp_path):
    """The driver fails in the first trial alone, as on a card whose memory another program holds."""
    mark = str(tmp_path / "died").encode()
    once = f"flash and not os.path.exists({mark!r}) and not os.close(os.open({mark!r}, os.O_CREAT))"
    broken(SIGSEGV, decode_dies_if=once)
    assert ensure() == ensure() == GpuHealth(("f16", "q8_0"))
    assert tried == ["auto", "off", "auto"]


def test_flash_attention_that_kills_is_not_tried_where_it_is_off_and_refused_where_it_was_asked_for(
    broken, tried
):
    broken(SIGSEGV, decode_dies_if=WITH_FLASH_ATTENTION)
    assert ensure("off") == ensure("off") == GpuHealth(plain=True)
    assert tried == ["off"]
    with pytest.raises(BackendFailure, match=r"llama\.cpp crashes with flash attention on CPU \(SIGSEGV\)"):
        ensure("on")
    assert ensure("off").plain


def test_a_gpu_that_dies_in_every_way_is_refused_each_time_and_forgotten(broken, tried):
    ensure()
    broken(SIGSEGV, decode_dies_if=SECOND_PASS)
    for _ in range(2):
        with pytest.raises(BackendFailure, match="CPU: its smoke test ended with SIGSEGV"):
            try_gpu("CPU", "stands in")
    assert tried == ["auto", *["auto", "off"] * 2]


def test_a_trial_that_the_system_ended_says_nothing_about_flash_attention(broken):
    broken(SIGKILL, decode_dies_if=WITH_FLASH_ATTENTION)
    with pytest.raises(NotEnoughMemory):
        ensure()
    assert not ensure("off").died_of


def test_only_models_on_a_gpu_that_dies_of_it_are_loaded_without_flash_attention(broken):
    broken(SIGSEGV, decode_dies_if=WITH_FLASH_ATTENTION)
    options = load.check_gpus([STANDING_IN], ["cpu"], MemoryOptions(), lambda stage: None)
    assert options == MemoryOptions(no_flash=("CPU",))
    assert load.check_gpus([STANDING_IN], ["GPU1"], MemoryOptions(), lambda stage: None) == MemoryOptions()


@pytest.fixture
def standing_in(monkeypatch):
    monkeypatch.setattr(load, "devices", lambda: [STANDING_IN])


def test_the_plan_has_no_flash_attention_where_it_kills(broken, standing_in):
    broken(SIGSEGV, decode_dies_if=WITH_FLASH_ATTENTION)
    files = find("demo")
    plan = load.plan_pair(files, MemoryOptions(devices=("CPU",)), "", lambda stage: None)
    assert (plan.target.flash_attn, plan.draft.flash_attn) == ("off", "off")


def test_a_driver_that_dies_in_every_way_is_a_sentence(broken, standing_in):
    broken(SIGSEGV, decode_dies_if=SECOND_PASS)
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


def test_doctor_says_what_it_found(broken, monkeypatch, capsys):
    broken(SIGSEGV, decode_dies_if=WITH_FLASH_ATTENTION)
    monkeypatch.setattr(api, "devices", lambda: [STANDING_IN])
    assert main(["doctor"]) == 0
    assert (
        "works, but only without flash attention: with it llama.cpp crashes (SIGSEGV)"
        in capsys.readouterr().out
    )
    gpu_of_json = partial(main, ["doctor", "--json"])
    assert gpu_of_json() == 0
    assert '"flash_attention_problem": "SIGSEGV"' in capsys.readouterr().out
