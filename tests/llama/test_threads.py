"""Threads: the fast physical cores, because a slow one holds the others up."""

from pathlib import Path

import pytest

from localspec.llama.threads import count_fastest, fast_cpus


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_on_intel_hybrids_linux_lists_the_performance_cores(tmp_path):
    """An i7-13700: eight of them with two threads each, eight slow cores."""
    devices = written(tmp_path, cpu_core__cpus="0-15\n", cpu_atom__cpus="16-23\n")
    assert fast_cpus(set(range(24)), devices) == set(range(16))
    assert fast_cpus({3, 15, 20}, devices) == {3, 15}


def test_a_process_that_may_run_on_slow_cores_alone_uses_them(tmp_path):
    devices = written(tmp_path, cpu_core__cpus="0-15")
    assert fast_cpus({16, 17}, devices) == {16, 17}


def test_on_arm_the_little_cores_have_less_capacity(tmp_path):
    capacities = {0: 1024, 1: 1024, 2: 870, 3: 430, 4: 430}
    files = {f"system__cpu__cpu{cpu}__cpu_capacity": f"{value}\n" for cpu, value in capacities.items()}
    assert fast_cpus(set(capacities), written(tmp_path, **files)) == {0, 1, 2}


@pytest.mark.parametrize("text", ["", "none"])
def test_where_linux_tells_nothing_every_core_counts(tmp_path, text):
    assert fast_cpus({0, 1, 2}, tmp_path) == {0, 1, 2}
    assert fast_cpus({0, 1, 2}, written(tmp_path, cpu_core__cpus=text)) == {0, 1, 2}


def test_on_windows_the_highest_efficiency_class_counts():
    """Two entries of 48 bytes for performance cores, three for efficiency cores."""

    def entry(efficiency_class: int) -> bytes:
        return bytes(4) + (48).to_bytes(4, "little") + bytes([1, efficiency_class]) + bytes(38)

    assert count_fastest(entry(1) + entry(0) + entry(1) + entry(0) * 2) == 2
    assert count_fastest(entry(0) * 6) == 6
