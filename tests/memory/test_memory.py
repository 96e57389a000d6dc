"""The sizes that memory plans rest on are llama.cpp's own; what devices have free is what the system says."""

import logging
import re
import subprocess
from dataclasses import replace

import pytest

from localspec.errors import BackendFailure, BadModelFile
from localspec.gguf.facts import trained_context
from localspec.gguf.header import header_at
from localspec.health import devices as known_devices
from localspec.health.devices import Device, last_devices, remember_devices
from localspec.llama.measure_memory import BufferLog
from localspec.models.memory import Load, MemoryWishes
from localspec.models.names import find
from localspec.models.plan import plan
from localspec.models.probe import Probe, _by_device, _weights, plan_for

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
def test_sizes_are_those_of_a_real_load(name, tiny_gguf):
    shape, length, kv_type = SHAPES[name]
    path = tiny_gguf(name=name.replace(" ", "-"), **shape)
    with Probe() as probe:
        needs = probe.needs(header_at(path), Load(length, kv_type, rows=9))
    real = really_loaded(path, length, kv_type)
    for part in ("weights", "cache", "compute"):
        assert sum(getattr(needs, part).values()) == pytest.approx(real[part], rel=0.01), part


def really_loaded(path, length, kv_type) -> dict[str, float]:
    """What llama.cpp allocates when it loads the model, from the lines that name its buffers."""
    from localspec.llama.context import Context
    from localspec.llama.library import logger
    from localspec.llama.model import Model

    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        with (
            Model(path) as model,
            Context(model, length=length, kv_type_k=kv_type, kv_type_v=kv_type, rows_max=9),
        ):
            pass
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)

    def total(words: str) -> float:
        found = (re.search(rf"{words} buffer size = +([\d.]+) MiB", line) for line in lines)
        return sum(float(match[1]) for match in found if match) * MIB

    return {"weights": total("model"), "cache": total("KV") + total("RS"), "compute": total("compute")}


def test_an_answer_is_remembered_and_needs_no_load(tiny_gguf):
    header, devices = header_at(tiny_gguf()), [Device("CPU", "cpu", 1, 1)]
    with Probe(devices) as probe:
        first = probe.needs(header, Load(1024))
    with Probe(devices) as probe:
        assert probe.needs(header, Load(1024)) == first
        assert probe._measurer is None


def test_an_answer_for_other_devices_is_not_used(tiny_gguf):
    header, cpu = header_at(tiny_gguf()), Device("CPU", "cpu", 1, 1)
    with Probe([cpu]) as probe:
        probe.needs(header, Load(1024))
    with Probe([Device("GPU0", "gpu", 1, 1), cpu]) as probe:
        probe.needs(header, Load(1024))
        assert probe._measurer is not None


def test_an_architecture_that_llama_cpp_does_not_know_is_its_own_verdict(tiny_gguf, tmp_path):
    path = tmp_path / "strange.gguf"
    path.write_bytes(tiny_gguf().read_bytes().replace(b"llama", b"lluma"))
    with Probe() as probe, pytest.raises(BadModelFile, match="architecture 'lluma'"):
        probe.needs(header_at(path), Load(1024))


def test_weights_lie_with_their_layers(tiny_gguf):
    header = header_at(tiny_gguf(layers=2, tied=True))
    layers = [sum(t.bytes for t in header.tensors if t.name.startswith(f"blk.{i}.")) for i in range(2)]
    embedding = next(t.bytes for t in header.tensors if t.name == "token_embd.weight")
    norm = next(t.bytes for t in header.tensors if t.name == "output_norm.weight")
    assert _weights(header, ["CPU", "GPU0", "CPU"]) == {
        "CPU": embedding + norm + layers[0],
        "GPU0": layers[1],
    }
    assert _weights(header, ["GPU0", "GPU0", "GPU0"]) == {
        "CPU": embedding,
        "GPU0": embedding + norm + sum(layers),
    }


def test_experts_that_stay_on_the_cpu_are_counted_there(tiny_gguf):
    header = header_at(tiny_gguf(layers=2, experts=4))
    experts = sum(t.bytes for t in header.tensors if t.name.startswith("blk.0.ffn_") and "_exps" in t.name)
    here, there = (_weights(header, ["GPU0"] * 3, cpu_moe) for cpu_moe in (0, 1))
    assert experts > 0
    assert there == {"CPU": here["CPU"] + experts, "GPU0": here["GPU0"] - experts}


def test_buffers_with_names_of_their_own_lie_on_a_known_device():
    sizes = {"CPU_REPACK": 1.0, "GPU0_Host": 2.0, "GPU0_Private": 4.0, "GPU0": 8.0, "CPU": 16.0}
    assert _by_device(sizes, ["CPU", "GPU0", "GPU0"]) == {"CPU": 19, "GPU0": 12}
    assert _by_device({"BLAS": 1.0}, ["CPU", "CPU"]) == {"CPU": 1}
    assert _by_device({"GPU1_Private": 1.0, "GPU10": 2.0}, ["GPU1", "GPU10"]) == {"GPU1": 1, "GPU10": 2}


def test_a_cache_that_the_heads_do_not_allow_is_an_error_of_the_load_and_not_of_the_file(tiny_gguf):
    """So that the plan can take another one."""
    header = header_at(tiny_gguf(embedding=96, heads=4, kv_heads=4))  # of 24 values, no whole blocks
    with Probe() as probe, pytest.raises(BackendFailure, match="block size"):
        probe.needs(header, Load(1024, "q8_0"))


def test_a_draft_whose_cache_cannot_be_quantised_is_planned_all_the_same(tiny_gguf):
    draft = header_at(tiny_gguf(embedding=96, heads=4, kv_heads=4))
    with Probe() as probe:
        sizes = probe.sizes(header_at(tiny_gguf())), probe.sizes(draft)
        found = plan(*sizes, probe.devices(), MemoryWishes())
    assert found.draft.kv_type == "f16"


def test_an_adapter_takes_room_where_its_matrices_are(tiny_gguf, tiny_adapter):
    header, adapter = header_at(tiny_gguf()), header_at(tiny_adapter())
    with Probe() as probe:
        with_it, without = (
            probe.sizes(header, adapters).needs(Load(1024, devices=())).weights
            for adapters in ([adapter], [])
        )
    added = sum(tensor.bytes for tensor in adapter.tensors)
    assert with_it["CPU"] == without["CPU"] + added > without["CPU"]


def test_what_rope_scaling_reaches_counts_as_trained(tiny_gguf):
    assert trained_context(header_at(tiny_gguf(context_length=512))) == 512
    assert trained_context(header_at(tiny_gguf(context_length=512, yarn=4.0))) == 2048


def test_two_files_are_planned_as_they_lie(tiny_gguf):
    found = plan_for(find(target=tiny_gguf(layers=3), draft=tiny_gguf(layers=1)), MemoryWishes())
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


def test_a_system_that_tells_nothing_is_no_system_without_memory(monkeypatch):
    def missing(*_, **__):
        raise FileNotFoundError("vm_stat")

    monkeypatch.setattr(known_devices.subprocess, "run", missing)
    assert known_devices._macos() is None


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
    """With the output of vm_stat faked: no Mac at hand."""
    told = subprocess.CompletedProcess([], 0, stdout=VM_STAT.format(file_backed=file_backed))
    monkeypatch.setattr(known_devices.subprocess, "run", lambda *_, **__: told)
    assert known_devices._macos() == pages * 16384


def test_layers_that_share_a_cache_take_none_of_it():
    """Made lines, in the form of llama.cpp's: two caches as Gemma 4 has them, over two GPUs that are not here."""
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
