"""Estimates from the registry: near llama.cpp's own plans, for models whose files are not here."""

from dataclasses import replace

import pytest

from localspec.health.devices import Device
from localspec.models.inspection import Fit, estimated_sizes, file_bytes, fit, memory_needed
from localspec.models.memory import Load
from localspec.models.probe import Probe
from localspec.models.registry import all_pairs, named
from tests.gguf.headers import SHAPES, header_of

FILES = {file.name: file for pair in all_pairs() for file in pair.files}
GIB = 1 << 30


@pytest.mark.parametrize("name", SHAPES)
def test_the_shapes_are_those_of_the_pinned_files(name):
    """A file has its vocabulary on top, 6 to 20 MB."""
    weights = sum(tensor.bytes for tensor in header_of(name).tensors)
    assert 0 < FILES[name].bytes - weights < 25_000_000


@pytest.mark.parametrize("name", SHAPES)
def test_estimates_are_near_what_llama_cpp_plans(name, device):
    # A server serves one process, and the child that measures would be a second one.
    gpus = (device,) if device not in (None, "CPU") and not device.startswith("RPC") else ()
    loads = [Load(8192, devices=gpus, rows=33), Load(4096, "q8_0" if gpus else "f16", devices=gpus)]
    if gpus:
        loads.append(replace(loads[0], gpu_layers=FILES[name].layers // 2))
    with Probe() as probe:
        for load in loads:
            planned, estimated = probe.needs(header_of(name), load), estimated_sizes(FILES[name]).needs(load)
            for place, size in planned.by_device.items():
                assert estimated.by_device[place] == pytest.approx(size, rel=0.02, abs=40_000_000), (
                    load,
                    place,
                )


def test_what_fits_where_is_what_a_plan_says():
    cpu = Device("CPU", "cpu", 28 * GIB, 32 * GIB)
    pair = named("qwen2.5-14b+0.5b")
    card = Device("CUDA0", "gpu", 16 * GIB, 16 * GIB)
    small = replace(card, free_bytes=6 * GIB, total_bytes=6 * GIB)
    assert fit(pair, [card, cpu]) is Fit.GPU
    assert fit(pair, [small, cpu]) is Fit.PART
    assert fit(pair, [cpu]) is Fit.CPU
    assert fit(pair, [replace(cpu, free_bytes=8 * GIB)]) is Fit.NO


def test_the_memory_of_a_pair_is_more_than_its_files_and_less_than_twice():
    for pair in all_pairs():
        assert file_bytes(pair) < memory_needed(pair) < 2 * file_bytes(pair) + 1e9, pair.name
