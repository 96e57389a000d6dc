"""A GPU that half works is used without what kills it, one that does not work is refused: by processes that really die.

The CPU stands in for the GPU, and the installation dies where a driver would; tests/devices has the same on real ones.
"""

import sys
from functools import partial
from signal import SIGKILL, SIGSEGV

import pytest

from localspec import api
from localspec.cli import main
from localspec.engine.messages import LoadPair
from localspec.engine.requests import PairRequests
from localspec.errors import BackendFailure, NotEnoughMemory
from localspec.health import check
from localspec.health import installed as the_build
from localspec.health.check import GpuHealth, ensure_gpu, try_gpu, untold_gpu_note
from localspec.health.devices import Device
from localspec.models import load
from localspec.models.memory import MemoryWishes
from localspec.models.names import find
from tests.health.broken import install

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="dies by signals")

SECOND_PASS = "widths[:2] == [1, 2]"
WITH_FLASH_ATTENTION = f"flash and {SECOND_PASS}"
STANDING_IN = Device("CPU", "gpu", 1 << 33, 1 << 33, False, "stands in", "CPU")


@pytest.fixture(autouse=True)
def unknown(tmp_path, monkeypatch):
    """Nothing is known about the GPU; the build works."""
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(check, "_known", check.Health())


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
    made = []
    real = check.decode_in_child
    monkeypatch.setattr(
        check, "decode_in_child", lambda trial: (made.append(trial.flash_attn), real(trial))[1]
    )
    return made


def ensure(flash_attn="auto", kv_type="f16"):
    return ensure_gpu("CPU", "stands in", flash_attn, kv_type, lambda: None)


def test_a_gpu_that_works_is_tried_once_for_each_cache_type(tried):
    said = []
    ensure_gpu("CPU", "stands in", "auto", "f16", lambda: said.append("trying"))
    ensure_gpu("CPU", "stands in", "auto", "q8_0", lambda: said.append("trying"))
    assert (said, tried) == (["trying"], ["auto"])
    assert ensure(kv_type="q4_0") == GpuHealth(("f16", "q8_0", "q4_0"))
    assert untold_gpu_note("CPU", "stands in") == ""


def test_where_flash_attention_alone_kills_it_it_is_off_there_and_the_user_reads_so_once(broken, tried):
    broken(SIGSEGV, decode_dies_if=WITH_FLASH_ATTENTION)
    assert ensure() == ensure(kv_type="q4_0") == GpuHealth(died_of="SIGSEGV", plain=True)
    assert tried == ["auto", "off", "auto"]
    assert "flash attention ends llama.cpp on CPU (SIGSEGV)" in untold_gpu_note("CPU", "stands in")
    assert untold_gpu_note("CPU", "stands in") == ""


def test_it_dies_of_flash_attention_with_another_cache_type_alone(broken):
    """That of drafts."""
    broken(SIGSEGV, decode_dies_if=f"kv_type == module.GGML_TYPE_Q8_0 and {WITH_FLASH_ATTENTION}")
    assert ensure().died_of == "SIGSEGV"


def test_another_driver_is_tried_anew(broken, tried, monkeypatch):
    broken(SIGSEGV, decode_dies_if=WITH_FLASH_ATTENTION)
    ensure()
    monkeypatch.setattr(check, "driver", lambda: "a newer one")
    monkeypatch.delenv("PYTHONPATH")
    assert ensure() == GpuHealth(("f16", "q8_0"))
    assert tried == ["auto", "off", "auto", "auto"]


def test_one_death_on_a_busy_machine_is_not_blamed_on_flash_attention(broken, tried, tmp_path):
    """The driver fails in the first trial alone, as on a card whose memory another program holds."""
    mark = str(tmp_path / "died").encode()
    once = f"flash and not os.path.exists({mark!r}) and not os.close(os.open({mark!r}, os.O_CREAT))"
    broken(SIGSEGV, decode_dies_if=once)
    assert ensure() == ensure() == GpuHealth(("f16", "q8_0"))
    assert tried == ["auto", "off", "auto"]


def test_flash_attention_that_was_asked_for_and_kills_is_refused(broken):
    broken(SIGSEGV, decode_dies_if=WITH_FLASH_ATTENTION)
    with pytest.raises(BackendFailure, match=r"flash attention ends llama\.cpp on CPU \(SIGSEGV\)"):
        ensure("on")
    assert ensure("off").plain


def test_flash_attention_that_is_off_is_not_tried(broken, tried):
    broken(SIGSEGV, decode_dies_if=WITH_FLASH_ATTENTION)
    assert ensure("off") == ensure("off") == GpuHealth(plain=True)
    assert tried == ["off"]


def test_a_gpu_that_dies_in_every_way_is_refused_each_time_and_forgotten(broken, tried):
    ensure()
    broken(SIGSEGV, decode_dies_if=SECOND_PASS)
    for _ in range(2):
        with pytest.raises(BackendFailure, match="does not work on CPU: its trial there ended with SIGSEGV"):
            try_gpu("CPU", "stands in")
    assert tried == ["auto", *["auto", "off"] * 2]


def test_a_trial_that_the_system_ended_says_nothing_about_flash_attention(broken):
    broken(SIGKILL, decode_dies_if=WITH_FLASH_ATTENTION)
    with pytest.raises(NotEnoughMemory):
        ensure()
    assert not ensure("off").died_of


def test_only_models_on_a_gpu_that_dies_of_it_are_loaded_without_flash_attention(broken):
    broken(SIGSEGV, decode_dies_if=WITH_FLASH_ATTENTION)
    heeded = load.heed_gpus([STANDING_IN], ["cpu"], MemoryWishes(), lambda stage: None)
    assert heeded == MemoryWishes(no_flash=("CPU",))
    assert load.heed_gpus([STANDING_IN], ["GPU1"], MemoryWishes(), lambda stage: None) == MemoryWishes()


@pytest.fixture
def standing_in(monkeypatch):
    monkeypatch.setattr(load, "devices", lambda: [STANDING_IN])


def test_the_plan_has_no_flash_attention_where_it_kills(broken, standing_in):
    broken(SIGSEGV, decode_dies_if=WITH_FLASH_ATTENTION)
    files = find("demo")
    plan = load.plan_pair(files, MemoryWishes(devices=("CPU",)), "", lambda stage: None)
    assert (plan.target.flash_attn, plan.draft.flash_attn) == ("off", "off")


def engine_process(capsys):
    PairRequests().perform(LoadPair("demo", options={"device": "CPU"}), lambda report: None, lambda: False)


def python(capsys):
    api.load("demo", device="CPU")


@pytest.mark.parametrize("load", [engine_process, python])
def test_a_driver_that_dies_in_every_way_is_a_sentence(broken, standing_in, load, capsys):
    broken(SIGSEGV, decode_dies_if=SECOND_PASS)
    with pytest.raises(BackendFailure, match=r"llama\.cpp does not work on CPU: .* ended with SIGSEGV"):
        load(capsys)


def test_a_driver_is_told_by_its_files_and_by_what_steers_it(tmp_path, monkeypatch):
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
    assert "works without flash attention, which ends llama.cpp there (SIGSEGV)" in capsys.readouterr().out
    gpu_of_json = partial(main, ["doctor", "--json"])
    assert gpu_of_json() == 0
    assert '"flash_attention_problem": "SIGSEGV"' in capsys.readouterr().out
