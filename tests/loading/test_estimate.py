"""Estimates from the registry: near llama.cpp's own plans, for models whose files are not here."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from localspec.tui.state.engine import Downloads

from localspec import options
from localspec.cli import main
from localspec.llama.load import Load
from localspec.loading import pair_info
from localspec.loading.pair_info import Fit, estimated_sizes, fit, memory_needed
from localspec.loading.plan import MemoryProbe
from localspec.machine.devices import Device
from localspec.models.download import PullCancelled
from localspec.models.local_models import ModelFile
from localspec.models.registry import all_pairs, named
from tests.drafters.heads import KINDS
from tests.gguf.headers import SHAPES, header_of, written

FILES = {file.name: file for pair in all_pairs() for file in pair.files}
GIB = 1 << 30


@pytest.mark.parametrize("name", SHAPES)
def test_the_shapes_are_those_of_the_pinned_files(name):
    """A file has its vocabulary on top, 6 to 20 MB."""
    weights = sum(tensor.bytes for tensor in header_of(name).tensors)
    assert 0 < FILES[name].bytes - weights < 25_000_000


@pytest.mark.parametrize("name", SHAPES)
def test_estimates_are_near_what_llama_cpp_plans(name, device, shipped, tmp_path):
    # A server serves one process, and the child that measures would be a second one.
    gpus = (device,) if device not in (None, "CPU") and not device.startswith("RPC") else ()
    loads = [Load(8192, devices=gpus, rows_max=33), Load(4096, "q8_0" if gpus else "f16", devices=gpus)]
    if gpus:
        loads.append(replace(loads[0], gpu_layers=FILES[name].layers // 2))
    file = ModelFile.at(written(name, tmp_path))
    with MemoryProbe() as probe:
        for load in loads:
            planned, by_header = probe.needs(file, load), estimated_sizes(file, read=True).needs(load)
            estimates = [estimated_sizes(FILES[name]).needs(load)]
            estimates += [by_header] if "gemma" not in name else []  # whose header hides which layers see all
            for estimated in estimates:
                for place, size in planned.by_device.items():
                    near = pytest.approx(size, rel=0.02, abs=40_000_000)
                    assert estimated.by_device[place] == near, (load, place)


def test_what_fits_where_is_what_a_plan_says():
    cpu = Device("CPU", "cpu", 28 * GIB, 32 * GIB)
    pair = named("qwen2.5-14b+0.5b")
    card = Device("CUDA0", "gpu", 16 * GIB, 16 * GIB)
    small = replace(card, free_bytes=6 * GIB, total_bytes=6 * GIB)
    machines = [card, cpu], [small, cpu], [cpu], [replace(cpu, free_bytes=8 * GIB)]
    assert [fit(pair, machine) for machine in machines] == [Fit.GPU, Fit.PART, Fit.CPU, Fit.NO]


def test_the_memory_of_a_pair_is_more_than_its_files_and_less_than_twice():
    for pair in all_pairs():
        assert pair.file_bytes < memory_needed(pair) < 2 * pair.file_bytes + 1e9, pair.name


def test_a_model_that_is_not_here_is_planned_by_its_header_and_one_that_is_by_llama_cpp(
    hub, shipped, tiny_gguf, capsys
):
    hub.add("org/Mix-GGUF", "Mix-Q8_0.gguf", tiny_gguf(layers=3, experts=4))
    shown = []
    for how in ("estimated", "as llama.cpp plans it"):
        assert main(["info", "org/Mix-GGUF:Q8_0", "--json"]) == 0
        shown.append(json.loads(capsys.readouterr().out)["plan"])
        assert main(["info", "org/Mix-GGUF:Q8_0"]) == 0
        assert f"memory {how}:" in capsys.readouterr().out
        assert main(["pull", "org/Mix-GGUF:Q8_0"]) == 0
        capsys.readouterr()
    before, after = shown
    assert before["target"]["length"] == after["target"]["length"]
    (estimated,), (planned,) = before["needs"], after["needs"]
    assert (estimated["weights"], estimated["cache"]) == (planned["weights"], planned["cache"])


def test_a_head_inside_a_target_that_is_not_here_is_planned_with_it(hub, tmp_path, capsys):
    hub.add("org/Head-GGUF", "Head-Q8_0.gguf", KINDS["mtp inside"].files(tmp_path)[0])
    assert main(["info", "org/Head-GGUF:Q8_0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["plan"]
    assert main(["info", "org/Head-GGUF:Q8_0"]) == 0
    text = capsys.readouterr().out
    assert found["draft"]["length"] == found["target"]["length"]
    assert "the prediction head inside the target drafts for it" in text


def test_speedups_are_kept_by_pair_and_damage_is_as_if_never_measured():
    pair_info.remember_speedup("demo", 1.2345)
    pair_info.remember_speedup("other", 2)
    assert pair_info.measured_speedups() == {"demo": 1.234, "other": 2.0}
    for damaged in ("[", "[1]", '{"demo": [1]}', "7", "[" * 100_000, '{"demo": 1%s}' % ("0" * 400)):
        (options.data_dir() / "speedups.json").write_text(damaged)
        assert pair_info.measured_speedups() == {}


@pytest.mark.process
def test_a_pull_that_is_stopped_or_done_reports_its_bytes(known):
    with pytest.raises(PullCancelled):
        Downloads().fetch("tiny", lambda done, total: None, lambda: True)
    seen = []
    Downloads().fetch("tiny", lambda done, total: seen.append((done, total)), lambda: False)
    assert seen[-1] == (known.target.size + known.draft.size,) * 2
    assert [row.name for row in pair_info.listing() if row.on_disk] == ["demo", "tiny"]


@pytest.mark.process
def test_a_list_and_a_pull_need_no_llama_cpp():
    code = "import localspec.loading.pair_info, sys; sys.exit('llama_cpp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
