"""Memory plans: the order of what is given up, and sizes that are llama.cpp's own."""

import logging
import re
from dataclasses import dataclass

import pytest

from localspec.errors import BadModelFile, BadSetting, NotEnoughMemory
from localspec.models import devices, host_memory
from localspec.models.devices import DeviceMemory, last_devices, remember_devices
from localspec.models.facts import header_at
from localspec.models.memory import MemoryWishes, Plan, plan
from localspec.models.needs import Load, Needs
from localspec.models.planning import plan_for_files
from localspec.models.probe import Probe, _by_device, _weights

MIB = 1 << 20


@dataclass
class World:
    """Devices, and a pair of simple sizes: a token of context costs the target 1 MB, the draft a fifth."""

    target: object
    draft: object
    layers: int = 4

    def measure(self, header, load: Load) -> Needs:
        is_target = header is self.target
        gpu = "GPU0" if load.device is None else load.device
        on_gpu = self.layers if load.gpu_layers is None else load.gpu_layers
        if not is_target:
            on_gpu = self.layers if load.gpu_layers is None else 0
        share = on_gpu / self.layers
        weights = 4_000e6 if is_target else 400e6
        cache = load.length * (1e6 if is_target else 0.2e6) * (1.0 if load.kv_type == "f16" else 0.5)

        def split(size):
            return {"CPU": int(size * (1 - share))} | {gpu: int(size * (share if gpu != "CPU" else 1))}

        return Needs(split(weights), split(cache), split(100e6))


@pytest.fixture
def world(tiny_gguf) -> World:
    return World(header_at(tiny_gguf(layers=4, context_length=8192)), header_at(tiny_gguf(layers=1)))


def planned(world: World, gpu: float, second: float = 0.0, cpu: float = 64.0, **wishes) -> Plan:
    """A plan for devices with so many GB free."""
    devices = [DeviceMemory("GPU0", "gpu", int(gpu * 1e9), int(gpu * 1e9))]
    if second:
        devices.append(DeviceMemory("GPU1", "gpu", int(second * 1e9), int(second * 1e9)))
    devices.append(DeviceMemory("CPU", "cpu", int(cpu * 1e9), int(cpu * 1e9)))
    return plan(world.target, world.draft, devices, MemoryWishes(**wishes), world.measure)


def test_nothing_is_given_up_where_everything_fits(world):
    found = planned(world, gpu=24)
    assert (found.context_length, found.draft_context_length, found.keep_draft) == (8192, 8192, True)
    assert found.lines == ()


# The target needs 12.3 GB and the draft 2.1 GB of the 97 % that may be used.
@pytest.mark.parametrize(
    ("gpu", "context", "draft_context", "draft_kv", "draft_device", "keeps", "gpu_layers"),
    [
        (14.5, 8192, 4096, "f16", None, True, None),
        (13.5, 8192, 1024, "f16", None, True, None),
        (13.35, 8192, 1024, "q8_0", None, True, None),
        (10.0, 4096, 1024, "q8_0", None, True, None),
        (7.1, 2048, 1024, "q8_0", None, True, None),
        (6.6, 2048, 1024, "q8_0", "CPU", True, None),
    ],
)
def test_each_step_down_comes_in_its_turn(
    world, gpu, context, draft_context, draft_kv, draft_device, keeps, gpu_layers
):
    found = planned(world, gpu)
    assert found.context_length == context
    assert (found.draft_context_length, found.draft_kv_type, found.draft_device) == (
        draft_context,
        draft_kv,
        draft_device,
    )
    assert (found.keep_draft, found.gpu_layers) == (keeps, gpu_layers)
    assert found.lines
    assert all(line.endswith(".") and "\n" not in line for line in found.lines)


def test_a_second_gpu_takes_the_draft_before_the_cpu_does(world):
    assert planned(world, gpu=6.6, second=4.0).draft_device == "GPU1"


def test_the_draft_goes_before_layers_of_the_target_do(world):
    found = planned(world, gpu=6.6, cpu=0.5)
    assert (found.keep_draft, found.gpu_layers) == (False, None)
    assert "not loaded" in " ".join(found.lines)


def test_layers_leave_the_gpu_last_of_all(world):
    found = planned(world, gpu=4.0, context=4096)
    assert (found.keep_draft, found.gpu_layers) == (False, 1)
    assert "1 of the target's layers" in " ".join(found.lines)


def test_a_context_that_was_asked_for_is_never_shortened(world):
    for gpu in (24, 15, 13, 8, 4):
        assert planned(world, gpu, context=8000).context_length == 8000


def test_layers_and_places_that_were_asked_for_are_kept(world):
    assert planned(world, gpu=24, gpu_layers=2).gpu_layers == 2
    assert planned(world, gpu=24, draft_device="CPU").draft_device == "CPU"
    assert planned(world, gpu=24, draft=False).keep_draft is False


def test_the_targets_cache_is_quantised_on_request_only(world):
    assert all(planned(world, gpu).kv_type == "f16" for gpu in (24, 15, 8, 4))
    assert planned(world, gpu=24, kv_type="q8_0").kv_type == "q8_0"


def test_what_fits_nowhere_is_refused_with_the_numbers(world):
    with pytest.raises(NotEnoughMemory, match=r"needs .* GB on CPU, and 2\.0 GB are free"):
        planned(world, gpu=1.0, cpu=2.0)


def test_a_device_that_does_not_exist_is_refused(world):
    with pytest.raises(BadSetting, match="no device called GPU7"):
        planned(world, gpu=24, draft_device="GPU7")


def test_needs_add_up(world):
    for gpu in (24.0, 13.7, 8.0, 4.0):
        found = planned(world, gpu)
        assert all(need.total <= need.free for need in found.needs)


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
    from localspec.llama.log import logger
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


def test_an_answer_is_remembered_and_needs_no_child(tiny_gguf):
    header, devices = header_at(tiny_gguf()), [DeviceMemory("CPU", "cpu", 1, 1)]
    with Probe(devices) as probe:
        first = probe.needs(header, Load(1024))
    with Probe(devices) as probe:
        assert probe.needs(header, Load(1024)) == first
        assert probe._child is None


def test_an_answer_for_other_devices_is_not_used(tiny_gguf):
    header, cpu = header_at(tiny_gguf()), DeviceMemory("CPU", "cpu", 1, 1)
    with Probe([cpu]) as probe:
        probe.needs(header, Load(1024))
    with Probe([DeviceMemory("GPU0", "gpu", 1, 1), cpu]) as probe:
        probe.needs(header, Load(1024))
        assert probe._child is not None


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


def test_buffers_with_names_of_their_own_lie_on_a_known_device():
    sizes = {"CPU_REPACK": 1.0, "GPU0_Host": 2.0, "GPU0_Private": 4.0, "GPU0": 8.0, "CPU": 16.0}
    assert _by_device(sizes, ["CPU", "GPU0", "GPU0"]) == {"CPU": 19, "GPU0": 12}
    assert _by_device({"BLAS": 1.0}, ["CPU", "CPU"]) == {"CPU": 1}


def test_two_files_are_planned_as_they_lie(tiny_gguf):
    found = plan_for_files(tiny_gguf(layers=3), tiny_gguf(layers=1), MemoryWishes())
    assert found.context_length == 2048
    assert found.keep_draft
    assert [need.device for need in found.needs] == ["CPU"]


def test_devices_are_remembered_with_the_hosts_memory_as_it_is_now():
    remember_devices((DeviceMemory("GPU0", "gpu", 5, 10), DeviceMemory("CPU", "cpu", 1, 1)))
    gpu, cpu = last_devices()
    assert gpu == DeviceMemory("GPU0", "gpu", 5, 10)
    assert cpu.free > 1_000_000


def test_memory_that_the_system_does_not_tell_is_what_llama_cpp_says(monkeypatch):
    monkeypatch.setattr(devices, "available_bytes", lambda: None)
    cpu = DeviceMemory("CPU", "cpu", 7, 9)
    remember_devices((cpu,))
    assert last_devices() == (cpu,)


def test_a_system_that_tells_nothing_is_no_system_without_memory(monkeypatch):
    def missing(*_, **__):
        raise FileNotFoundError("vm_stat")

    monkeypatch.setattr(host_memory.subprocess, "run", missing)
    assert host_memory._macos() is None
