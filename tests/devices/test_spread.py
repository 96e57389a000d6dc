"""Models over several devices, of which two servers on loopback are the GPUs, and with experts on the CPU."""

import numpy as np
import pytest

from localspec.llama.context import Context
from localspec.llama.devices import add_servers, devices
from localspec.llama.load import Load
from localspec.llama.model import Model
from localspec.loading.memory import LoadChoices
from localspec.loading.plan import MemoryProbe, plan
from localspec.machine import servers
from localspec.models.local_models import ModelFile
from tests.devices.servers import HAS_RPC, Server

pytestmark = pytest.mark.skipif(not HAS_RPC, reason="this build of llama.cpp has no RPC")


@pytest.fixture(scope="module")
def gpus(device):
    """Two devices of this process, and two more servers for its children: each serves one process at a time."""
    if device and device.startswith("RPC"):
        pytest.skip("these servers are the only ones")
    with Server() as a, Server() as b, Server() as c, Server() as d:
        add_servers([a.address, b.address])
        servers.assume_servers([c.address, d.address])
        names = [found.name for found in devices() if found.description in (a.address, b.address)]
        yield names
        servers.assume_servers(())


def rows(path, **how):
    with Model(path, **how) as model, Context(model, length=256, threads=1) as context:
        found = [np.array(context.decode(range(3, 43), 1).rows[0])]
        return np.stack([*found, *(np.array(row) for row in context.decode([7, 8, 9, 10], 4).rows)])


@pytest.mark.parametrize("how", [{}, {"split": (3, 1)}, {"split": (2, 2), "gpu_layers": 4}], ids=str)
def test_rows_are_those_of_the_cpu(tiny_gguf, gpus, how):
    path = tiny_gguf(layers=6, embedding=128)
    assert np.abs(rows(path, devices=("CPU",)) - rows(path, devices=gpus, **how)).max() < 0.1


def test_layers_lie_where_the_plan_says(tiny_gguf, gpus):
    file = ModelFile.at(tiny_gguf(layers=6, embedding=128))
    block = sum(t.bytes for t in file.header.tensors if t.name.startswith("blk.0."))
    with MemoryProbe(devices()) as probe:
        needs = probe.needs(file, Load(1024, devices=("RPC0", "RPC1"), split=(4, 3)))
    assert needs.weights["RPC0"] == 4 * block
    assert needs.weights["RPC1"] > 2 * block
    assert needs.compute["RPC0"] > 0 < needs.compute["RPC1"]


def test_experts_on_the_cpu_compute_the_same(tiny_gguf, gpus):
    path = tiny_gguf(layers=3, embedding=128, experts=4)
    everywhere = rows(path, devices=("CPU",))
    for cpu_moe in (0, 1, 3):
        assert np.abs(everywhere - rows(path, devices=gpus[:1], cpu_moe=cpu_moe)).max() < 0.1


def test_a_plan_spreads_what_one_device_cannot_hold(tiny_gguf, gpus):
    file = ModelFile.at(tiny_gguf(layers=24, embedding=512, heads=8, vocab_size=512, feed_forward=1024))
    listed = [device for device in devices() if device.name in (*gpus, "CPU")]
    size = sum(tensor.bytes for tensor in file.header.tensors)
    with MemoryProbe(listed) as probe:
        found = plan(
            probe.sizes(file),
            probe.sizes(ModelFile.at(tiny_gguf())),
            [small(device, 512_000_000 + int(0.8 * size)) if device.is_gpu else device for device in listed],
            LoadChoices(context_length=512),
        )
    assert found.target.devices == tuple(gpus)
    assert found.target.gpu_layers is None
    assert found.draft is not None


def small(device, free):
    from dataclasses import replace

    return replace(device, free=free, total=free)
