"""Failed allocations, in a process whose address space is limited."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

pytest.importorskip("resource", reason="address space limits need POSIX")

_SCRIPT = """
import resource, sys
from pathlib import Path
from localspec.errors import NotEnoughMemory
from localspec.llama.context import Context
from localspec.llama.model import Model

room = {room}
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + room, used + room))
try:
    with Model(Path(sys.argv[1])) as model, Context(model, length={length}, threads=1) as context:
        context.decode([1], 1)
except NotEnoughMemory as error:
    print(error, "|", error.hint)
"""


def run(path, room: int, length: int) -> str:
    script = _SCRIPT.format(room=room, length=length)
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces the limit")
def test_a_context_that_does_not_fit_is_an_error_with_a_hint(tiny_gguf):
    printed = run(tiny_gguf(layers=8, embedding=256, kv_heads=4), room=1 << 30, length=1 << 20)
    assert "not enough memory for a context of 1048576 tokens on tiny" in printed
    assert "shorter context" in printed


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces the limit")
def test_a_model_that_does_not_fit_is_an_error_with_a_hint(tiny_gguf):
    printed = run(tiny_gguf(vocab_size=128_256, embedding=256, tied=True), room=32 << 20, length=64)
    assert "not enough memory to load" in printed
    assert "smaller model" in printed
