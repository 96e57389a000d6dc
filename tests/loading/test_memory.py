"""The sizes that memory plans rest on are llama.cpp's own; what devices have free is what the system says."""

import logging
import re
import subprocess
from dataclasses import replace
from unittest.mock import Mock

import pytest

from localspec.errors import BackendFailure, BadModelFile
from localspec.gguf.facts import DraftKind, trained_context
from localspec.gguf.header import header_at
from localspec.llama.load import CHECKPOINT_SHARE, Load
from localspec.llama.measuring import BufferLog
from localspec.loading.memory import LoadChoices
from localspec.loading.pair_info import estimated_sizes
from localspec.loading.plan import MemoryProbe, _by_device, experts_of, plan, plan_for, weights_of
from localspec.machine import devices as known_devices
from localspec.machine.devices import Device, last_devices, remember_devices
from localspec.models.local_models import ModelFile
from localspec.models.names import find
from localspec.models.registry import named
from tests.drafters.heads import KINDS
from tests.loading.test_plan import cards

pytestmark = pytest.mark.usefixtures("cache_of_its_own")

MIB = 1 << 20


SHAPES = {
    "dense": ({"heads": 8, "kv_heads": 8, "embedding": 512, "layers": 3}, 4096, "f16"),
    "grouped-query": ({"heads": 8, "kv_heads": 2, "embedding": 512, "layers": 3}, 8192, "f16"),
    "sliding window": ({"architecture": "gemma2", "heads": 8, "embedding": 256, "window": 64}, 8192, "f16"),
    "tied embeddings": ({"tied": True, "heads": 8, "embedding": 256, "vocab_size": 8192}, 4096, "f16"),
    "long context": ({"heads": 8, "embedding": 256}, 65_536, "f16"),
    "recurrent": ({"architecture": "mamba", "embedding": 512}, 1024, "f16"),
    "Q8_0 cache": ({"heads": 4, "embedding": 512, "weights": "Q8_0"}, 16_384, "q8_0"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_sizes_are_those_of_a_real_load(name, tiny_gguf, caplog):
    shape, length, kv_type = SHAPES[name]
    path = tiny_gguf(name=name.replace(" ", "-"), **shape)
    with MemoryProbe() as probe:
        needs = probe.needs(ModelFile.at(path), Load(length, kv_type, rows_max=9))
    real = really_loaded(path, length, kv_type, caplog)
    if name in ("sliding window", "recurrent"):  # room for checkpoints, which come later
        real["cache"] += CHECKPOINT_SHARE * real["weights"]
    for part in ("weights", "cache", "compute"):
        assert sum(getattr(needs, part).values()) == pytest.approx(real[part], rel=0.01), part


def really_loaded(path, length, kv_type, caplog) -> dict[str, float]:
    """What llama.cpp allocates when it loads the model, from the lines that name its buffers."""
    from localspec.llama.context import Context
    from localspec.llama.library import logger
    from localspec.llama.model import Model

    caplog.set_level(logging.INFO, logger.name)
    options = {"length": length, "kv_type": kv_type, "rows_max": 9}
    with Model(path) as model, Context(model, **options):
        pass

    def total(words: str) -> float:
        found = re.findall(rf"{words} buffer size = +([\d.]+) MiB", "\n".join(caplog.messages))
        return sum(map(float, found)) * MIB

    return {"weights": total("model"), "cache": total("KV") + total("RS"), "compute": total("compute")}


def test_an_answer_is_remembered_for_these_devices_and_needs_no_load(tiny_gguf):
    file, devices = ModelFile.at(tiny_gguf()), [Device("CPU", "cpu", 1, 1)]
    with MemoryProbe(devices) as probe:
        first = probe.needs(file, Load(1024))
    with MemoryProbe(devices) as probe:
        assert probe.needs(file, Load(1024)) == first
        assert probe._measurer is None
    with MemoryProbe([Device("GPU0", "gpu", 1, 1), *devices]) as probe:
        probe.needs(file, Load(1024))
        assert probe._measurer is not None


def test_an_architecture_that_llama_cpp_does_not_know_is_its_own_verdict(tiny_gguf, tmp_path):
    path = tmp_path / "strange.gguf"
    path.write_bytes(tiny_gguf().read_bytes().replace(b"llama", b"lluma"))
    with MemoryProbe() as probe, pytest.raises(BadModelFile, match="architecture 'lluma'"):
        probe.needs(ModelFile.at(path), Load(1024))


def test_weights_lie_with_their_layers(tiny_gguf):
    header = header_at(tiny_gguf(layers=2, tied=True))
    layers = [sum(t.bytes for t in header.tensors if t.name.startswith(f"blk.{i}.")) for i in range(2)]
    embedding = next(t.bytes for t in header.tensors if t.name == "token_embd.weight")
    norm = next(t.bytes for t in header.tensors if t.name == "output_norm.weight")
    assert weights_of(header, ["CPU", "GPU0", "CPU"]) == {
        "CPU": embedding + norm + layers[0],
        "GPU0": layers[1],
    }
    assert weights_of(header, ["GPU0", "GPU0", "GPU0"]) == {
        "CPU": embedding,
        "GPU0": embedding + norm + sum(layers),
    }


def test_experts_that_stay_on_the_cpu_are_counted_there(tiny_gguf):
    header = header_at(tiny_gguf(layers=2, experts=4))
    experts = sum(t.bytes for t in header.tensors if t.name.startswith("blk.0.ffn_") and "_exps" in t.name)
    here, there = (weights_of(header, ["GPU0"] * 3, cpu_moe) for cpu_moe in (0, 1))
    assert experts > 0
    found = experts_of(header)
    assert (found.count, found.used) == (4, 2)
    assert 0 < found.share < 1
    assert there == {"CPU": here["CPU"] + experts, "GPU0": here["GPU0"] - experts}


def test_buffers_with_names_of_their_own_lie_on_a_known_device():
    sizes = {"CPU_REPACK": 1.0, "GPU0_Host": 2.0, "GPU0_Private": 4.0, "GPU0": 8.0, "CPU": 16.0}
    assert _by_device(sizes, ["CPU", "GPU0", "GPU0"]) == {"CPU": 19, "GPU0": 12}
    assert _by_device({"BLAS": 1.0}, ["CPU", "CPU"]) == {"CPU": 1}
    assert _by_device({"GPU1_Private": 1.0, "GPU10": 2.0}, ["GPU1", "GPU10"]) == {"GPU1": 1, "GPU10": 2}


def test_a_draft_whose_cache_cannot_be_quantised_is_planned_all_the_same(tiny_gguf):
    draft = ModelFile.at(tiny_gguf(embedding=96, heads=4, kv_heads=4))  # of 24 values, no whole blocks
    with MemoryProbe() as probe:
        with pytest.raises(BackendFailure, match="block size"):
            probe.needs(draft, Load(1024, "q8_0"))
        sizes = probe.sizes(ModelFile.at(tiny_gguf())), probe.sizes(draft)
        found = plan(*sizes, probe.devices(), LoadChoices())
    assert found.draft.kv_type == "f16"


def test_an_adapter_takes_room_where_its_matrices_are(tiny_gguf, tiny_adapter):
    file, adapter = ModelFile.at(tiny_gguf()), header_at(tiny_adapter())
    load = Load(1024, devices=())
    with MemoryProbe() as probe:
        with_it, without = (probe.sizes(file, each).needs(load).weights for each in ([adapter], []))
    added = sum(tensor.bytes for tensor in adapter.tensors)
    assert with_it["CPU"] == without["CPU"] + added > without["CPU"]


def test_what_rope_scaling_reaches_counts_as_trained(tiny_gguf):
    assert trained_context(header_at(tiny_gguf(context_length=512, yarn=4.0))) == 2048


def test_two_files_are_planned_as_they_lie(tiny_gguf):
    found = plan_for(find(target=tiny_gguf(layers=3), draft=tiny_gguf(layers=1)), LoadChoices())
    assert found.target.length == found.draft.length == 2048
    assert [need.device for need in found.needs] == ["CPU"]


def test_what_another_program_held_for_a_moment_is_not_missing_for_good(cache_of_its_own):
    gpu = Device("GPU0", "gpu", 9, 10)
    for listed in (gpu, replace(gpu, free_bytes=1), Device("GPU0", "gpu", 3, 24)):
        remember_devices((listed,))
        found = last_devices()[0]
        assert found == (listed if listed.total_bytes == 24 else gpu)


def test_devices_are_remembered_with_the_hosts_memory_as_it_is_now():
    remember_devices((Device("GPU0", "gpu", 5, 10), Device("CPU", "cpu", 1, 1)))
    gpu, cpu = last_devices()
    assert gpu == Device("GPU0", "gpu", 5, 10)
    assert cpu.free_bytes > 1_000_000


def test_memory_that_is_the_cpus_is_no_freer_than_the_cpus(monkeypatch):
    monkeypatch.setattr(known_devices, "available_bytes", lambda: 3)
    apple = Device("MTL0", "gpu", 11, 11, shares_memory=True)
    card = Device("CUDA0", "gpu", 11, 11)
    cpu = Device("CPU", "cpu", 16, 16)
    found = known_devices.with_host((apple, card, cpu))
    assert [device.free_bytes for device in found] == [3, 11, 3]


def test_memory_that_the_system_does_not_tell_is_what_llama_cpp_says(monkeypatch):
    monkeypatch.setattr(known_devices, "available_bytes", lambda: None)
    cpu = Device("CPU", "cpu", 7, 9)
    remember_devices((cpu,))
    assert last_devices() == (cpu,)


VM_STAT = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               10000.
Pages active:                            400000.
Pages inactive:                          100000.
Pages speculative:                         5000.
Pages throttled:                              0.
Pages wired down:                        150000.
Pages purgeable:                           2000.
"Translation faults":                 123456789.
File-backed pages:                       {file_backed}.
Anonymous pages:                         300000.
Pages occupied by compressor:             50000.
"""


@pytest.mark.parametrize(("file_backed", "pages"), [(250_000, 262_000), (40_000, 117_000)])
def test_files_that_macos_holds_in_active_pages_give_way(monkeypatch, file_backed, pages):
    printed = subprocess.CompletedProcess([], 0, stdout=VM_STAT.format(file_backed=file_backed))
    monkeypatch.setattr(known_devices.subprocess, "run", lambda *_, **__: printed)
    assert known_devices._macos() == pages * 16384
    no_program = FileNotFoundError("vm_stat")
    monkeypatch.setattr(known_devices.subprocess, "run", Mock(side_effect=no_program))
    assert known_devices._macos() is None


def test_layers_that_share_a_cache_take_none_of_it():
    log = BufferLog()
    for line in (
        "llama_kv_cache_iswa: creating non-SWA KV cache, size = 8192 cells",
        "llama_kv_cache: layer   1: dev = CUDA0",
        "llama_kv_cache: layer   3: dev = CUDA1",
        "llama_kv_cache: - layer   5: reuse layer 3, is_swa = 0",
        "llama_kv_cache: size =  512.00 MiB (  8192 cells,   2 layers,  1/1 seqs), K (f16):  256.00 MiB",
        "llama_kv_cache_iswa: creating     SWA KV cache, size = 1024 cells",
        "llama_kv_cache: layer   0: dev = CUDA0",
        "llama_kv_cache: layer   2: dev = CUDA0",
        "llama_kv_cache: - layer   4: reuse layer 2, is_swa = 1",
        "llama_kv_cache: size =   64.00 MiB (  1024 cells,   2 layers,  1/1 seqs), K (f16):   32.00 MiB",
    ):
        log.emit(logging.makeLogRecord({"msg": line}))
    assert log.cache == {"CUDA0": (256 + 64) * 2**20, "CUDA1": 256 * 2**20}


@pytest.mark.parametrize(
    ("name", "kind"), [("eagle3", "draft-eagle3"), ("mtp inside", "draft-mtp"), ("dflash", "draft-dflash")]
)
def test_it_takes_what_llama_cpp_plans_for_it(tmp_path, name, kind):
    target, head = KINDS[name].files(tmp_path)
    choices = LoadChoices(context_length=1024)
    found = plan_for(pair := find(target=target, draft=head), choices)
    assert (pair.drafter, found.draft.length) == (kind, 1024)
    assert found.target.prediction is (head is None)
    without = plan_for(find(target=target, draft="lookup"), choices)
    assert without.draft is None
    assert not without.target.prediction
    (need,), (less,) = found.needs, without.needs
    assert need.cache > less.cache
    assert need.compute > less.compute
    file_bytes = head.stat().st_size if head else 0
    assert need.weights - less.weights > 0.8 * file_bytes


def test_its_context_is_the_targets_and_one_inside_lies_with_its_target():
    pair = named("qwen3.6-27b+mtp")
    for inside in (False, True):
        head = replace(estimated_sizes(pair.draft, kind=DraftKind.MTP), inside=inside)
        found = plan(
            estimated_sizes(pair.target, pair.context),
            head,
            cards(24, 24),
            LoadChoices(context_length=16_384),
        )
        assert (found.draft.length, found.draft.kv_type) == (16_384, "f16")
        assert found.target.prediction is inside
        assert found.draft.devices == ("CUDA0",)


@pytest.mark.parametrize("gib", [(16,), (8, 8), (6, 12)])
def test_a_head_inside_stays_on_the_first_card_where_layers_of_its_target_leave(gib):
    pair = named("qwen3.6-27b+mtp")
    head = replace(estimated_sizes(pair.draft, kind=DraftKind.MTP), inside=True)
    found = plan(estimated_sizes(pair.target, pair.context), head, cards(*gib, cpu=40), LoadChoices())
    assert 20 < found.target.gpu_layers < 65
    assert found.draft.devices == ("CUDA0",)


@pytest.mark.parametrize("kind", ["eagle3", "mtp inside", "dflash"])
def test_each_reply_at_once_has_a_cache_of_target_and_head_in_the_plan(kind, tmp_path):
    target, head = KINDS[kind].files(tmp_path)
    pair = find(None, target, head)
    one, three = (plan_for(pair, LoadChoices(context_length=512, gpu_layers=0, parallel=n)) for n in (1, 3))
    assert three.draft.slots == three.target.slots == 3
    (before,), (after,) = one.needs, three.needs
    assert after.weights == before.weights
    assert 2.4 < after.cache / before.cache < 3.1  # slots of a hybrid share the bytes for checkpoints
