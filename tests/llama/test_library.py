"""Loading llama.cpp: nothing is printed, log lines arrive whole, an abort is one line, exits are clean."""

import logging
import subprocess
import sys

import pytest

from localspec.llama.library import LogRouter, last_log_errors
from localspec.llama.model import Model


def python(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


USE = """
import sys
from pathlib import Path
from localspec.llama.context import Context
from localspec.llama.devices import backend_summary, devices
from localspec.llama.model import Model
devices(), backend_summary()
"""


@pytest.mark.parametrize(
    "end",
    [
        "context.close(); model.close()",
        "pass",
        "model.output_on_gpu = True; context = make(); assert len(context.decode([1, 2], 1).rows[0].ids) == 128",
        "del model, context",
        "context.again = context; model.again = context; del model, context",
        "sys.exit(0)",
    ],
    ids=["closed", "left open", "sampler left", "deleted", "in a cycle", "sys.exit"],
)
def test_nothing_is_printed_and_the_process_ends_cleanly(tiny_gguf, end):
    make = "def make(): return Context(model, length=256, top_k=True)"
    script = (
        f"{USE}model = Model(Path(sys.argv[1]))\n{make}\ncontext = make()\ncontext.decode([1, 2], 1)\n{end}"
    )
    done = python(script, tiny_gguf())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_failed_load_prints_nothing_either(tmp_path):
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + b"\xff" * 100)
    script = f"{USE}\ntry: Model(Path(sys.argv[1]))\nexcept Exception as error: print(type(error).__name__)"
    done = python(script, tmp_path / "bad.gguf")
    assert (done.returncode, done.stdout, done.stderr) == (0, "BadModelFile\n", "")


def test_llama_cpps_log_arrives_in_logging(tiny_gguf, caplog):
    with caplog.at_level(logging.DEBUG, "localspec.llama"), Model(tiny_gguf()):
        pass
    lines = [record.getMessage() for record in caplog.records]
    assert any("general.architecture" in line for line in lines)
    assert all(line and "\n" not in line for line in lines)
    assert {"INFO", "DEBUG"} >= {
        record.levelname for record in caplog.records if "print_info" in record.getMessage()
    }


def test_errors_are_remembered_until_the_next_call(tmp_path, tiny_gguf):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + b"\xff" * 100)
    with pytest.raises(Exception, match="bad"):
        Model(bad)
    assert any("failed to load model" in line for line in last_log_errors())
    with Model(tiny_gguf()):
        assert last_log_errors() == ()


def test_fragments_are_joined_to_lines(caplog):
    router = LogRouter()
    with caplog.at_level(logging.DEBUG, "localspec.llama"):
        router.write(2, "loading ")
        router.write(5, "...")
        router.write(5, "...\nnext ")
        router.write(5, "line\n")
        router.write(3, "never finished")
        router.write(4, "broken\n\n")
    found = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert found == [
        ("INFO", "loading ......"),
        ("INFO", "next line"),
        ("WARNING", "never finished"),
        ("ERROR", "broken"),
    ]
    assert list(router.errors) == ["broken"]


def test_an_abort_is_one_clear_line_and_keeps_what_was_written(tiny_gguf):
    """A batch larger than n_batch trips an assertion inside llama.cpp."""
    script = f"""{USE}
from localspec.llama.batch import Batch
from localspec.llama.library import lib
context = Context(Model(Path(sys.argv[1])), length=256, batch_size=8)
print("kept", end="")
lib.llama_decode(context.handle, Batch(64).fill(list(range(64)), 0, 0))
print("not reached")
"""
    done = python(script, tiny_gguf())
    assert done.returncode == 1
    assert done.stdout == "kept"
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: llama.cpp aborted: ")
    assert "n_tokens_all <= cparams.n_batch" in error
    assert hint.startswith("hint: ")
