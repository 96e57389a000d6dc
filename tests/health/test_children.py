"""The process that tries a build first: it may not fill the machine."""

import json
import os
import sys

import pytest

from localspec.health.check import check

# Python runs a module of this name at its start, in children too.
TELLS = """
import atexit, json, os, sys
def tell():
    limits = {}
    if os.name == "posix":
        import resource
        names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
        limits = {name: resource.getrlimit(getattr(resource, name))[0] for name in names}
    with open(os.path.join(os.path.dirname(__file__), sys.argv[0].rpartition(os.sep)[2] + ".json"), "w") as file:
        json.dump({"limits": limits}, file)
atexit.register(tell)
"""


@pytest.fixture
def told(tmp_path, monkeypatch):
    """What a child was given, by the child itself."""
    (tmp_path / "sitecustomize.py").write_text(TELLS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    check()
    return json.loads((tmp_path / "first_decode.py.json").read_text())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limits")
def test_a_child_may_not_fill_disk_or_memory(told):
    limits = told["limits"]
    assert limits["RLIMIT_CORE"] == 0
    assert 0 < limits["RLIMIT_FSIZE"] <= 1 << 26
    assert 0 < limits["RLIMIT_DATA"] <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
