"""Loading llama.cpp: nothing is printed, log lines arrive whole, an abort is one line, exits are clean."""

import logging
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from llama_cpp import mtmd_cpp

from localspec.llama.layouts import use_layout
from localspec.llama.library import SPINS, LogRouter, lib, log_errors
from localspec.llama.model import Model


def python(
    script: str, *arguments: object, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


USE = """
import sys
from pathlib import Path
from localspec.llama.context import Context
from localspec.llama.devices import backend_summary, devices
from localspec.llama.model import Model
devices(), backend_summary()
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="only builds for Linux use libgomp")
@pytest.mark.parametrize(
    ("given", "wait"),
    [
        ({}, f"GOMP_SPINCOUNT = '{SPINS}'"),
        ({"GOMP_SPINCOUNT": "77"}, "GOMP_SPINCOUNT = '77'"),
        ({"OMP_WAIT_POLICY": "active"}, "OMP_WAIT_POLICY = 'ACTIVE'"),
    ],
    ids=str,
)
def test_waiting_threads_spin_shortly_unless_the_user_chose_a_wait_and_children_inherit_nothing(given, wait):
    unset = {name: value for name, value in os.environ.items() if "OMP_" not in name}
    script = "import os, localspec.llama.library\nprint({n: v for n, v in os.environ.items() if 'OMP_' in n})"
    shown = {"OMP_DISPLAY_ENV": "VERBOSE"}  # libgomp prints its settings when it loads
    done = python(script, env=unset | shown | given)
    assert wait in done.stderr or "GOMP" not in done.stderr  # a build without OpenMP prints nothing
    assert done.stdout.strip() == str(shown | given)
    assert (f"GOMP_SPINCOUNT = '{SPINS}'" in done.stderr) <= (not given)


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="only builds for Linux use libgomp")
@pytest.mark.parametrize("given", [{}, {"GOMP_SPINCOUNT": "77"}], ids=str)
def test_more_openmp_threads_than_cpus_exist_while_they_spin_less_unless_the_user_chose_a_wait(given):
    script = """
import os, threading, time
from localspec.llama.library import lib, spin_less
spin_less(60.0)
wanted = len(os.sched_getaffinity(0)) + 2 if any(t.name == "short spin" for t in threading.enumerate()) else 1
while len(os.listdir("/proc/self/task")) < wanted:
    time.sleep(0.01)
print(wanted > 1, hasattr(lib._lib, "GOMP_parallel"))
"""
    unset = {name: value for name, value in os.environ.items() if "OMP_" not in name}
    less, openmp = python(script, env=unset | given).stdout.split()
    assert less == str(openmp == "True" and not given)


@pytest.mark.process
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
    begin = "model = Model(Path(sys.argv[1]))\ndef make(): return Context(model, length=256, top_k=True)"
    done = python(f"{USE}{begin}\ncontext = make()\ncontext.decode([1, 2], 1)\n{end}", tiny_gguf())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_llama_cpps_log_arrives_in_logging(tiny_gguf, caplog):
    with caplog.at_level(logging.DEBUG, "localspec.llama"), Model(tiny_gguf()):
        pass
    lines = [record.getMessage() for record in caplog.records]
    assert any("general.architecture" in line for line in lines)
    assert all(line and "\n" not in line for line in lines)
    levels = {record.levelname for record in caplog.records if "print_info" in record.getMessage()}
    assert levels <= {"INFO", "DEBUG"}


def test_errors_are_remembered_until_the_next_call(tmp_path, tiny_gguf):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + b"\xff" * 100)
    with pytest.raises(Exception, match="bad"):
        Model(bad)
    assert any("failed to load model" in line for line in log_errors)
    with Model(tiny_gguf()):
        assert not log_errors


def test_fragments_are_joined_to_lines(caplog):
    router = LogRouter()
    with caplog.at_level(logging.DEBUG, "localspec.llama"):
        texts = ("loading ", "...", "...\nnext ", "line\n", "cut", "bad\n\n")
        for level, text in zip((2, 5, 5, 5, 3, 4), texts, strict=True):
            router.write(level, text)
    found = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert found == [("INFO", "loading ......"), ("INFO", "next line"), ("WARNING", "cut"), ("ERROR", "bad")]
    assert list(router.errors) == ["bad"]


@pytest.mark.process
def test_an_abort_is_one_clear_line_and_keeps_what_was_written(tiny_gguf):
    """A batch larger than n_batch trips an assertion inside llama.cpp."""
    script = f"""{USE}
from localspec.llama.batch import Batch
from localspec.llama.library import lib
context = Context(Model(Path(sys.argv[1])), length=256, batch_size=8)
print("kept", end="")
lib.llama_decode(context.shared.handle, Batch(64).fill(list(range(64)), 0, 0))
print("not reached")
"""
    done = python(script, tiny_gguf())
    assert done.returncode == 1
    assert done.stdout == "kept"
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: llama.cpp aborted: ")
    assert "n_tokens_all <= cparams.n_batch" in error
    assert hint.startswith("hint: ")


CONTEXT, MODEL, MTMD = lib.llama_context_params, lib.llama_model_params, mtmd_cpp.mtmd_context_params
ABORT, TYPES, BATCH = CONTEXT.abort_callback.offset, CONTEXT.type_k.offset, CONTEXT.n_batch.offset
SPLIT, PADDING = MODEL.split_mode.offset, MODEL.tensor_split.offset - 4


def with_zeros(at, count=8):
    return lambda raw: raw[:at] + bytes(count) + raw[at:]


# The parameters, whether their size is seen, the defaults of the other library made of the real ones, and
# whether localspec knows that layout.
LAYOUTS = {
    "the same": ("context", True, lambda raw: raw, True),
    "the same model, sizes unseen": ("model", False, lambda raw: raw, True),
    "the field of 0.6": ("context", True, with_zeros(ABORT), True),
    "the field of 0.6, sizes unseen": ("context", False, with_zeros(ABORT), True),
    "a field in between": ("context", True, with_zeros(TYPES), False),
    "a field in between, sizes unseen": ("context", False, with_zeros(TYPES), False),
    "a small field near the beginning": ("context", True, with_zeros(BATCH, 4), False),
    "a field at the end": ("context", True, lambda raw: raw + bytes(8), False),
    "a field at the end of the model's": ("model", True, lambda raw: raw + bytes(8), False),
    "a true field in the padding at the end": ("model", True, lambda raw: raw[:-1] + b"\1", False),
    "that and one at the end": ("context", True, lambda raw: with_zeros(ABORT)(raw) + bytes(8), False),
    "large parameters of a chain": ("sampler_chain", True, lambda raw: raw + bytes(31), False),
    "no last field": ("context", True, lambda raw: raw[:-8], False),
    "a field that takes padding": (
        "model",
        False,
        lambda raw: raw[:SPLIT] + bytes(4) + raw[SPLIT:PADDING] + raw[PADDING + 4 :],
        False,
    ),
}
USED = """
import platform
from localspec.errors import BackendFailure
from localspec.llama import check, layouts
check.assume(check.Health())
try:
    from localspec.llama import library
    print('used', library.layout)
except BackendFailure as error: print(error, '|', error.hint)
"""
needs_gcc = pytest.mark.skipif(sys.platform != "linux" or not shutil.which("gcc"), reason="needs gcc")


def with_other_defaults(folder, name, made, *flags):
    """Make a libllama in `folder`: the real one, but with these default parameters, and models end the process."""
    source, real = folder / "other.c", Path(lib._base_path) / "libllama.so"
    source.write_text(
        "#include <stdlib.h>\n"
        f"typedef struct {{ unsigned char bytes[{len(made)}]; }} result;\n"
        f"static const result defaults = {{{{{', '.join(map(str, made))}}}}};\n"
        # On x86-64 both take the address of the result; the sanitizer watches only the first.
        "#ifdef WATCHED\n"
        f"void llama_{name}_default_params(char *at) {{ for (size_t i = 0; i < sizeof defaults; i++) at[i] = "
        "defaults.bytes[i]; }\n#else\n"
        f"result llama_{name}_default_params(void) {{ return defaults; }}\n#endif\n"
        "void *llama_model_load_from_file(const char *path, ...) { abort(); }\n"
    )
    link = ["-shared", "-fPIC", "-Wl,--no-as-needed,-soname,libother.so", f"-Wl,-rpath,{real.parent}"]
    subprocess.run(["gcc", *flags, *link, "-o", folder / "libllama.so", source, real], check=True)


@pytest.mark.process
@needs_gcc
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_library_with_an_unknown_layout_is_refused_before_it_is_used(layout, tmp_path):
    name, sizes_seen, other, is_known = LAYOUTS[layout]
    if sizes_seen and platform.machine() != "x86_64":
        pytest.skip("needs x86-64, where a result's size is seen")
    with_other_defaults(tmp_path, name, other(bytes(getattr(lib, f"llama_{name}_default_params")())))
    script = USED if sizes_seen else USED.replace("\n", "\nimport platform\nplatform.machine = str\n", 1)
    done = python(script, env={**os.environ, "LLAMA_CPP_LIB_PATH": str(tmp_path)})
    if is_known:
        assert (done.stdout, done.stderr) == (f"used {'0.6' if '0.6' in layout else '0.5'}\n", "")
    else:
        assert f"the llama.cpp in {tmp_path} ({lib.llama_version().decode()}, commit" in done.stdout, done
        says = "unknown layout; the newest known one is that of", "| use a build of llama.cpp 0.5 or 0.6"
        assert ([part in done.stdout for part in says], done.stdout.count("\n")) == ([True, True], 1)


@pytest.mark.process
@needs_gcc
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the library writes to an address on x86-64")
@pytest.mark.parametrize(("more", "spare"), [(8, 4096), (300, 4096), (3000, 4096), (300, 256)])
def test_nothing_is_written_past_an_end_by_a_library_with_more_fields(more, spare, tmp_path):
    """The address sanitizer watches; the last case shows that it would see a write past an end."""
    known = bytes(lib.llama_context_default_params())
    with_other_defaults(tmp_path, "context", known + bytes(more), "-fsanitize=address", "-DWATCHED")
    asan = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    watched = {"LD_PRELOAD": asan.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
    script = USED.replace("check.assume", f"layouts._SPARE_BYTES = {spare}\ncheck.assume")
    done = python(script, env={**os.environ, **watched, "LLAMA_CPP_LIB_PATH": str(tmp_path)})
    found = "unknown layout" in done.stdout, "AddressSanitizer" in done.stderr, done.returncode
    assert found == ((True, False, 0) if spare > 256 else (False, True, 1)), done


def test_the_projectors_parameters_have_a_known_layout():
    assert use_layout(mtmd_cpp, mtmd_cpp._libmtmd, {"mtmd_context_params": "mtmd_context_params_default"})
    assert mtmd_cpp.mtmd_context_params is MTMD
