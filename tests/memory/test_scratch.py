"""Scratch folders go with the process that made them, however it ends."""

import subprocess
import sys

from localspec import settings
from localspec.gguf.header import header_at
from localspec.memory.needs import Load
from localspec.memory.probe import Probe
from localspec.memory.scratch import scratch_folder

PROBE = """
import os, sys
from pathlib import Path
from localspec.gguf.header import header_at
from localspec.memory.needs import Load
from localspec.memory.probe import Probe
with Probe() as probe:
    probe.needs(header_at(Path(sys.argv[1])), Load(1024))
    os._exit(1)
"""


def left():
    return [path for path in (settings.cache_dir() / "weightless").rglob("*") if path.is_file()]


def test_a_folder_is_there_while_it_is_used_and_nothing_is_left(tmp_path):
    with scratch_folder(tmp_path) as first, scratch_folder(tmp_path) as second:
        (first / "x").write_text("1")
        assert second.is_dir()
        assert (first / "x").read_text() == "1"
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_owner_left_is_removed_by_the_next(tmp_path):
    left = tmp_path / "0123456789abcdef"
    left.mkdir()
    (left / "x").touch()
    (tmp_path / "0123456789abcdef.lock").touch()
    (tmp_path / "fedcba9876543210.lock").touch()
    with scratch_folder(tmp_path) as mine:
        assert {path.stem for path in tmp_path.iterdir()} == {mine.name}


def test_the_next_probe_removes_what_a_killed_one_left(tiny_gguf):
    subprocess.run([sys.executable, "-c", PROBE, str(tiny_gguf())], check=False)
    assert left()
    with Probe() as probe:
        probe.needs(header_at(tiny_gguf(layers=3)), Load(1024))
    assert left() == []


def test_a_home_that_cannot_be_written_is_probed_all_the_same(tiny_gguf, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "file" / "home"))
    with Probe() as probe:
        assert probe.needs(header_at(tiny_gguf()), Load(1024)).weights
