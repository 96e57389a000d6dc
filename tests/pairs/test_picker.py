"""What the picker remembers, and who may read it."""

import os
import stat
import subprocess
import sys

import pytest

from localspec import options
from localspec.models import picker
from localspec.models.download import PullCancelled


def test_speedups_are_kept_by_pair_and_damage_is_as_if_never_measured():
    picker.remember_speedup("demo", 1.2345)
    picker.remember_speedup("other", 2)
    assert picker.measured_speedups() == {"demo": 1.234, "other": 2.0}
    for damaged in ("[", "[1]", '{"demo": [1]}', "7", "[" * 100_000, '{"demo": 1%s}' % ("0" * 400)):
        (options.data_dir() / "speedups.json").write_text(damaged)
        assert picker.measured_speedups() == {}


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permission bits")
def test_speedups_are_their_owners_only():
    old = os.umask(0)
    try:
        picker.remember_speedup("demo", 1.5)
    finally:
        os.umask(old)
    path = options.data_dir() / "speedups.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_crash_leaves_the_old_speedups(monkeypatch):
    picker.remember_speedup("demo", 1.5)

    def crash(*_):
        raise OSError

    monkeypatch.setattr(os, "replace", crash)
    picker.remember_speedup("demo", 9.9)
    assert picker.measured_speedups() == {"demo": 1.5}


def test_a_pull_reports_its_bytes_and_the_pair_is_listed_as_here(known):
    seen = []
    picker.pull("tiny", lambda done, total: seen.append((done, total)), lambda: False)
    assert seen[-1] == (known.target.size + known.draft.size,) * 2
    assert [row.name for row in picker.listing() if row.on_disk] == ["demo", "tiny"]


def test_a_pull_can_be_stopped(known):
    with pytest.raises(PullCancelled):
        picker.pull("tiny", lambda done, total: None, lambda: True)


def test_a_list_and_a_pull_need_no_llama_cpp():
    code = "import localspec.models.picker, sys; sys.exit('llama_cpp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
