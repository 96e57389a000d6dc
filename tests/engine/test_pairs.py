"""What the picker remembers, and who may read it."""

import os
import stat
import sys

import pytest

from localspec import settings
from localspec.engine import pairs

pytestmark = pytest.mark.usefixtures("home")


def test_speedups_are_kept_by_pair_and_damage_is_as_if_never_measured():
    pairs.remember_speedup("demo", 1.2345)
    pairs.remember_speedup("other", 2)
    assert pairs.measured_speedups() == {"demo": 1.234, "other": 2.0}
    for damaged in ("[", "[1]", '{"demo": [1]}', "7", "[" * 100_000, '{"demo": 1%s}' % ("0" * 400)):
        (settings.data_dir() / "speedups.json").write_text(damaged)
        assert pairs.measured_speedups() == {}


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permission bits")
def test_speedups_are_their_owners_only():
    old = os.umask(0)
    try:
        pairs.remember_speedup("demo", 1.5)
    finally:
        os.umask(old)
    path = settings.data_dir() / "speedups.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_crash_leaves_the_old_speedups(monkeypatch):
    pairs.remember_speedup("demo", 1.5)

    def crash(*_):
        raise OSError

    monkeypatch.setattr(os, "replace", crash)
    pairs.remember_speedup("demo", 9.9)
    assert pairs.measured_speedups() == {"demo": 1.5}
